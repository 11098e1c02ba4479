"""``outrider bench load``: how many clients one verifier serves, in virtual time.

Capacity is the largest number of clients for which all answers but 5 % keep the stated tokens a
second, and 99 % of the gaps between two arrivals of text are shorter than half a second.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

from outrider.benchmarks import record
from outrider.benchmarks.load_bound import bound
from outrider.benchmarks.load_world import (
    CONTEXT,
    DRAFTERS,
    ROUND_TRIP,
    SHAPES,
    Seen,
    Shape,
    measure,
    world,
)
from outrider.cloud_server.scheduling.policies import POLICIES, SchedulerName
from outrider.simulator.traced import Record

GAP = 0.5
RATES = (10, 20, 30, 35)
RECORDS = ("qwen-code-t0", "qwen-prose-t0", "qwen-code-t1", "qwen-prose-t1")
CONTEXTS = (512, 8192, 32_768)
RATIOS = (0.1, 1.0, 3.0)
"""Row cost over token cost; the shapes' own are 0.35 and 3."""

IDLE = 0.05
"""Share of the time that a target may idle and still be what binds."""

OVERLOADED = 90
"""Clients in the comparison of policies: about half as many again as are served well."""

LENGTHS = (256, 256, 256, 1024, 256, 256, 4096, 1024)
"""Ids before the prompts of such clients, in turn."""

Say = Callable[[str], object]
Binds = Literal["memory", "compute", "latency"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One point of the grid. ``axis``: which table it belongs to."""

    axis: str
    shape: str
    drafter: str
    record: str
    rate: int
    context: int = CONTEXT
    ratio: float | None = None

    @property
    def at(self) -> Shape:
        """The shape's costs here."""
        return SHAPES[self.shape].at(self.context, self.ratio)


def cells(quick: bool) -> Iterator[Cell]:
    """The grid, or the few points of it that ``--quick`` measures."""
    if quick:
        for name in ("qwen-code-t0", "qwen-prose-t0"):
            yield Cell("grid", "70b", "jetson", name, 30)
        yield Cell("grid", "70b", "pi", "qwen-code-t0", 30)
        yield Cell("grid", "8b", "jetson", "qwen-code-t0", 35)
        return
    for shape in SHAPES:
        for drafter in DRAFTERS:
            for name in RECORDS:
                for rate in RATES:
                    yield Cell("grid", shape, drafter, name, rate)
    for context in CONTEXTS:
        yield Cell("context", "70b", "jetson", "qwen-code-t0", 30, context=context)
    for ratio in RATIOS:
        yield Cell("ratio", "70b", "jetson", "qwen-code-t0", 30, ratio=ratio)


def load(
    say: Say, *, quick: bool = False, workers: int = 0, keep: Path | None = None
) -> dict[str, Any]:
    """The JSON object of the command.

    ``keep``: a file for the rows, one a line; those in it are not measured again.
    """
    workers = workers or min(4, os.cpu_count() or 1)
    rows, todo = _kept(keep, list(cells(quick)))
    if rows:
        say(f"{len(rows)} points are in {keep} already")
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        for found in pool.map(measured, together(todo)):
            rows += found
            for row in found:
                say(
                    f"{row['shape']}, {row['drafter']}, {row['record']}, {row['rate']} tokens/s: "
                    f"{row['clients']} clients, {row['clients_plain']} without drafts, "
                    f"at most {row['bound']:.0f}; {row['binds']} binds "
                    f"({len(rows)} of {len(rows) + len(todo) - len(found)})"
                )
            todo = todo[len(found) :]
            if keep is not None:
                with keep.open("a") as file:
                    file.writelines(json.dumps(row) + "\n" for row in found)
        compared = dict(pool.map(_overloaded, POLICIES))
    say("a step of 64 sessions, and the embedded target's batched step")
    return {**summary(rows, compared), **_here(), "grid": rows, "overload": compared}


def _kept(keep: Path | None, todo: list[Cell]) -> tuple[list[dict[str, Any]], list[Cell]]:
    """Rows that were measured before, and the cells that are left."""
    if keep is None or not keep.exists():
        return [], todo
    rows = {_cell(row): row for row in map(json.loads, keep.read_text().splitlines())}
    return [rows[cell] for cell in todo if cell in rows], [c for c in todo if c not in rows]


def _cell(row: dict[str, Any]) -> Cell:
    return Cell(**{field.name: row[field.name] for field in fields(Cell)})


def summary(
    rows: Sequence[dict[str, Any]], compared: dict[SchedulerName, dict[str, Any]]
) -> dict[str, Any]:
    """The figures that the issue asks for. A shape's own context and ratio count."""
    named = [row for row in rows if row["axis"] == "grid"]
    fifo, cosine = compared["fifo"], compared["cosine"]
    return {
        "round_trip_ms": ROUND_TRIP * 1e3,
        "clients_ratio_over_bound": min(row["over_bound"] for row in named),
        "clients_ratio_min": min(row["ratio"] for row in rows),
        "clients_ratio_code": _headline(named, "qwen-code-t0"),
        "clients_ratio_prose": _headline(named, "qwen-prose-t0"),
        "cosine_over_fifo_throughput": cosine["tokens_a_second"] / fifo["tokens_a_second"],
        "cosine_over_fifo_p95": cosine["slowness"] / fifo["slowness"],
        "all_exact": all(row["exact"] for row in [*rows, fifo, cosine]),
    }


def _headline(rows: Iterable[dict[str, Any]], name: str) -> float:
    """70B, 30 tokens a second, Jetson."""
    wanted = ("70b", "jetson", name, 30)
    found = (r for r in rows if (r["shape"], r["drafter"], r["record"], r["rate"]) == wanted)
    return float(next(found)["ratio"])


def together(todo: Iterable[Cell]) -> list[list[Cell]]:
    """Cells that differ in the drafter only: plain cloud streaming is the same for them."""
    groups: dict[Cell, list[Cell]] = {}
    for cell in todo:
        groups.setdefault(replace(cell, drafter=""), []).append(cell)
    return list(groups.values())


def measured(group: Sequence[Cell]) -> list[dict[str, Any]]:
    """Capacity of such cells with and without drafts, and the oracle's."""
    cell = group[0]
    found, shape = record.load(cell.record), cell.at
    alone = max(1, int((1 / cell.rate - shape.fixed) / (shape.row + shape.each)))
    plain, _ = capacity(found, shape, cell.rate, None, alone)
    return [_row(cell, found, plain) for cell in group]


def _row(cell: Cell, found: Record, plain: Seen | None) -> dict[str, Any]:
    shape = cell.at
    most = bound(found, shape, cell.rate, DRAFTERS[cell.drafter], GAP)
    best, beyond = capacity(found, shape, cell.rate, cell.drafter, max(1, int(0.88 * most)))
    clients, plainly = best.clients if best else 0, plain.clients if plain else 0
    return {
        **asdict(cell),
        "clients": clients,
        "clients_plain": plainly,
        "bound": most,
        "ratio": clients / plainly if plainly else float(clients >= plainly),
        "over_bound": clients / most if most >= 1 else 1.0,
        "binds": binds(clients, shape, cell.rate, beyond),
        "gap_ms": 1e3 * best.gap if best else 0.0,
        "busy": best.busy if best else 0.0,
        "exact": all(seen.exact for seen in (plain, best, beyond) if seen),
    }


def binds(clients: int, shape: Shape, rate: float, beyond: Seen | None) -> Binds:
    """What keeps one more client out; ``beyond`` is what it would be like with more."""
    if clients >= shape.sessions or beyond is None:
        return "memory"
    if beyond.gap >= GAP and beyond.rate >= rate:
        return "latency"
    return "compute" if beyond.busy >= 1 - IDLE else "latency"


def capacity(
    found: Record, shape: Shape, rate: float, drafter: str | None, guess: int
) -> tuple[Seen | None, Seen | None]:
    """What it is like with the most clients served, and with the fewest that are too many.

    None: not even one is served; all that fit the memory are. Up to fifty clients the number is
    exact, above that to 2 %.
    """
    served: Seen | None = None
    beyond: Seen | None = None
    clients, stride = min(max(1, guess), shape.sessions), max(1, guess // 16)
    while True:
        seen = measure(found, world(found, shape, clients, drafter=drafter))
        if seen.rate >= rate and seen.gap < GAP:
            served = seen
        else:
            beyond = seen
        low = served.clients if served else 0
        high = beyond.clients if beyond else shape.sessions + 1
        if high - low <= max(1, low // 50):
            return served, beyond
        if served and beyond:
            clients = (low + high) // 2
        else:
            clients = clients + stride if served else clients - stride
            stride *= 2
        clients = min(shape.sessions, max(1, clients))


def _overloaded(scheduler: SchedulerName) -> tuple[SchedulerName, dict[str, Any]]:
    """One policy with more clients than it can serve well, code and prose, of different lengths.

    A row costs as if it were as long as the longest in its step.
    """
    mixed = [line for name in RECORDS[:2] for line in record.load(name).lines]
    found, shape = Record("code and prose", tuple(mixed)), SHAPES["70b"]
    flat = Shape(shape.name, shape.fixed, 0.0, shape.each, shape.sessions)
    made = world(
        found,
        flat,
        OVERLOADED,
        scheduler=scheduler,
        prompts=LENGTHS,
        padded=shape.row / CONTEXT,
    )
    return scheduler, asdict(measure(found, made))


def _here() -> dict[str, Any]:
    """What is measured on this machine, not in virtual time."""
    from outrider.benchmarks.batched_step import batched_step

    found = record.load("qwen-code-t0")
    seen = measure(found, world(found, SHAPES["70b"], 64))
    return {
        "scheduler_ms_p50": seen.step_ms,
        "scheduler_wall_ms_p50": seen.step_wall_ms,
        "batched_step_ratio": batched_step().ratio,
    }
