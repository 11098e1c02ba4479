"""The table in virtual time: strategies on links on machines, some processes at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

from outrider.benchmarks import record
from outrider.benchmarks.rows import Setting, row
from outrider.benchmarks.strategies import MACHINES, Machine, Strategy, table
from outrider.benchmarks.virtual import Load, run
from outrider.simulator.links import Direction, Link
from outrider.simulator.profiles import PROFILES, link
from outrider.simulator.traced import Record, independent

INDEPENDENT = "independent "

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Place:
    """One cell of the table. ``link`` is a name that :func:`find_link` takes.

    ``weathers``: how often everything is asked, each time with other weather on the link.
    """

    machine: str
    link: str
    record: str
    load: Load = Load()  # noqa: RUF009 - frozen
    weathers: int = 1


WEATHERS = 3
"""Of each row of the tables: a packet lost before a first token, or the best of many, is luck."""


def cells(
    machines: Sequence[str], links: Sequence[str], records: Sequence[str], load: Load
) -> list[Place]:
    """Every combination."""
    return [Place(m, at, r, load, WEATHERS) for m in machines for r in records for at in links]


def rows(places: Sequence[Place], say: Say, workers: int = 0) -> list[dict[str, Any]]:
    """All rows of all cells, in order."""
    workers = workers or min(4, os.cpu_count() or 1)
    found: list[dict[str, Any]] = []
    # Not forked: the caller may have threads.
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        for place, cell in zip(places, pool.map(cell_rows, places), strict=True):
            say(f"virtual, machine {place.machine}, {place.link}, {place.record}")
            found += cell
    return found


def cell_rows(place: Place, strategies: Sequence[Strategy] | None = None) -> list[dict[str, Any]]:
    """The rows of one cell."""
    machine = MACHINES[place.machine]
    found = find_record(place.record)
    return [one(strategy, machine, found, place) for strategy in strategies or table(machine)]


def one(strategy: Strategy, machine: Machine, found: Record, place: Place) -> dict[str, Any]:
    """One row, of the answers in all weathers."""
    answers = [
        answer
        for seed in range(1, 1 + place.weathers)
        for answer in run(
            strategy, machine, find_link(place.link, seed), found, place.load, seed=seed
        )
    ]
    recorded = any(line.prompt for line in found.lines)
    prompt = "as recorded" if recorded else place.load.label
    setting = Setting("virtual", place.link, machine, strategy, found.name, prompt)
    return row(setting, answers)


def find_record(name: str) -> Record:
    """A recorded pair by name, or ``independent 0.8``."""
    if name.startswith(INDEPENDENT):
        return independent(float(name.removeprefix(INDEPENDENT)))
    return record.load(name)


def find_link(name: str, seed: int) -> Link:
    """A profile, or a made-up link: ``rtt 60`` in ms without a limit, ``up 24`` in kbit/s."""
    if name in PROFILES:
        return link(name, seed)
    kind, _, value = name.partition(" ")
    rtt = float(value) / 1e3 if kind == "rtt" else SWEEP_RTT
    rate = float(value) * 1e3 / 8 if kind == "up" else None
    return Link(name=name, up=Direction(rate=rate, delay=rtt / 2), down=Direction(delay=rtt / 2))


SWEEP_RTT = 0.06
"""Round trip of the bandwidth sweep, in seconds."""
