"""Virtual time: what happens next, and when. Deterministic, since ties keep their order."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

Action = Callable[[], None]


class Agenda:
    """Actions in order of their time (seconds from the start of the world)."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        self._heap: list[tuple[float, int, Action]] = []
        self._order = itertools.count()

    def at(self, when: float, action: Action) -> None:
        """Do this at ``when``, or now if that is over."""
        heapq.heappush(self._heap, (max(when, self.now), next(self._order), action))

    def after(self, seconds: float, action: Action) -> None:
        """Do this in ``seconds``."""
        self.at(self.now + seconds, action)

    def step(self, until: float) -> bool:
        """Do the next action if it is due by ``until``; False if there is none."""
        if not self._heap or self._heap[0][0] > until:
            return False
        self.now, _, action = heapq.heappop(self._heap)
        self.steps += 1
        action()
        return True


class Alarm:
    """One timer that can be set again and again; only the earliest time asked for counts."""

    def __init__(self, agenda: Agenda, action: Action) -> None:
        self._agenda = agenda
        self._action = action
        self._due: float | None = None

    def set(self, when: float | None) -> None:
        """Ring at ``when`` (None: nothing to wait for), unless it rings before that anyway."""
        if when is None or (self._due is not None and self._due <= when):
            return
        self._due = when
        self._agenda.at(when, lambda: self._ring(when))

    def _ring(self, when: float) -> None:
        if self._due == when:
            self._due = None
            self._action()
