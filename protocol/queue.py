"""Which answers are worked on and which wait: by rows and by memory, fair between keys, bounded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from outrider.protocol.errors import SessionError
from outrider.protocol.session import CloudSession

GUESS = 5.0
"""Seconds that an answer takes, until one has ended."""

SHORTEST, LONGEST = 1.0, 60.0
"""Bounds of the hint when to try again, in seconds."""

GAIN = 1 / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What fits at once. ``answers``: rows of the target; ``ids``: what its cache holds in all of
    them; ``waiting``: answers that may queue for a place; ``n_ctx``: most ids of one."""

    answers: int
    ids: int
    waiting: int
    n_ctx: int


@dataclass(slots=True)
class _Place:
    """Of one answer: its number in the order of arrival, and since when it is worked on."""

    begun: int
    number: int
    since: float | None = None


@dataclass(slots=True)
class AnswerQueue:
    """Decides whose turn it is. Without a capacity everybody's.

    An answer is admitted with all the cache it can come to need, so that none has to be stopped
    for want of memory half-way: prompt and most tokens, at most the context.
    """

    capacity: Capacity | None = None
    usual: float = GUESS
    _places: dict[bytes, _Place] = field(default_factory=dict)
    _count: int = 0

    def check(self, sessions: Iterable[CloudSession], new: CloudSession) -> None:
        """Refuse one more answer where the queue is full.

        Raises:
            SessionError: ``busy``, with a hint when a place will be free.
        """
        if self.capacity is None:
            return
        present = [s for s in sessions if _present(s) and s is not new]
        waiting = sum(1 for s in present if not s.admitted)
        places = max(0, self.capacity.answers - (len(present) - waiting))
        if waiting >= places + self.capacity.waiting:
            turn = (waiting - places + 1) / self.capacity.answers * self.usual
            raise SessionError(
                f"the target is busy, and {waiting - places} answers are waiting already",
                code="busy",
                retry_after=round(min(LONGEST, max(SHORTEST, turn)), 1),
            )

    def join(self, session: CloudSession) -> bool:
        """An answer was opened: True; or it comes back on another link, and keeps its place."""
        session.admitted = self.capacity is None
        known = self._places.get(session.key)
        if known is not None and known.begun == session.begun:
            return False
        self._count += 1
        self._places[session.key] = _Place(session.begun, self._count)
        return True

    def settle(self, sessions: dict[bytes, CloudSession], now: float) -> list[CloudSession]:
        """Let in whose turn it is; learn from answers that ended how long one takes. Gives those
        whose session is still there.
        """
        ended: list[CloudSession] = []
        for key, place in list(self._places.items()):
            session = sessions.get(key)
            if session is None or session.begun != place.begun or not session.running:
                del self._places[key]
                if place.since is not None:
                    self.usual += GAIN * (now - place.since - self.usual)
                if session is not None and session.begun == place.begun:
                    ended.append(session)
        if self.capacity is None:
            return ended
        present = [s for s in sessions.values() if _present(s)]
        waiting = [s for s in present if not s.admitted]
        if waiting:
            for session in self._next(waiting, [s for s in present if s.admitted], self.capacity):
                session.admitted = True
                self._places[session.key].since = now
        return ended

    def _next(
        self, waiting: list[CloudSession], inside: list[CloudSession], capacity: Capacity
    ) -> list[CloudSession]:
        """Those of the waiting that fit beside the ones inside, in turn."""
        chosen: list[CloudSession] = []
        places = capacity.answers - len(inside)
        ids = capacity.ids - sum(need(s, capacity.n_ctx) for s in inside)
        held = Counter(s.owner for s in inside)
        while waiting and places > 0:
            # The key with the fewest answers inside, and of its answers the earliest.
            first = min(waiting, key=lambda s: (held[s.owner], self._places[s.key].number))
            wants = need(first, capacity.n_ctx)
            if wants > ids and (inside or chosen):
                break  # a smaller one must not overtake it for ever
            chosen.append(first)
            waiting.remove(first)
            held[first.owner] += 1
            places, ids = places - 1, ids - wants
        return chosen

    def waiting(self, sessions: Iterable[CloudSession]) -> int:
        """How many wait for a place."""
        return sum(1 for s in sessions if _present(s) and not s.admitted)


def need(session: CloudSession, n_ctx: int) -> int:
    """Ids of the cache that an answer can come to need."""
    most = session.request.max_tokens if session.request else 0
    return min(n_ctx, max(len(session.ids), session.prompt_len + most))


def _present(session: CloudSession) -> bool:
    return session.running and session.link is not None
