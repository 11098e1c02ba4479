"""``outrider bench links``: strategies on links, in virtual time and over real sockets."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from outrider.benchmarks import sockets
from outrider.benchmarks.rows import summary
from outrider.benchmarks.sim import CODE
from outrider.benchmarks.strategies import ADAPTIVE, CLOUD, MACHINES, lockstep, table
from outrider.benchmarks.table import Say, cells, rows
from outrider.benchmarks.virtual import Load
from outrider.simulator.profiles import PROFILES

QUICK_LINKS = ("loopback", "lte")
QUICK_STRATEGIES = (CLOUD, lockstep(1), lockstep(4), lockstep(8), ADAPTIVE)
TEMPERATURE = 1.0


async def links(say: Say, *, quick: bool, workers: int = 0) -> dict[str, Any]:
    """Measure; the JSON object of the command. The first summary is of the socket rows."""
    virtual = rows(cells("abc", list(PROFILES), [CODE], Load()), say, workers)
    if not quick:
        virtual += rows(cells("abc", list(PROFILES), ["independent 0.8"], Load()), say, workers)
    load = sockets.asked(2 if quick else 6, 110, TEMPERATURE)
    machine = MACHINES["a"]
    chosen = QUICK_STRATEGIES if quick else table(machine)
    places = QUICK_LINKS if quick else tuple(PROFILES)
    real = await sockets.rows(
        machine, places, [s for s in chosen if s.group != "co-located"], load, say
    )
    return {
        "rows": [*real, *virtual],
        "summary": summary(real),
        "virtual_summary": summary(virtual),
    }


def show(result: dict[str, Any], console: Console) -> None:
    """The rows as one table a machine and way: rates by strategy and link."""
    rows_ = result["rows"]
    tables = dict.fromkeys((r["way"], r["machine"], r["record"]) for r in rows_)
    for key in tables:
        part = [r for r in rows_ if (r["way"], r["machine"], r["record"]) == key]
        names = list(dict.fromkeys(r["link"] for r in part))
        table_ = Table(title=f"tokens a second, paced: {key[0]}, machine {key[1]}, {key[2]}")
        for column in ("strategy", *names):
            table_.add_column(column, justify="left" if column == "strategy" else "right")
        for strategy in dict.fromkeys(r["strategy"] for r in part):
            rates = {r["link"]: r["tokens_per_second"] for r in part if r["strategy"] == strategy}
            cells_ = (f"{rates[name]:.1f}" if name in rates else "" for name in names)
            table_.add_row(strategy, *cells_)
        console.print(table_)
    console.print_json(
        data={"sockets": result["summary"], "virtual time": result["virtual_summary"]}
    )
