"""The decision log: one JSON line a change of plan, for those who want to know why.

A line says what was measured, what was chosen and why, and what came of the choice before it.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, TextIO

from outrider.edge_client.policy import Observed, Plan


class DecisionLog:
    """Writes to an open text file; a full disk switches it off and never disturbs an answer."""

    def __init__(self, out: TextIO) -> None:
        self._out: TextIO | None = out
        self._last: dict[int, tuple[float, int, Plan]] = {}

    def consider(self, now: float, seen: Observed, plan: Plan, reason: str) -> None:
        """A plan was made at ``now`` (seconds); only one that differs from the last is a line."""
        if self._out is None:
            return
        before = self._last.get(seen.session)
        if before is not None and before[2] == plan and seen.emitted >= before[1]:
            return
        line = {
            "time": round(now, 6),
            "session": seen.session,
            "emitted": seen.emitted,
            "measured": _measured(seen),
            "chosen": asdict(plan),
            "reason": reason,
            "before": _came_of(before, now, seen.emitted),
        }
        self._last[seen.session] = (now, seen.emitted, plan)
        try:
            self._out.write(json.dumps(line) + "\n")
            self._out.flush()
        except OSError:
            self._out = None


def _measured(seen: Observed) -> dict[str, Any]:
    """The figures that a policy may have looked at; unknown ones are null."""
    link = seen.link
    return {
        "objective": seen.objective,
        "srtt": link.srtt,
        "rttvar": link.rttvar,
        "min_rtt": link.min_rtt,
        "goodput_up": link.goodput_up,
        "queue": link.queue,
        "target": link.target,
        "load": link.load,
        "acceptance": seen.acceptance,
        "judged": round(seen.judged, 1),
        "draft_step": seen.draft_step,
        "prefill_rate": seen.prefill_rate,
        "behind": seen.behind,
    }


def _came_of(
    before: tuple[float, int, Plan] | None, now: float, emitted: int
) -> dict[str, float | int] | None:
    """Tokens and seconds under the plan before; None for the first of an answer."""
    if before is None or emitted < before[1]:
        return None
    return {"tokens": emitted - before[1], "seconds": round(now - before[0], 6)}
