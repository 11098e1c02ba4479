"""What is measured of a strategy, the same in virtual time and on sockets, and what is made of it.

Times are those at which tokens reach the user, in seconds. The *rate* of an answer counts from its
first commit to its last; the time to first token is given apart.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from outrider.benchmarks.strategies import Machine, Strategy

EIGHT = 8
"""Tokens in a row whose time is looked at: what a reader notices, not a single gap."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One counted answer: when it was asked, when each token came, and what it took."""

    asked: float
    times: tuple[float, ...]
    passes: int
    bytes_up: int
    bytes_down: int
    exact: bool


@dataclass(frozen=True, slots=True)
class Setting:
    """What a row is a row of. ``way``: ``virtual`` or ``socket``; ``paced``: models slowed down to
    stated speeds."""

    way: str
    link: str
    machine: Machine
    strategy: Strategy
    record: str
    prompt: str
    paced: bool = True


def row(
    setting: Setting, answers: Sequence[Answer], probes: Sequence[Answer] = ()
) -> dict[str, Any]:
    """One row of the table, ready for JSON; ``probes`` count for the first token alone."""
    tokens = sum(len(answer.times) for answer in answers)
    eights = [b - a for x in answers for a, b in zip(x.times, x.times[EIGHT:], strict=False)]
    gaps = [b - a for x in answers for a, b in pairwise(x.times)]
    strategy = setting.strategy
    return {
        "way": setting.way,
        "link": setting.link,
        "machine": setting.machine.name,
        "strategy": strategy.name,
        "group": strategy.group,
        "objective": strategy.objective,
        "drafters": strategy.drafters,
        "record": setting.record,
        "prompt": setting.prompt,
        "paced": setting.paced,
        "tokens": tokens,
        "tokens_per_second": rate(answers),
        "ttft_s": statistics.mean(x.times[0] - x.asked for x in answers),
        "eight_tokens_p95_s": quantile(eights, 0.95),
        "gap_p95_s": quantile(gaps, 0.95),
        "bytes_up_per_token": sum(x.bytes_up for x in answers) / tokens,
        "bytes_down_per_token": sum(x.bytes_down for x in answers) / tokens,
        "target_passes_per_token": sum(x.passes for x in answers) / tokens,
        "exact": all(x.exact for x in (*answers, *probes)),
    }


def rate(answers: Sequence[Answer]) -> float:
    """Tokens a second from the first commit of each answer to its last."""
    tokens = sum(sum(t > x.times[0] for t in x.times) for x in answers)
    return tokens / sum(x.times[-1] - x.times[0] for x in answers)


def quantile(values: Iterable[float], level: float) -> float:
    """The smallest value that is not under ``level`` of them; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(level * len(ordered)))] if ordered else 0.0


# --- what the tables say ----------------------------------------------------------------------

SIX = ("loopback", "lan", "wifi", "5g", "starlink", "lte")
"""The links over which means are taken."""

FOUR = SIX[:4]
"""Those where sparing passes must not cost much."""

COST = ("adaptive", "cost")


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures of a table. See ``docs/benchmarks.md`` for their definitions."""
    places = {(r["machine"], r["link"], r["record"], r["prompt"]): True for r in rows}
    cells = [Cell([r for r in rows if _place(r) == place]) for place in places]
    six = [c for c in cells if c.machine == "a" and c.link in SIX]
    return {
        "adaptive_over_best_min": min(c.adaptive_over_best for c in cells),
        **_means(six),
        "latency_regression_max": max(c.latency_regression for c in cells),
        "gap_ratio_max": max(c.gap_ratio for c in cells),
        **_own(cells),
        **_cost([c for c in cells if c.machine == "a" and c.link in FOUR]),
        "min_tokens": min(r["tokens"] for r in rows),
        "all_exact": all(r["exact"] for r in rows),
        "links_of_the_means": [c.link for c in six],
    }


def _means(six: Sequence[Cell]) -> dict[str, float]:
    """Over class (a) on the six links, as far as they were measured; nothing of none."""
    if not six:
        return {}
    return {
        "streaming_over_lockstep_mean": statistics.mean(c.over("lockstep") for c in six),
        "streaming_over_best_baseline_mean": statistics.mean(
            c.over("lockstep", "cloud") for c in six
        ),
    }


def _own(cells: Sequence[Cell]) -> dict[str, float]:
    """A verifier with a drafter of its own: against co-located speculation, and p95 of a single gap
    against plain cloud streaming, at worst."""
    pairs = [(c, r) for c in cells for r in c.rows if r["group"] == "own"]
    fair = [(c, r) for c, r in pairs if any(x["group"] == "co-located" for x in c.rows)]
    found = {}
    if pairs:
        found["own_gap_ratio_max"] = max(c.gap(r) for c, r in pairs)
    if fair:
        found["own_over_co_located_min"] = min(
            c.best("own")["tokens_per_second"] / c.best("co-located")["tokens_per_second"]
            for c, _ in fair
        )
    return found


def _cost(cells: Sequence[Cell]) -> dict[str, float]:
    """What the objective ``cost`` spends and gives up, where it was measured."""
    pairs = [(c, r) for c in cells for r in c.rows if (r["group"], r["objective"]) == COST]
    if not pairs:
        return {}
    return {
        "cost_passes_per_token_max": max(r["target_passes_per_token"] for _, r in pairs),
        "cost_over_lockstep_min": min(
            r["tokens_per_second"] / c.best("lockstep")["tokens_per_second"] for c, r in pairs
        ),
    }


def _place(r: dict[str, Any]) -> tuple[str, str, str, str]:
    return r["machine"], r["link"], r["record"], r["prompt"]


class Cell:
    """The rows of one machine on one link: what can be compared with each other."""

    def __init__(self, rows: Sequence[dict[str, Any]]) -> None:
        self.rows = rows
        self.machine, self.link = rows[0]["machine"], rows[0]["link"]
        self.adaptive = next(
            r for r in rows if r["group"] == "adaptive" and r["objective"] == "latency"
        )
        self.cloud = next(r for r in rows if r["strategy"] == "cloud")

    def best(self, *groups: str) -> dict[str, Any]:
        """The fastest row of these groups."""
        rows = [r for r in self.rows if r["group"] in groups]
        return max(rows, key=lambda r: float(r["tokens_per_second"]))

    def over(self, *groups: str) -> float:
        """The adaptive row's rate (objective latency) over the best of these groups'."""
        return float(self.adaptive["tokens_per_second"] / self.best(*groups)["tokens_per_second"])

    @property
    def adaptive_over_best(self) -> float:
        """Against every other row with the same models in the same places."""
        return self.over("cloud", "lockstep", "published", "streaming")

    @property
    def latency_regression(self) -> float:
        """By what share the first token, or eight in a row, are later than without drafts."""
        ratios = (self.adaptive[k] / self.cloud[k] for k in ("ttft_s", "eight_tokens_p95_s"))
        return float(max(ratios) - 1)

    @property
    def gap_ratio(self) -> float:
        """Of the adaptive row; see :meth:`gap`."""
        return self.gap(self.adaptive)

    def gap(self, row: dict[str, Any]) -> float:
        """p95 of a single gap against that without drafts."""
        return float(row["gap_p95_s"] / self.cloud["gap_p95_s"])
