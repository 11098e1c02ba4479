"""``outrider bench sim``: everything that virtual time can tell: correctness first, then speed."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from outrider.benchmarks.rows import SIX, summary
from outrider.benchmarks.table import Say, cells, rows
from outrider.benchmarks.virtual import Load
from outrider.simulator.profiles import PROFILES
from outrider.simulator.schedule import nasty
from outrider.simulator.verdict import judge_world

CODE = "qwen-code-t1"
"""The record behind the means: a real pair on code, sampled by the coupled rule."""

CHUNK = 50


def sim(
    schedules: int, say: Say, *, first: int = 0, workers: int = 0, record: str = CODE
) -> dict[str, Any]:
    """Run random schedules and the table; the JSON object of the command."""
    workers = workers or min(4, os.cpu_count() or 1)
    wrong = violations(range(first, first + schedules), say, workers)
    found = rows(cells("abc", list(PROFILES), [record], Load()), say, workers)
    figures = summary(found)
    return {
        "schedules": schedules,
        "violations": len(wrong),
        "violating_seeds": {str(seed): what for seed, what in wrong.items()},
        "record": record,
        "links_of_the_means": list(SIX),
        **{name: figures[name] for name in figures if name != "links_of_the_means"},
    }


def violations(seeds: range, say: Say, workers: int) -> dict[int, list[str]]:
    """What went wrong, by seed, in the worlds of these seeds."""
    chunks = [seeds[i : i + CHUNK] for i in range(0, len(seeds), CHUNK)]
    wrong: dict[int, list[str]] = {}
    done = 0
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        for chunk, found in zip(chunks, pool.map(_judge, chunks), strict=True):
            wrong |= found
            done += len(chunk)
            if done % 1000 == 0:
                say(f"{done} schedules, {len(wrong)} with violations")
    return wrong


def _judge(seeds: range) -> dict[int, list[str]]:
    return {seed: found for seed in seeds if (found := judge_world(nasty(seed)))}
