"""Sweeps in virtual time: over the round trip and over the uplink's rate, and where things cross.

Plain links: constant delay, no jitter, no loss. A break-even is where the rate of our
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
"""What streaming is held against; both plain cloud streaming and that with the look-up are cloud.
"""


MACHINES_SWEPT = ("a", "c")
"""Class (b) never drafts, on no link."""

UNITS = {"rtt": "round trip, ms", "up": "uplink, kbit/s"}
VALUES: dict[str, Sequence[float]] = {"rtt": ROUND_TRIPS, "up": RATES}
SWEEPS = [f"{kind}, machine {machine}" for kind in VALUES for machine in MACHINES_SWEPT]
"""By these names."""


def sweep(name: str, record: str, say: Say, workers: int = 0) -> list[dict[str, Any]]:
    """The rows of one sweep, each with the swept ``value``."""
    kind, _, machine = name.partition(", machine ")
    places = [Place(machine, f"{kind} {value}", record, Load()) for value in VALUES[kind]]
    return [{**r, "value": float(r["link"].split()[1])} for r in rows(places, say, workers)]


def break_even(part: Sequence[dict[str, Any]]) -> dict[str, float | str]:
    """For each group: where streaming stops being faster than its best row, or starts to be;
    ``always`` or ``never`` where it is the faster one all along, or nowhere."""
    return {group: _crossing(part, group) for group in AGAINST}


def _crossing(part: Sequence[dict[str, Any]], group: str) -> float | str:
    """The first value where the lead changes sign."""
    values = list(dict.fromkeys(r["value"] for r in part))
    leads = [(v, _lead([r for r in part if r["value"] == v], group)) for v in values]
    for (x, a), (y, b) in pairwise(leads):
        if (a > LEAD) != (b > LEAD):
            return float(x + (y - x) * (a - LEAD) / (a - b))
    return "always" if leads[0][1] > LEAD else "never"


LEAD = 1.01
"""One strategy is ahead of another from a lead of one per cent on."""


def _lead(part: Sequence[dict[str, Any]], group: str) -> float:
    """The streaming row's rate over the best of a group's."""
    best = max(r["tokens_per_second"] for r in part if r["group"] == group)
    ours = next(r for r in part if r["group"] == "adaptive" and r["objective"] == "latency")
    return float(ours["tokens_per_second"] / best)
