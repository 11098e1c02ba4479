"""A group of drafters in virtual time: the real group, members of a stated speed.

Members run one after the other and are charged as if side by side: a step takes as long as the
slowest member that was waited for. The first lives at the edge, all others are one round trip away.
Some of them stall, die and
return, drawn from a seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from outrider.edge_client.group.group import Group
from outrider.edge_client.group.members import Member
from outrider.protocol.errors import AwayError, BackendError
from outrider.runtime.lm.drafter import Guess

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How a member behaves: seconds a ``step`` and an id read, chances that a step stalls or fails.

    A member that did is away for up to ``away`` steps of the group.
    """

    step: float = 0.005
    read: float = 0.0005
    stalls: float = 0.0
    fails: float = 0.0
    away: int = 6


class SimTable:
    """Members in virtual time. ``seconds`` is what they took since somebody last asked."""

    def __init__(
        self, members: Sequence[Member], habits: Sequence[Habits], *, lan: float, seed: int
    ) -> None:
        self.members = list(members)
        self.habits = list(habits)
        self.seconds = 0.0
        self.passed_by = 0
        self._lan = lan
        self._rng = random.Random(seed)
        self._round = 0
        self._back = [0] * len(members)
        self._error: BackendError | None = None

    def ready(self) -> list[int]:
        """Members that are there."""
        there = [i for i, back in enumerate(self._back) if back <= self._round]
        return there or [self._back.index(min(self._back))]

    def pace(self, member: int) -> float | None:
        """Seconds that a member's steps take."""
        return self.habits[member].step + (self._lan if member else 0.0)

    def together(
        self, wanted: Sequence[int], job: Callable[[Member], T], tokens: Callable[[Member], int]
    ) -> dict[int, T]:
        """One step of these members."""
        self._round += 1
        done: dict[int, T] = {}
        slowest = 0.0
        errors = []
        for i in wanted:
            habits, member = self.habits[i], self.members[i]
            trouble = self._rng.random()
            last = i == wanted[-1] and not done  # the group waits for somebody
            if trouble < habits.stalls + habits.fails and not last:
                self._back[i] = self._round + self._rng.randint(1, habits.away)
                self.passed_by += 1
                continue
            reading = max(0, tokens(member) - 1) * habits.read
            try:
                done[i] = job(member)
            except BackendError as error:
                errors.append(error)
                self._back[i] = self._round + habits.away
                continue
            slowest = max(slowest, habits.step + reading + (self._lan if i else 0.0))
        self.seconds += slowest
        self._error = errors[0] if errors else self._error
        return done

    def away(self) -> AwayError:
        """All of them failed in one step."""
        return AwayError(str(self._error), retry_after=self.habits[0].step)

    def take(self) -> float:
        """The seconds since this was last asked."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds

    def close(self) -> None:
        """Free the models."""
        for member in self.members:
            member.close()


class SimGroup(Group):
    """A group that says what its drafts take."""

    steps: SimTable

    def __init__(self, steps: SimTable, *arguments: object, **settings: object) -> None:
        super().__init__(steps, *arguments, clock=lambda: steps.seconds, **settings)  # type: ignore[arg-type]

    def prefill(self, ids: Sequence[int], count: int) -> None:
        """Reading is charged by the world."""
        super().prefill(ids, count)
        self.steps.take()

    def draft(self, *arguments: object, **settings: object) -> Guess:
        """As the group, with the seconds of its steps."""
        self.steps.take()
        guess = super().draft(*arguments, **settings)  # type: ignore[arg-type]
        return replace(guess, seconds=self.steps.take())
