"""``outrider bench links``: strategies on links, in virtual time and over real sockets."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from outrider.benchmarks import sockets
from outrider.benchmarks.rows import summary
from outrider.benchmarks.sim import CODE
from outrider.benchmarks.strategies import ADAPTIVE, CLOUD, MACHINES, NGRAM, lockstep, table
from outrider.benchmarks.sweeps import sweeps
from outrider.benchmarks.table import Say, cells, rows
from outrider.benchmarks.virtual import Load
from outrider.simulator.profiles import PROFILES

QUICK_LINKS = ("loopback", "lte")
QUICK_STRATEGIES = (CLOUD, NGRAM, lockstep(1), lockstep(4), lockstep(8), ADAPTIVE)

ANSWER = 40
"""Tokens of a counted answer on sockets."""

RECORDS = (CODE, "qwen-code-t0", "qwen-prose-t1", "independent 0.8")
"""What the tables of the full mode are made with."""

LONG = Load(answers=2, tokens=100, prompt=512), Load(answers=2, tokens=100, prompt=2048)
"""Longer prompts, with independent acceptance."""

CHAT = Load(answers=6, tokens=50, prompt=32, chat=True)


async def links(say: Say, *, quick: bool, workers: int = 0) -> dict[str, Any]:
    """Measure; the JSON object of the command. ``summary`` is of the socket rows."""
    everywhere = list(PROFILES)
    virtual = rows(cells("abc", everywhere, [CODE] if quick else RECORDS, Load()), say, workers)
    rest: dict[str, Any] = {}
    if not quick:
        for load in (*LONG, CHAT):
            virtual += rows(cells("ab", everywhere, ["independent 0.8"], load), say, workers)
        rest["sweeps"] = sweeps(CODE, say, workers)
    machine = MACHINES["a"]
    real = await sockets.rows(
        machine,
        QUICK_LINKS if quick else everywhere,
        QUICK_STRATEGIES if quick else [s for s in table(machine) if s.group != "co-located"],
        sockets.asked(6 if quick else 12, ANSWER),
        say,
    )
    return {
        "rows": [*real, *virtual],
        "summary": summary(real),
        "virtual_summary": summary([r for r in virtual if r["record"] == CODE]),
        "machines": {name: asdict(found) for name, found in MACHINES.items()},
        "deviations": {s.name: s.deviation for s in table(machine) if s.deviation},
        **rest,
    }


def show(result: dict[str, Any], console: Console) -> None:
    """Tokens a second by strategy and link, one table for each machine, record and prompt."""
    found = result["rows"]
    keys = ("way", "machine", "record", "prompt")
    for key in dict.fromkeys(tuple(r[k] for k in keys) for r in found):
        part = [r for r in found if tuple(r[k] for k in keys) == key]
        names = list(dict.fromkeys(r["link"] for r in part))
        way, machine, record, prompt = key
        title = f"tokens a second, paced: {way}, machine {machine}, {record}; prompt: {prompt}"
        shown = Table(title=title)
        for column in ("strategy", *names):
            shown.add_column(column, justify="left" if column == "strategy" else "right")
        for strategy in dict.fromkeys(r["strategy"] for r in part):
            rates = {r["link"]: r["tokens_per_second"] for r in part if r["strategy"] == strategy}
            texts = (f"{rates[name]:.1f}" if name in rates else "" for name in names)
            shown.add_row(strategy, *texts)
        console.print(shown)
    figures = {"sockets": result["summary"], "virtual time": result["virtual_summary"]}
    for sweep, value in result.get("sweeps", {}).items():
        figures[f"break-even, {sweep}"] = value["break_even"]
    console.print_json(data=figures)
