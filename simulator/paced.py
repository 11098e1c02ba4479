"""Real models slowed down to a stated speed. Every figure made with one is labelled *paced*."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from outrider.cloud_server.targets.base import Decided, Row, Target
from outrider.protocol.decoding.processors import F32
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.decoding.sparse import Budget
from outrider.runtime.lm.base import CausalLM
from outrider.runtime.lm.drafter import Drafter, Guess, Standing

T = TypeVar("T")


class PacedTarget(Target):
    """A target each of whose passes lasts at least ``step`` seconds and ``each`` for every token.

    ``report(seconds, rows)`` is told each pass's length, pacing included.
    """

    def __init__(
        self,
        inner: Target,
        step: float,
        report: Callable[[float, Sequence[Row]], None] | None = None,
        *,
        each: float = 0.0,
    ) -> None:
        self.inner = inner
        self.info = inner.info
        self.step, self.each = step, each
        self._report = report

    def forward(self, rows: Sequence[Row]) -> list[Decided]:
        """The inner target's decisions, not earlier than the pace allows."""
        return self._paced(self.inner.forward, rows)

    def logits(self, rows: Sequence[Row]) -> list[F32]:
        """The inner target's logits, not earlier either."""
        return self._paced(self.inner.logits, rows)

    def _paced(self, work: Callable[[Sequence[Row]], T], rows: Sequence[Row]) -> T:
        started = time.perf_counter()
        tokens = sum(len(row.ids) - row.cut for row in rows)
        result = work(rows)
        _sleep_until(started + self.step + self.each * tokens)
        if self._report is not None:
            self._report(time.perf_counter() - started, rows)
        return result

    def score(self, row: Row, candidates: Sequence[int]) -> list[tuple[float, float]]:
        """As the inner target, unpaced: audits are not timed."""
        return self.inner.score(row, candidates)

    def close(self) -> None:
        """Free the inner target."""
        self.inner.close()


class PacedDrafter(Drafter):
    """A drafter that takes ``step`` seconds a guess and reads ``rate`` ids a second, or is slower.

    It sleeps on the drafter's own thread, token by token, so that it can be stopped between two.
    """

    def __init__(
        self, lm: CausalLM, usable: int, eos: frozenset[int], *, step: float, rate: float
    ) -> None:
        super().__init__(lm, usable, eos)
        self.step, self.rate = step, rate

    def prefill(self, ids: Sequence[int], count: int) -> None:
        """As the drafter, not earlier than ``count`` ids take at the stated rate."""
        due = time.perf_counter() + min(count, self.behind(ids)) / self.rate
        super().prefill(ids, count)
        _sleep_until(due)

    def draft(
        self,
        ids: Sequence[int],
        prompt_len: int,
        sampling: Sampling,
        count: int,
        *,
        never: frozenset[int] = frozenset(),
        floor: float = 0.0,
        budget: Budget | None = None,
        stop: Callable[[], bool] = lambda: False,
        standing: Standing | None = None,
    ) -> Guess:
        """As the drafter, each guess not earlier than its turn."""
        began, paced_stop = self._paced(ids, 0, stop)
        guess = super().draft(
            ids, prompt_len, sampling, count, never=never, floor=floor, budget=budget,
            stop=paced_stop, standing=standing,
        )  # fmt: skip
        # After its last guess nobody asks the drafter to stop.
        _sleep_until(began + max(1, len(guess.tokens)) * self.step)
        return guess

    def collaborate(
        self,
        ids: Sequence[int],
        prompt_len: int,
        sampling: Sampling,
        count: int,
        *,
        budget: Budget,
        given: Sequence[int] = (),
        never: frozenset[int] = frozenset(),
        stop: Callable[[], bool] = lambda: False,
    ) -> Guess:
        """As the drafter; tokens that are given are read."""
        began, paced_stop = self._paced(ids, len(given), stop)
        guess = super().collaborate(
            ids, prompt_len, sampling, count,
            budget=budget, given=given, never=never, stop=paced_stop,
        )  # fmt: skip
        _sleep_until(began + max(1, len(guess.tokens) - guess.scored) * self.step)
        return guess

    def _paced(
        self, ids: Sequence[int], given: int, stop: Callable[[], bool]
    ) -> tuple[float, Callable[[], bool]]:
        """When the first step begins, and a ``stop`` that is asked as late as a step takes.

        The first step evaluates the last id; whatever came before it is reading.
        """
        read = max(0, self.behind(ids) - 1) + given
        began, steps = time.perf_counter() + read / self.rate, itertools.count(1)

        def paced_stop() -> bool:
            _sleep_until(began + next(steps) * self.step)
            return stop()

        return began, paced_stop


def _sleep_until(due: float) -> None:
    left = due - time.perf_counter()
    if left > 0:
        time.sleep(left)
