"""What the holder of one key may ask of a cloud, and the account of its tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

from outrider.protocol.errors import SessionError
from outrider.protocol.messages import LEAST_IN_FLIGHT, Limits
from outrider.protocol.objective import Objective, granted

FLIGHT = 4
"""Frames of the longest draft that a key with a cap on it may have in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Limits of one key; None: none but the cloud's own.

    ``sessions`` that exist at once, ``draft``: guesses in a frame, ``objective``: the dearest
    granted, ``tokens_per_minute``: prompt ids read and tokens answered.
    """

    sessions: int | None = None
    draft: int | None = None
    objective: Objective | None = None
    tokens_per_minute: int | None = None

    def limits(self, limits: Limits) -> Limits:
        """The cloud's limits as this key is told them."""
        sessions, nodes, flight = (
            limits.max_sessions,
            limits.max_nodes_per_frame,
            limits.max_nodes_in_flight,
        )
        if self.sessions is not None:
            sessions = min(sessions, self.sessions)
        if self.draft is not None:
            nodes = min(nodes, self.draft)
            flight = min(flight, max(LEAST_IN_FLIGHT, FLIGHT * self.draft))
        return Limits(
            max_message=limits.max_message,
            max_prompt=limits.max_prompt,
            max_tokens=limits.max_tokens,
            max_nodes_per_frame=nodes,
            max_nodes_in_flight=flight,
            max_sessions=sessions,
            detached_seconds=limits.detached_seconds,
        )

    def dearest(self, allowed: str) -> str:
        """The cheaper of what the cloud allows and what this key does."""
        if self.objective is None:
            return allowed
        return granted(self.objective, allowed)


NO_QUOTA = Quota()


@dataclass(slots=True)
class Meter:
    """A bucket of tokens for each key with a rate: full at first, refilled steadily, a minute deep.

    What an answer costs is known only as it goes on, so a bucket may go below zero; a key in debt
    begins no further answer until it is paid.
    """

    _levels: dict[str, tuple[float, float]] = field(default_factory=dict)

    def charge(self, owner: str, tokens: int, quota: Quota, now: float) -> None:
        """So many tokens were read or answered for ``owner``."""
        if quota.tokens_per_minute is not None:
            self._levels[owner] = (self._level(owner, quota.tokens_per_minute, now) - tokens, now)

    def check(self, owner: str, quota: Quota, now: float) -> None:
        """Refuse a key that is in debt.

        Raises:
            SessionError: ``rate``, with the seconds until it is paid.
        """
        rate = quota.tokens_per_minute
        if rate is None:
            return
        level = self._level(owner, rate, now)
        if level <= 0:
            raise SessionError(
                f"this key may use {rate} tokens a minute, and has used more",
                code="rate",
                retry_after=round((1 - level) * 60 / rate, 1),
            )

    def _level(self, owner: str, rate: int, now: float) -> float:
        level, at = self._levels.get(owner, (float(rate), now))
        return min(float(rate), level + (now - at) * rate / 60)
