"""Real models slowed down to a stated speed. Every figure made with one is labelled *paced*."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from outrider.cloud_server.targets.base import Decided, Row, Target


class PacedTarget(Target):
    """A target each of whose passes lasts at least ``step`` seconds, whatever it really took.

    ``report(seconds, rows)`` is told each pass's length, pacing included.
    """

    def __init__(
        self,
        inner: Target,
        step: float,
        report: Callable[[float, Sequence[Row]], None] | None = None,
    ) -> None:
        self.inner = inner
        self.info = inner.info
        self.step = step
        self._report = report

    def forward(self, rows: Sequence[Row]) -> list[Decided]:
        """The inner target's decisions, not earlier than ``step`` seconds from now."""
        started = time.perf_counter()
        decided = self.inner.forward(rows)
        left = self.step - (time.perf_counter() - started)
        if left > 0:
            time.sleep(left)
        if self._report is not None:
            self._report(time.perf_counter() - started, rows)
        return decided

    def score(self, row: Row, candidates: Sequence[int]) -> list[tuple[float, float]]:
        """As the inner target, unpaced: audits are not timed."""
        return self.inner.score(row, candidates)

    def close(self) -> None:
        """Free the inner target."""
        self.inner.close()
