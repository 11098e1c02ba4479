"""What the rows of the placement experiment say: reductions with intervals, ranks, trades."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any, Literal

from outrider.cloud_server.placement import association
from outrider.cloud_server.placement.association import BASELINES
from outrider.simulator.cell.experiment import THRIFTS, Row, interval, reduction
from outrider.simulator.cell.model import Settings

Delay = Literal["latency", "streamed"]
At = tuple[int, int, int]
"""Devices, servers, seed."""

TRADE = (60, 8)
"""Devices and servers of the trade of energy for latency."""

GREEDY = ("greedy", "optimised")
OURS = (association.DEFAULT, "optimised")


def result(rows: list[Row], points: Iterable[tuple[int, int]]) -> dict[str, Any]:
    """All that the rows say. A reduction is taken at one point and seed, then averaged; half of
    its 95% interval is over these."""
    wanted = set(points)
    usual = Settings().thrift
    mine = [r for r in rows if (r.devices, r.servers) in wanted and r.thrift == usual]
    return (
        _headline(mine)
        | {f"{key}_streamed": value for key, value in _headline(mine, "streamed").items()}
        | {
            "ranking": _ranking(mine),
            "learned_reduction_vs_greedy": {
                name: _against(mine, (name, kind), GREEDY)
                for name, kind in _kinds(mine)
                if kind == "learned"
            },
            "thrift": _thrift(rows),
            "rows": _table(rows),
        }
    )


def _headline(rows: list[Row], delay: Delay = "latency") -> dict[str, Any]:
    kinds = _kinds(rows)
    best = min(
        (GREEDY, ("max-sinr", "optimised")),
        key=lambda kind: statistics.mean(_of(rows, kind, delay).values()),
    )
    by_point = _by_point(rows, OURS, delay)
    found = {
        "reduction_mean": statistics.mean(by_point.values()),
        "reduction_interval": interval(_mean_reductions(rows, OURS, delay).values())[1],
        "reduction_best": max(by_point.values()),
        "reduction_vs_greedy_mean": _against(rows, OURS, GREEDY, delay)[0],
        "reduction_vs_greedy_interval": _against(rows, OURS, GREEDY, delay)[1],
        "reduction_vs_best_baseline_mean": _against(rows, OURS, best, delay)[0],
        "best_baseline": f"{best[0]} with optimised shares",
        "reductions": {
            f"{name}, {kind}": _against(rows, OURS, (name, kind), delay)
            for name, kind in kinds
            if (name, kind) != OURS
        },
    }
    for kind in (("tma", "equal"), ("tma-masac", "learned"), ("hybrid-masac", "learned")):
        if kind in kinds:
            against = {
                f"{name}, equal": _against(rows, kind, (name, "equal"), delay) for name in BASELINES
            }
            found[f"reduction_of_{kind[0]}_{kind[1]}"] = {
                "mean": interval(_mean_reductions(rows, kind, delay).values()),
                "best": max(_by_point(rows, kind, delay).values()),
                **against,
            }
    return found


def verdict(gains: dict[str, tuple[float, float]]) -> str:
    """The sentence on learning, from reductions against greedy with their intervals."""
    better = [name for name, (mean, wide) in gains.items() if mean - wide > 0]
    if not better:
        return "learning does not beat greedy association with optimised shares"
    return f"{', '.join(better)} beats greedy association with optimised shares"


def _kinds(rows: list[Row]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((row.policy, row.shares) for row in rows))


def _of(rows: list[Row], kind: tuple[str, str], delay: Delay = "latency") -> dict[At, float]:
    return {
        (row.devices, row.servers, row.seed): float(getattr(row, delay))
        for row in rows
        if (row.policy, row.shares) == kind
    }


def _against(
    rows: list[Row], kind: tuple[str, str], other: tuple[str, str], delay: Delay = "latency"
) -> tuple[float, float]:
    one, two = _of(rows, kind, delay), _of(rows, other, delay)
    return interval(reduction(one[at], two[at]) for at in one if at in two)


def _mean_reductions(rows: list[Row], kind: tuple[str, str], delay: Delay) -> dict[At, float]:
    """At each point and seed, the mean reduction against the paper's three, with equal shares."""
    ours = _of(rows, kind, delay)
    others = [_of(rows, (name, "equal"), delay) for name in BASELINES]
    return {at: statistics.mean(reduction(ours[at], other[at]) for other in others) for at in ours}


def _by_point(rows: list[Row], kind: tuple[str, str], delay: Delay) -> dict[tuple[int, int], float]:
    found: dict[tuple[int, int], list[float]] = {}
    for at, value in _mean_reductions(rows, kind, delay).items():
        found.setdefault(at[:2], []).append(value)
    return {point: statistics.mean(values) for point, values in found.items()}


def _ranking(rows: list[Row]) -> list[dict[str, Any]]:
    """Policies by both delays, each over greedy's with optimised shares at its point and seed."""
    kinds: list[tuple[str, str]] = _kinds(rows)
    delays: tuple[Delay, ...] = ("latency", "streamed")
    over: dict[Delay, dict[tuple[str, str], float]] = {}
    for delay in delays:
        greedy = _of(rows, GREEDY, delay)
        over[delay] = {
            kind: statistics.mean(
                value / greedy[at] for at, value in _of(rows, kind, delay).items()
            )
            for kind in kinds
        }
    ranks = {delay: sorted(kinds, key=lambda kind: over[delay][kind]) for delay in delays}
    return [
        {"policy": kind[0], "shares": kind[1]}
        | {delay: over[delay][kind] for delay in delays}
        | {f"{delay}_rank": ranks[delay].index(kind) + 1 for delay in delays}
        for kind in ranks["latency"]
    ]


def _table(rows: list[Row]) -> list[dict[str, Any]]:
    """Means over seeds, by policy, shares and point."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        at = (row.policy, row.shares, row.devices, row.servers, row.thrift)
        groups.setdefault(at, []).append(row)
    table = []
    for (name, kind, devices, servers, weight), found in groups.items():
        latency, wide = interval(row.latency for row in found)
        streamed, streamed_wide = interval(row.streamed for row in found)
        table.append(
            {
                "policy": name,
                "shares": kind,
                "devices": devices,
                "servers": servers,
                "thrift": weight,
                "latency_s": latency,
                "latency_interval_s": wide,
                "streamed_s": streamed,
                "streamed_interval_s": streamed_wide,
                "cost": statistics.mean(row.cost for row in found),
                "energy_j": statistics.mean(row.energy for row in found),
                "seeds": len(found),
            }
        )
    return table


def _thrift(rows: list[Row]) -> list[dict[str, Any]]:
    """Latency and energy of the default policy by the weight of energy; ``over_first``: over the
    same seed's at the least weight."""
    keys = {
        "latency": "latency",
        "energy": "energy",
        "energy_low_battery": "low",
        "energy_high_battery": "high",
    }
    mine = [
        row
        for row in rows
        if (row.policy, row.shares) == OURS and (row.devices, row.servers) == TRADE
    ]
    first = {row.seed: row for row in mine if row.thrift == THRIFTS[0]}
    table = []
    for weight in THRIFTS:
        found = [row for row in mine if row.thrift == weight]
        line = {"thrift": weight}
        for name, key in keys.items():
            line[name], line[f"{name}_interval"] = interval(getattr(row, key) for row in found)
            line[f"{name}_over_first"], line[f"{name}_over_first_interval"] = interval(
                getattr(row, key) / getattr(first[row.seed], key) for row in found
            )
        table.append(line)
    return table
