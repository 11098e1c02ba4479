"""One GPU, at most eight minutes: what a step costs beside the roofline, and whether it is exact.

    python scripts/gpu_bench.py [--json FILE] [--seconds 480]

A model of the shape of Llama-3-8B with random bfloat16 weights (nothing is downloaded) judges
batches of 1 to 64 rows of 1 to 16 tokens after 512 to 8192 ids. The roofline of a step is the
larger of the time to read the weights and the time for the multiplications, plus the time to read
keys and values; rates are measured on the machine itself, by a large copy and a large matrix
product. Before that the exactness tests: batched against one row at a time, in float32 and
bfloat16.

On a machine without a GPU `--device cpu --shape toy --seconds 20` runs the same code on a small
shape, which shows that the script works and nothing else.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from outrider.cloud_server.targets.base import Row
from outrider.cloud_server.targets.hf_load import Opened
from outrider.cloud_server.targets.hf_target import HfTarget
from outrider.cloud_server.targets.oracle import OracleTarget
from outrider.cloud_server.targets.transformers import TransformersTarget
from outrider.protocol.decoding.sampling import Sampling

SHAPES: dict[str, dict[str, Any]] = {
    "llama-8b": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 16384,
    },
    "toy": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 128,
        "max_position_embeddings": 16384,
    },
}
SMALL = SHAPES["toy"] | {"initializer_range": 0.4}
CONTEXTS = (2048, 512, 8192)
BATCHES = (32, 8, 1, 64, 16, 4, 2)
WIDTHS = (8, 4, 1, 16, 2)
REPEATS = 10
WARM = 5
"""Passes before the clock runs: a shape is recorded as a graph at the third."""


@dataclass(frozen=True)
class Rates:
    """Bytes and multiply-adds (two operations each) a second, as measured here."""

    bytes: float
    flops: float


@dataclass(frozen=True)
class Cell:
    """One shape of a step: medians in milliseconds, and how often the roofline it took."""

    context: int
    batch: int
    width: int
    step_ms: float
    decided_ms: float
    roofline_ms: float
    over_roofline: float
    over_bandwidth: float


def build(shape: dict[str, Any], dtype: torch.dtype, device: torch.device) -> Any:
    """A model with random weights, made where it will be."""
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    try:
        with device:
            return LlamaForCausalLM(LlamaConfig(**shape)).eval()
    finally:
        torch.set_default_dtype(torch.float32)


def wrap(kind: type[HfTarget], model: Any, *, slots: int, n_ctx: int) -> HfTarget:
    """A target around it, without files."""
    opened = Opened(model, "random weights", model.device, None, "random", frozenset(), None, n_ctx)
    dtype = str(model.dtype).removeprefix("torch.")
    return kind(opened, dtype=dtype, slots=slots)


def sync(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure_rates(device: torch.device, dtype: torch.dtype) -> Rates:
    """A large copy reads and writes; a large product of matrices multiplies."""
    size = 1 << (30 if device.type == "cuda" else 24)
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    sink = torch.empty_like(source)
    side = 8192 if device.type == "cuda" else 256
    a = torch.randn(side, side, device=device).to(dtype)
    copying = timed(lambda: sink.copy_(source), device)
    multiplying = timed(lambda: a @ a, device)
    return Rates(2 * size / copying, 2 * side**3 / multiplying)


def timed(work: Any, device: torch.device, repeats: int = REPEATS, warm: int = WARM) -> float:
    """Median seconds."""
    for _ in range(warm):
        work()
    spent = []
    for _ in range(repeats):
        sync(device)
        start = time.perf_counter()
        work()
        sync(device)
        spent.append(time.perf_counter() - start)
    return statistics.median(spent)


class Costs:
    """Bytes and operations of a step, counted from the model."""

    def __init__(self, model: Any, rates: Rates) -> None:
        config, size = model.config, next(model.parameters()).element_size()
        embedding = model.get_input_embeddings().weight.numel()
        self._weights: int = sum(p.numel() for p in model.parameters()) - embedding
        self._kv: int = 2 * config.num_hidden_layers * config.num_key_value_heads
        self._kv *= config.head_dim * size
        self._attention: int = 4 * config.num_hidden_layers * config.num_attention_heads
        self._attention *= config.head_dim
        self._size, self._rates = size, rates

    def bandwidth(self, batch: int, context: int) -> float:
        """Seconds to read the weights once and every row's keys and values."""
        return (self._weights * self._size + batch * context * self._kv) / self._rates.bytes

    def roofline(self, batch: int, width: int, context: int) -> float:
        """Seconds: the larger of weights and multiplications, plus keys and values."""
        tokens = batch * width
        flops = tokens * (2 * self._weights + self._attention * context)
        reading = batch * context * self._kv / self._rates.bytes
        return (
            max(self._weights * self._size / self._rates.bytes, flops / self._rates.flops) + reading
        )


def fill(target: TransformersTarget, context: int) -> None:
    """Every slot holds ``context`` ids of noise, which costs a step as much as sense would."""
    target.forward([Row(0, 0, [1, 2, 3], 1, Sampling(), 1)])
    with torch.inference_mode():
        for layer in target._memory.layers:
            layer.keys.normal_()
            layer.values.normal_()
    target._lengths = [context] * target.info.slots


def rows(batch: int, width: int, context: int, vocabulary: int) -> list[Row]:
    ids = [7 + i % (vocabulary - 8) for i in range(context + width)]
    return [Row(slot, context, ids, width, Sampling(), 1) for slot in range(batch)]


def grid(model: Any, costs: Costs, device: torch.device, until: float) -> list[Cell]:
    """The most telling shapes first, until the time is up."""
    cells: list[Cell] = []
    for context in CONTEXTS:
        slots = _fitting(costs, context, device)
        target = wrap(TransformersTarget, model, slots=slots, n_ctx=context + 16)
        assert isinstance(target, TransformersTarget)
        fill(target, context)
        for batch in BATCHES:
            for width in WIDTHS:
                if batch > slots or time.monotonic() > until:
                    continue
                work = rows(batch, width, context, model.config.vocab_size)
                step = timed(partial(target._logits, work), device)
                decided = timed(partial(target.forward, work), device, warm=1)
                roofline = costs.roofline(batch, width, context)
                bandwidth = costs.bandwidth(batch, context)
                figures = [step * 1e3, decided * 1e3, roofline * 1e3]
                figures += [step / roofline, step / bandwidth]
                cells.append(Cell(context, batch, width, *(round(x, 3) for x in figures)))
                print(*asdict(cells[-1]).values(), sep="\t", flush=True)
        target.let_go()
    return cells


def _fitting(costs: Costs, context: int, device: torch.device) -> int:
    """How many slots of this context fit beside the weights, at most 64."""
    if device.type != "cuda":
        return max(BATCHES)
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    return max(1, min(max(BATCHES), int(0.8 * free / (costs._kv * (context + 16))) - 1))


def exactness(device: torch.device, dtype: torch.dtype, sessions: int) -> dict[str, Any]:
    """Sessions with drafts that are often wrong, batched, against the oracle alone."""
    torch.backends.cuda.matmul.allow_tf32 = False
    model = build(SMALL, dtype, device)
    chance = random.Random(5)
    prompts = [
        [chance.randrange(3, 128) for _ in range(chance.randint(2, 60))] for _ in range(sessions)
    ]
    oracle = wrap(OracleTarget, model, slots=1, n_ctx=256)
    truth = [_alone(oracle, prompt, 24) for prompt in prompts]
    target = wrap(TransformersTarget, model, slots=sessions, n_ctx=256)
    said = _drafted(target, prompts, truth, chance)
    assert isinstance(target, TransformersTarget)
    target.let_go()
    oracle = wrap(OracleTarget, model, slots=1, n_ctx=256)
    ties = worst = 0.0
    for prompt, text in zip(prompts, said, strict=True):
        for i, token in enumerate(text):
            ids = [*prompt, *text[:i]]
            cut = len(ids) - 1 if i else 0
            ((best, mine),) = oracle.score(Row(0, cut, ids, 1, Sampling(), 1), [token])
            ties += best > mine
            worst = max(worst, best - mine)
    tokens = sum(map(len, said))
    return {"identical": said == truth, "near_ties": int(ties), "tokens": tokens, "worst": worst}


def _alone(oracle: HfTarget, prompt: list[int], tokens: int) -> list[int]:
    ids, cut = list(prompt), 0
    for _ in range(tokens):
        (decided,) = oracle.forward([Row(0, cut, ids, 1, Sampling(), 1)])
        cut = len(ids)
        ids.append(decided.ids[0])
    return ids[len(prompt) :]


def _drafted(
    target: HfTarget, prompts: list[list[int]], truth: list[list[int]], chance: random.Random
) -> list[list[int]]:
    """All sessions at once, each with its own drafts and rollbacks, some idle at times."""
    texts, cuts = [list(p) for p in prompts], [0] * len(prompts)
    while True:
        left = [s for s, p in enumerate(prompts) if len(texts[s]) < len(p) + len(truth[s])]
        if not left:
            return [t[len(p) : len(p) + 24] for t, p in zip(texts, prompts, strict=True)]
        work = []
        for s in left:
            done = len(texts[s]) - len(prompts[s])
            chain = truth[s][done : done + chance.choice((0, 1, 4, 7))]
            chain = [t if chance.random() < 0.8 else chance.randrange(3, 128) for t in chain]
            if chance.random() < 0.9 or len(left) == 1:
                ids = [*texts[s], *chain]
                work.append(
                    Row(s, min(cuts[s], len(texts[s]) - 1), ids, len(chain) + 1, Sampling(), 1)
                )
        for row, decided in zip(work, target.forward(work), strict=True):
            s = row.slot
            chain, kept = list(row.ids[len(texts[s]) :]), 0
            while kept < len(chain) and chain[kept] == decided.ids[kept]:
                kept += 1
            cuts[s] = len(texts[s]) + kept
            texts[s] += decided.ids[: kept + 1]


def goals(cells: list[Cell]) -> dict[str, float | None]:
    """The two figures that are aimed at: at most 1.5 and at most 1.3."""
    at = {(c.context, c.batch, c.width): c for c in cells}
    wide, narrow = at.get((2048, 32, 8)), at.get((2048, 8, 4))
    return {
        "over_roofline_32x8_2048": wide.over_roofline if wide else None,
        "over_bandwidth_8x4_2048": narrow.over_bandwidth if narrow else None,
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shape", choices=SHAPES, default="llama-8b")
    parser.add_argument("--seconds", type=float, default=480.0)
    parser.add_argument("--sessions", type=int, default=33, help="of the exactness tests")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    if asked.device != "cpu" and not torch.cuda.is_available():
        print("no CUDA GPU here; --device cpu --shape toy tries the script out", file=sys.stderr)
        return 1
    device, began = torch.device(asked.device), time.monotonic()
    if device.type == "cpu":
        torch.set_num_threads(1)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    exact = {
        kind: exactness(device, getattr(torch, kind), asked.sessions)
        for kind in ("float32", "bfloat16")
    }
    print(json.dumps(exact, indent=1), flush=True)
    rates = measure_rates(device, torch.bfloat16)
    model = build(SHAPES[asked.shape], torch.bfloat16, device)
    costs = Costs(model, rates)
    print(*Cell.__dataclass_fields__, sep="\t")
    cells = grid(model, costs, device, began + 0.9 * asked.seconds)
    memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    result = {
        "device": name,
        "shape": asked.shape,
        "rates": asdict(rates),
        "exact": exact,
        "goals": goals(cells),
        "memory_bytes": memory,
        "grid": [asdict(cell) for cell in cells],
        "seconds": round(time.monotonic() - began, 1),
    }
    print(json.dumps({key: value for key, value in result.items() if key != "grid"}, indent=1))
    if asked.json:
        asked.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if exact["float32"]["identical"] else 1


if __name__ == "__main__":
    sys.exit(main())
