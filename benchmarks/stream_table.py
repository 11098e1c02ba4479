"""The table behind ``simulator/cell/stream.py``: ``python -m outrider.benchmarks.stream_table``.

The adaptive strategy in virtual time, on answers recorded from a real pair (acceptance is measured,
speeds are the axes). Written beside the module that reads it, with what made it. Minutes.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path

from outrider.benchmarks import record, rows, virtual
from outrider.benchmarks.strategies import ADAPTIVE, Machine
from outrider.simulator.cell import stream
from outrider.simulator.links import Direction, Link

RECORDS = {"code": "qwen-code-t1", "summary": "qwen-prose-t0", "chat": "qwen-prose-t1"}
"""The record that stands for each kind of task."""

DRAFT_STEPS = (0.007, 0.01, 0.013)
RTTS = (0.01, 0.03, 0.1)
UPLINKS = (100.0, 1e3, 1e4, 1e5)
PASSES = (0.003, 0.01, 0.03, 0.1, 0.3)
"""Up to the verifier's budget for a step: one token that takes longer than it is judged alone."""
SEED = 1
DOWNLINK = 1e6
"""Bytes a second: the paper has no downlink, so it does not bind."""


def seconds(task: str, draft: float, rtt: float, uplink: float, target_pass: float) -> float:
    """Seconds a token at one point."""
    link = Link(
        name="cell",
        up=Direction(rate=uplink, delay=rtt / 2),
        down=Direction(rate=DOWNLINK, delay=rtt / 2),
    )
    machine = Machine(
        "cell", "", draft, 500.0, target_pass, target_pass, stream.TOKEN * target_pass
    )
    answers = virtual.run(
        ADAPTIVE, machine, link, record.load(RECORDS[task]), virtual.Load(), seed=SEED
    )
    return 1.0 / rows.rate(answers)


def main() -> None:
    """Run the grid and write the file."""
    axes = (DRAFT_STEPS, RTTS, UPLINKS, PASSES)
    points = list(product(RECORDS, *axes))
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        found = list(pool.map(seconds, *zip(*points, strict=True), chunksize=12))
    shape = (len(RECORDS), *map(len, axes))
    whole = {
        "made_by": "python -m outrider.benchmarks.stream_table",
        "strategy": ADAPTIVE.name,
        "seed": SEED,
        "records": RECORDS,
        "token_over_pass": stream.TOKEN,
        "tasks": list(RECORDS),
        "axes": dict(zip(stream.AXES, axes, strict=True)),
        "seconds": _nested([round(value, 6) for value in found], shape),
    }
    path = Path(stream.__file__).with_name("stream_table.json")
    path.write_text(json.dumps(whole, indent=1) + "\n", "utf-8")
    print(path.name, len(points), "points")


def _nested(flat: list[float], shape: tuple[int, ...]) -> list[object]:
    """A flat list as nested ones, the last axis fastest."""
    nested: list[object] = list(flat)
    for size in reversed(shape[1:]):
        nested = [nested[i : i + size] for i in range(0, len(nested), size)]
    return nested


if __name__ == "__main__":
    main()
