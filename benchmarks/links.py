"""``outrider bench links``: strategies on links, in virtual time and over real sockets.

The whole is a list of pieces (:mod:`outrider.benchmarks.journal`), each a few seconds to a few
minutes long, so that it can be bounded and continued.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from itertools import product
from typing import Any

from rich.console import Console
from rich.table import Table

from outrider.benchmarks import real_links, sockets
from outrider.benchmarks.journal import Journal, Piece, work_off
from outrider.benchmarks.rows import summary
from outrider.benchmarks.sim import CODE
from outrider.benchmarks.strategies import (
    ADAPTIVE,
    BOTH,
    CLOUD,
    MACHINES,
    NGRAM,
    OWN,
    STREAMING,
    Strategy,
    lockstep,
    pearl,
    table,
)
from outrider.benchmarks.sweeps import SWEEPS, break_even, sweep
from outrider.benchmarks.table import Say, cells, rows
from outrider.benchmarks.virtual import Load
from outrider.simulator.profiles import PROFILES

QUICK_LINKS = ("loopback", "lte")
QUICK_STRATEGIES = (CLOUD, NGRAM, lockstep(1), lockstep(4), lockstep(8), ADAPTIVE)

CLASSES = "abc"

ANSWER = 40
"""Tokens of a counted answer on sockets; six of them."""

RECORDS = (CODE, "qwen-code-t0", "qwen-prose-t1", "embedded-source-t1", "independent 0.8")
"""What the tables of the full mode are made with."""

LONG = Load(answers=2, tokens=100, prompt=512), Load(answers=2, tokens=100, prompt=2048)
"""Longer prompts, with independent acceptance."""

CHAT = Load(answers=6, tokens=50, prompt=32, chat=True)

PARTS = ("virtual", "prompts", "sweeps", "sockets", "real")
"""Tables in virtual time; longer prompts and a chat; over round trip and uplink; every link on
sockets; the real pair at its own speed, where it is on this machine."""


async def links(
    say: Say,
    *,
    quick: bool,
    workers: int = 0,
    parts: Sequence[str] = PARTS,
    journal: Journal | None = None,
    minutes: float = 0.0,
) -> dict[str, Any]:
    """Measure; the JSON object of the command. ``summary`` is of the paced socket rows.

    ``minutes``: no piece is begun after so long, 0 is no bound; ``unfinished`` names what is left.
    """
    journal = journal or Journal()
    pieces = _quick(say, workers) if quick else _full(parts, say, workers)
    unfinished = await work_off(pieces, journal, minutes, say)
    done = {piece.name: journal.done.get(piece.name, []) for piece in pieces}
    found = [row for part in done.values() for row in part if "value" not in row]
    real = [r for r in found if r["way"] == "socket" and r["paced"]]
    virtual = [r for r in found if r["way"] == "virtual" and r["record"] == CODE]
    swept = {name: done[name] for name in done if name in SWEEPS}
    every = [s for name in MACHINES for s in table(MACHINES[name])]
    return {
        "rows": sorted(found, key=lambda r: bool(r["way"] == "virtual")),
        "summary": _summary(real),
        "virtual_summary": _summary(virtual),
        "machines": {name: asdict(each) for name, each in MACHINES.items()},
        "deviations": {s.name: s.deviation for s in every if s.deviation},
        "sweeps": {
            name: {"rows": part, "break_even": break_even(part)}
            for name, part in swept.items()
            if part
        },
        "unfinished": unfinished,
    }


def _summary(part: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return summary(part) if part else {}


def _quick(say: Say, workers: int) -> list[Piece]:
    places = cells(CLASSES, list(PROFILES), [CODE], Load())
    return [
        _virtual("virtual", places, say, workers),
        *(_sockets("a", link, QUICK_STRATEGIES, say) for link in QUICK_LINKS),
    ]


def _full(parts: Sequence[str], say: Say, workers: int) -> list[Piece]:
    everywhere = list(PROFILES)
    pieces = []
    if "virtual" in parts:
        for record, name in product(RECORDS, CLASSES):
            places = cells(name, everywhere, [record], Load())
            pieces.append(_virtual(f"virtual, {record}, machine {name}", places, say, workers))
    if "prompts" in parts:
        for load, name in product((*LONG, CHAT), CLASSES):
            places = cells(name, everywhere, ["independent 0.8"], load)
            pieces.append(_virtual(f"virtual, {load.label}, machine {name}", places, say, workers))
    if "sweeps" in parts:
        pieces += [_sweep(name, say, workers) for name in SWEEPS]
    if "sockets" in parts:
        for name, link in product(CLASSES, everywhere):
            pieces.append(_sockets(name, link, socket_strategies(name), say))
    if "real" in parts:
        pieces += [_real(link, say) for link in real_links.LINKS]
    return pieces


def socket_strategies(name: str) -> list[Strategy]:
    """The rows of a class on sockets: the best of each kind, since each takes its time there."""
    machine = MACHINES[name]
    return [
        CLOUD,
        NGRAM,
        *(lockstep(length) for length in (1, 2, 4, 8, 16)),
        pearl(machine),
        STREAMING,
        ADAPTIVE,
        OWN,
        BOTH,
    ]


def _virtual(name: str, places: Any, say: Say, workers: int) -> Piece:
    async def measure() -> list[dict[str, Any]]:
        return await asyncio.to_thread(rows, places, say, workers)

    return Piece(name, measure)


def _sweep(name: str, say: Say, workers: int) -> Piece:
    async def measure() -> list[dict[str, Any]]:
        return await asyncio.to_thread(sweep, name, CODE, say, workers)

    return Piece(name, measure)


_asked = cache(sockets.asked)
"""What the target alone gives takes some seconds, and is the same for all links."""


def _sockets(name: str, link: str, strategies: Sequence[Strategy], say: Say) -> Piece:
    async def measure() -> list[dict[str, Any]]:
        with sockets.embedded_pair(MACHINES[name], _asked(6, ANSWER)) as pair:
            return await sockets.rows(pair, [link], strategies, say)

    return Piece(f"sockets, machine {name}, {link}", measure)


def _real(link: str, say: Say) -> Piece:
    async def measure() -> list[dict[str, Any]]:
        with real_links.real_pair() as pair:
            return await sockets.rows(pair, [link], real_links.STRATEGIES, say)

    return Piece(f"real pair, {link}", measure)


def show(result: dict[str, Any], console: Console) -> None:
    """Tokens a second by strategy and link, one table for each machine, record and prompt."""
    found = result["rows"]
    keys = ("way", "machine", "record", "prompt")
    for key in dict.fromkeys(tuple(r[k] for k in keys) for r in found):
        part = [r for r in found if tuple(r[k] for k in keys) == key]
        names = list(dict.fromkeys(r["link"] for r in part))
        way, machine, record, prompt = key
        paced = "paced" if part[0]["paced"] else "not paced"
        title = f"tokens a second, {paced}: {way}, machine {machine}, {record}; prompt: {prompt}"
        shown = Table(title=title)
        for column in ("strategy", *names):
            shown.add_column(column, justify="left" if column == "strategy" else "right")
        for strategy in dict.fromkeys(r["strategy"] for r in part):
            rates = {r["link"]: r["tokens_per_second"] for r in part if r["strategy"] == strategy}
            texts = (f"{rates[name]:.1f}" if name in rates else "" for name in names)
            shown.add_row(strategy, *texts)
        console.print(shown)
    figures = {"sockets": result["summary"], "virtual time": result["virtual_summary"]}
    for name, value in result.get("sweeps", {}).items():
        figures[f"break-even, {name}"] = value["break_even"]
    console.print_json(data=figures)
