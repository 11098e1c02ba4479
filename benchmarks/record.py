"""Records of a real pair: where a drafter is right about its target, for speed in virtual time.

``python -m outrider.benchmarks.record embedded|qwen`` writes JSON files into ``records/``. The
target writes an answer by itself, greedily or by the coupled rule; then the drafter guesses each
token of it from what stands before (teacher-forced), by the same rule with the same noise. Kept for
each position: whether the guess was right, whether the runner-up was, the drafter's own
probability of its guess, by how much its score led, and the rank of the target's token in the
drafter's row. Ids are renumbered in order of appearance.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from outrider.benchmarks.embedded import DOMAINS, models, prompts
from outrider.protocol.decoding.rules import choose, propose
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.errors import SettingError
from outrider.runtime.hub.resolve import resolve
from outrider.runtime.lm.base import CausalLM, follow
from outrider.runtime.lm.factory import load_lm
from outrider.runtime.text.tokenizer import Tokenizer, load_tokenizer
from outrider.simulator.traced import Line, Record

SEED = 31

QWEN_PROMPTS = {
    "code": (
        "def quicksort(values: list[int]) -> list[int]:\n    ",
        "class LRUCache:\n    def __init__(self, capacity: int) -> None:\n        ",
        "import csv\n\n\ndef read_rows(path: str) -> list[dict[str, str]]:\n    ",
    ),
    "prose": (
        "The old lighthouse keeper climbed the stairs every evening, because",
        "Tides are caused by the pull of the moon on the sea. When the moon is",
        "Dear Anna, thank you for your letter. The garden here is",
    ),
}


@dataclass(frozen=True, slots=True)
class Pair:
    """Both models and their tokenizer."""

    name: str
    target: CausalLM
    drafter: CausalLM
    tokenizer: Tokenizer

    def record(
        self, domain: str, texts: Sequence[str], temperature: float, length: int
    ) -> dict[str, Any]:
        """What a file holds: answers of up to ``length`` tokens to each of the texts."""
        answers = [self._answer(text, temperature, length) for text in texts]
        judged = sum(len(answer["right"]) for answer in answers)
        return {
            "pair": self.name,
            "domain": domain,
            "temperature": temperature,
            "positions": judged,
            "acceptance": round(sum(a["right"].count("1") for a in answers) / judged, 4),
            "answers": answers,
        }

    def _answer(self, text: str, temperature: float, length: int) -> dict[str, Any]:
        sampling = Sampling(temperature=temperature, seed=SEED)
        prompt = self.tokenizer.encode_prompt(text)
        usable = min(self.tokenizer.size, self.target.row_width, self.drafter.row_width)
        ids, start = list(prompt), len(prompt)
        row = follow(self.target, ids)[-1]
        while len(ids) < start + length:
            token = choose(row[:usable], sampling, ids, start, usable).id
            if token in self.tokenizer.eos:
                break
            ids.append(token)
            row = self.target.feed([token])[-1]
        rows = follow(self.drafter, ids[:-1], rows=len(ids) - start)
        right, second, confidence, lead, rank = [], [], [], [], []
        for i, row in enumerate(rows, start):
            guess = propose(row[:usable], sampling, ids[:i], start, usable)
            right.append("01"[guess.id == ids[i]])
            second.append("01"[guess.second == ids[i]])
            lead.append(round(min(99.0, guess.lead), 3))
            confidence.append(round(float(guess.confidence), 3))
            rank.append(int((row[:usable] > row[ids[i]]).sum()))
        numbers: dict[int, int] = {}
        small = [numbers.setdefault(token, len(numbers)) for token in ids]
        return {
            "prompt": small[:start],
            "tokens": small[start:],
            "right": "".join(right),
            "second": "".join(second),
            "confidence": confidence,
            "lead": lead,
            "rank": rank,
        }


def load(name: str) -> Record:
    """A record by the name of its file, without the ending.

    Raises:
        SettingError: there is none of that name.
    """
    if name not in names():
        raise SettingError(f"no record {name!r}; there are {', '.join(names())}")
    text = (files("outrider.benchmarks") / "records" / f"{name}.json").read_text("utf-8")
    lines = [
        Line(
            prompt=tuple(answer["prompt"]),
            tokens=tuple(answer["tokens"]),
            right=tuple(flag == "1" for flag in answer["right"]),
            second=tuple(flag == "1" for flag in answer["second"]),
            confidence=tuple(answer["confidence"]),
            lead=tuple(answer["lead"]),
        )
        for answer in json.loads(text)["answers"]
    ]
    return Record(name, tuple(lines))


def names() -> list[str]:
    """The records that there are."""
    folder = files("outrider.benchmarks") / "records"
    files_here = (f.name for f in folder.iterdir() if f.name.endswith(".json"))
    return sorted(name[:-5] for name in files_here if not name.startswith("wire-"))


def embedded() -> Pair:
    """The pair that comes with the project."""
    target = load_lm(models() / "target", "llama").lm
    return Pair(
        "embedded",
        target,
        load_lm(models() / "drafter").lm,
        load_tokenizer(models() / "drafter"),
    )


def qwen() -> Pair:
    """Qwen2.5-Coder 1.5B and 0.5B; needs both files on this machine."""
    drafter, target = resolve("qwen2.5-coder", "drafter"), resolve("qwen2.5-coder", "target")
    return Pair(
        "qwen2.5-coder",
        load_lm(target, n_ctx=1024).lm,
        load_lm(drafter, n_ctx=1024).lm,
        load_tokenizer(target),
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pair", choices=("embedded", "qwen"))
    parser.add_argument("--tokens", type=int, default=96, help="tokens an answer")
    parser.add_argument("--prompts", type=int, default=3, help="answers a record")
    parser.add_argument("--out", type=Path, default=Path(str(files("outrider.benchmarks"))))
    args = parser.parse_args()
    pair = qwen() if args.pair == "qwen" else embedded()
    texts = QWEN_PROMPTS if args.pair == "qwen" else {d: tuple(prompts(d)) for d in DOMAINS}
    for domain, all_texts in texts.items():
        for temperature in (0.0, 1.0):
            found = pair.record(domain, all_texts[: args.prompts], temperature, args.tokens)
            name = f"{args.pair}-{domain}-t{temperature:g}"
            path = args.out / "records" / f"{name}.json"
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(found, separators=(",", ":")) + "\n")
            print(f"{name}: {found['positions']} positions, accepted {found['acceptance']:.3f}")


if __name__ == "__main__":
    main()
