"""What the verifier measures of itself and of a session: pass time, acceptance, rate, arrivals.

Estimators observe; :mod:`outrider.cloud_server.scheduler` decides. Times in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from outrider.protocol.session import CloudSession

FORGETTING = 0.97
"""Weight of the past at each guess: the last 30 or so count."""

LONG_MEMORY = 0.99
"""The same for an edge's guesses, which come in long runs: the last 100 or so count."""

USUAL_WEIGHT = 16.0
"""For how many guesses at most counts what other answers' drafters were like, in a new answer."""

ACCEPTANCE_PRIOR, PRIOR_WEIGHT = 0.7, 4.0
"""Acceptance assumed of a drafter that has not been judged, and for how many guesses it counts."""

OWN_PRIOR = 0.4
"""The same for the verifier's own prompt look-up."""

RATE_GAIN = 1 / 8

LATELY = 256
"""Tokens over which the speed of an answer is remembered."""

SECOND = 0.5
"""Chance that one more guess at one place is right where those before it are not."""

MOST_GUESSES = 64
"""Longest chain in a pass that a verifier can be told to judge, of the edge's guesses and its own
each."""


@dataclass(slots=True)
class Acceptance:
    """Share of judged guesses that were right, the recent ones counting most."""

    prior: float = ACCEPTANCE_PRIOR
    judged: float = PRIOR_WEIGHT
    keep: float = FORGETTING
    right: float = field(init=False)
    alpha: float = field(init=False)
    """Probability that the next guess is right, kept away from 0 and 1."""

    def __post_init__(self) -> None:
        self.right = self.prior * self.judged
        self._learn()

    def observe(self, accepted: int, refused: bool) -> None:
        """A run of guesses was judged: so many right, then perhaps a wrong one."""
        count = accepted + refused
        keep = self.keep**count
        self.right = keep * self.right + accepted
        self.judged = keep * self.judged + count
        self._learn()

    def _learn(self) -> None:
        alpha = self.right / self.judged
        self.alpha = 0.99 if alpha > 0.99 else 0.01 if alpha < 0.01 else alpha


@dataclass(slots=True)
class SessionPace:
    """What is known of one answer: its drafter, the look-up, its speed, its last commit."""

    edge: Acceptance = field(default_factory=lambda: Acceptance(keep=LONG_MEMORY))
    own: Acceptance = field(default_factory=lambda: Acceptance(OWN_PRIOR))
    rate: float | None = None
    committed_at: float | None = None
    begun_at: float | None = None
    tokens: float = 0.0

    def committed(self, tokens: int, now: float) -> None:
        """So many tokens were committed now."""
        if self.committed_at is not None and now > self.committed_at:
            rate = tokens / (now - self.committed_at)
            self.rate = rate if self.rate is None else self.rate + RATE_GAIN * (rate - self.rate)
        self.committed_at = now
        if self.begun_at is None:
            self.begun_at = now
            return
        self.tokens += tokens
        if self.tokens > LATELY:  # half of it is forgotten
            self.begun_at += (now - self.begun_at) / 2
            self.tokens /= 2

    def pace(self, now: float) -> tuple[float, float]:
        """Seconds since the first tokens, and how many came since."""
        return (0.0, 0.0) if self.begun_at is None else (now - self.begun_at, self.tokens)


def arrivals(session: CloudSession, now: float, limit: int) -> list[float]:
    """Seconds from now until each of the next guesses is expected, at most ``limit`` of them."""
    expected = coming(session, now)
    return [] if expected is None else [expected[0] + i * expected[1] for i in range(limit)]


def coming(session: CloudSession, now: float) -> tuple[float, float] | None:
    """Seconds from now until the next guess is expected, and the gap between further ones.

    An unbroken stream goes on at its own gap, and has to catch up first if it was overtaken. After
    a contradiction the edge needs its usual time to answer the verdict that told it so, and then
    has to catch up with what was committed since. None: nothing is expected (not riding, nothing
    known yet, or the edge waits for us).
    """
    if not session.riding or session.frame_at is None:
        return None
    window, gap = session.window, session.node_gap
    length, tip = len(session.ids), window.tip_position
    if tip is None or window.contradicted:
        if session.reply_time is None:
            return None
        told, since = next((e for e in session.told_log if e[0] > (tip or 0) + 1), (length, now))
        first = since + session.reply_time + (length - told) * (gap or 0.0)
    elif gap is None or session.full:
        return None  # lockstep, or its window is full: it waits for us
    else:
        first = session.frame_at + gap * (length - tip)
    if first < now:  # overdue: the longer, the later it is expected
        first = now + (now - first)
    return first - now, gap or 0.0


@cache
def powers(alpha: float) -> tuple[float, ...]:
    """Chances that the first guess, the first two, and so on are right, of as many as there may be.

    ``alpha`` is rounded, so that there are few of them.
    """
    return tuple([alpha**count for count in range(1, 2 * MOST_GUESSES + 1)])


def reach_of_tree(parents: Sequence[int], alpha: float) -> list[float]:
    """What each node adds to the tokens expected, none more than the one before.

    Nodes are taken in the order sent, so a likely one behind unlikely ones cannot be had without
    them: such a run counts with its mean for each, which keeps the sum right where it ends.
    """
    found: list[float] = []
    siblings: dict[int, int] = {}
    for parent in parents:
        rank = siblings[parent] = siblings.get(parent, -1) + 1
        first = found[parent] if parent >= 0 else 1.0
        found.append(first * (alpha if rank == 0 else (1 - alpha) * SECOND**rank))
    return falling(found)


def falling(values: Sequence[float]) -> list[float]:
    """The nearest list that never rises: neighbours that would are pooled (least squares)."""
    pools: list[tuple[float, int]] = []
    for value in values:
        pool, size = value, 1
        while pools and pools[-1][0] < pool:
            mean, count = pools.pop()
            pool, size = (mean * count + pool * size) / (count + size), count + size
        pools.append((pool, size))
    return [mean for mean, size in pools for _ in range(size)]
