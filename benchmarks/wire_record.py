"""A record of both distributions of a pair, position by position, for the ratio rule's curve.

``python -m outrider.benchmarks.wire_record`` writes ``records/wire-qwen.json`` where the real pair
is on this machine. The target samples a text at temperature 1; at each of its positions are kept
the drafter's likeliest ids with its and the target's probability of each, the overlap of the whole
distributions (what the ratio rule accepts with full rows), and how often both agree under shared
noise (what the coupled rule accepts; 64 draws among the likeliest 2048 of either).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.benchmarks.record import Pair, embedded, qwen
from outrider.protocol.decoding.rules import choose
from outrider.protocol.decoding.sampling import Sampling
from outrider.runtime.lm.base import follow

KEPT, LENGTH, DRAWS, WIDE = 32, 40, 64, 2048
SEED = 31

CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
QWEN = {
    "code": "def quicksort(values: list[int]) -> list[int]:\n    ",
    "story": CHAT.format("Tell a short story about a lighthouse keeper."),
    "explanation": CHAT.format("Explain why the sea has tides."),
    "german": CHAT.format("Schreibe einen kurzen Brief an eine Freundin."),
}
EMBEDDED = {
    "code": "def main():\n    ",
    "story": "And it came to pass",
    "explanation": "This module provides",
}


def record(pair: Pair, texts: dict[str, str], length: int = LENGTH) -> dict[str, Any]:
    """What the file holds."""
    size = min(pair.tokenizer.size, pair.target.row_width, pair.drafter.row_width)
    return {
        "pair": pair.name,
        "vocabulary": pair.tokenizer.size,
        "temperature": 1.0,
        "texts": {name: _text(pair, text, size, length) for name, text in texts.items()},
    }


def _text(pair: Pair, text: str, size: int, length: int) -> list[dict[str, Any]]:
    sampling = Sampling(temperature=1.0, seed=SEED)
    prompt = list(pair.tokenizer.encode_prompt(text))
    ids, start = list(prompt), len(prompt)
    targets = [follow(pair.target, ids)[-1][:size].copy()]
    while len(ids) < start + length:
        ids.append(choose(targets[-1], sampling, ids, start, size).id)
        targets.append(pair.target.feed([ids[-1]])[-1][:size].copy())
    drafts = follow(pair.drafter, ids[:-1], rows=length)
    return [_position(p, q[:size]) for p, q in zip(targets, drafts, strict=False)]


def _position(target: NDArray[np.float32], draft: NDArray[np.float32]) -> dict[str, Any]:
    p, q = _softmax(target), _softmax(draft)
    leading = np.argsort(-q, kind="stable")[:KEPT]
    return {
        "ids": leading.tolist(),
        "q": [float(f"{x:.4g}") for x in q[leading]],
        "p": [float(f"{x:.4g}") for x in p[leading]],
        "full": round(float(np.minimum(p, q).sum()), 4),
        "coupled": round(_coupled(p, q), 4),
    }


def _coupled(p: NDArray[np.float64], q: NDArray[np.float64]) -> float:
    """How often the arg-max of log p + G and of log q + G is the same id."""
    wide = min(WIDE, p.size)
    near = np.union1d(np.argpartition(-p, wide - 1)[:wide], np.argpartition(-q, wide - 1)[:wide])
    rng = np.random.default_rng(SEED)
    noise = rng.gumbel(size=(DRAWS, near.size))
    with np.errstate(divide="ignore"):
        both = [(np.log(x[near]) + noise).argmax(1) for x in (p, q)]
    return float((both[0] == both[1]).mean())


def _softmax(z: NDArray[np.float32]) -> NDArray[np.float64]:
    e = np.exp(z.astype(np.float64) - float(z.max()))
    return np.asarray(e / e.sum())


def load() -> dict[str, Any]:
    """The record of the real pair if there is one, else one of the embedded pair, made now."""
    file = files("outrider.benchmarks") / "records" / "wire-qwen.json"
    if file.is_file():
        found: dict[str, Any] = json.loads(file.read_text("utf-8"))
        return found
    return record(embedded(), EMBEDDED)


def main(argv: Sequence[str] = ()) -> None:
    """Write the record of the real pair."""
    del argv
    path = Path(str(files("outrider.benchmarks"))) / "records" / "wire-qwen.json"
    path.write_text(json.dumps(record(qwen(), QWEN), separators=(",", ":")) + "\n")
    print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
