"""Sweeps in virtual time: over the round trip and over the uplink's rate, and where things cross.

Class (a) on plain links: constant delay, no jitter, no loss. A break-even is where the rate of our
streaming crosses that of another strategy, on a line between the two values around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from outrider.benchmarks.table import Place, Say, rows
from outrider.benchmarks.virtual import Load

ROUND_TRIPS = (0.3, 2, 8, 15, 30, 60, 100, 150, 200, 300, 400, 600)
"""Milliseconds."""

RATES = (10, 16, 24, 40, 64, 100, 160, 256, 400, 640, 1000, 2500, 10_000)
"""Kilobits a second up, at :data:`outrider.benchmarks.table.SWEEP_RTT`."""

AGAINST = ("cloud", "lockstep", "co-located")


def sweeps(record: str, say: Say, workers: int = 0) -> dict[str, Any]:
    """Both sweeps: rows with the swept ``value``, and break-even points."""
    found: dict[str, Any] = {}
    for name, values in (("rtt", ROUND_TRIPS), ("up", RATES)):
        places = [Place("a", f"{name} {value}", record, Load()) for value in values]
        part = [{**r, "value": float(r["link"].split()[1])} for r in rows(places, say, workers)]
        found[name] = {"rows": part, "break_even": break_even(part)}
    return found


def break_even(part: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """For each group: where streaming stops being faster than its best row, or starts to be."""
    return {group: _crossing(part, group) for group in AGAINST}


def _crossing(part: Sequence[dict[str, Any]], group: str) -> float | None:
    """The first value where the lead changes sign; None if it never does."""
    values = list(dict.fromkeys(r["value"] for r in part))
    leads = [(v, _lead([r for r in part if r["value"] == v], group)) for v in values]
    for (x, a), (y, b) in pairwise(leads):
        if (a > LEAD) != (b > LEAD):
            return float(x + (y - x) * (a - LEAD) / (a - b))
    return None


LEAD = 1.01
"""One strategy is ahead of another from a lead of one per cent on."""


def _lead(part: Sequence[dict[str, Any]], group: str) -> float:
    """The streaming row's rate over the best of a group's."""
    best = max(r["tokens_per_second"] for r in part if r["group"] == group)
    ours = next(r for r in part if r["group"] == "adaptive" and r["objective"] == "latency")
    return float(ours["tokens_per_second"] / best)
