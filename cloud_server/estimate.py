"""What the verifier measures of itself and of a session: pass time, acceptance, rate, arrivals.

Estimators observe; :mod:`outrider.cloud_server.scheduler` decides. Times in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from outrider.protocol.session import CloudSession

FORGETTING = 0.97
"""Weight of the past at each new pass: the last 30 or so count."""

LEAST_WEIGHT = 0.5
"""Weight that passes of one size keep, however long ago they were."""

SIZE_GAIN = 1 / 16

LARGEST_TOLD = 6
"""Passes of less than 2 to this power tokens are told to edges: no draft is longer."""

ACCEPTANCE_PRIOR, PRIOR_WEIGHT = 0.7, 4.0
"""Acceptance assumed of a drafter that has not been judged, and for how many guesses it counts."""

OWN_PRIOR = 0.4
"""The same for the verifier's own prompt look-up."""

RATE_GAIN = 1 / 8


@dataclass(slots=True)
class _Size:
    """Passes of about one size: their means, the recent ones counting most, and their weight."""

    tokens: float
    seconds: float
    weight: float = 1.0


class PassTime:
    """Seconds of a pass as ``fixed + each * tokens``: least squares over passes of all sizes.

    Old passes lose weight, but of each size (to a factor of two) something is remembered: a cloud
    that only sees long drafts would forget otherwise what it could do without them.
    """

    def __init__(self) -> None:
        self._sizes: dict[int, _Size] = {}
        self.fixed, self.each = 0.03, 0.0
        self.known = False

    def observe(self, tokens: int, seconds: float) -> None:
        """A pass over so many tokens took so long."""
        for size in self._sizes.values():
            size.weight = max(LEAST_WEIGHT, FORGETTING * size.weight)
        size = self._sizes.setdefault(tokens.bit_length(), _Size(tokens, seconds, 0.0))
        size.weight += 1.0
        gain = max(SIZE_GAIN, 1 / size.weight)
        size.tokens += gain * (tokens - size.tokens)
        size.seconds += gain * (seconds - size.seconds)
        self._fit()
        self.known = True

    def curve(self) -> tuple[tuple[float, float], ...]:
        """Tokens and seconds of the sizes seen so far, at most that of a long draft."""
        sizes = sorted(self._sizes.items())
        return tuple((s.tokens, s.seconds) for bits, s in sizes if bits <= LARGEST_TOLD)

    def _fit(self) -> None:
        sizes = self._sizes.values()
        total = sum(s.weight for s in sizes)
        mean_x = sum(s.weight * s.tokens for s in sizes) / total
        mean_y = sum(s.weight * s.seconds for s in sizes) / total
        spread = sum(s.weight * (s.tokens - mean_x) ** 2 for s in sizes)
        shared = sum(s.weight * (s.tokens - mean_x) * (s.seconds - mean_y) for s in sizes)
        each = shared / spread if spread > 1e-9 else 0.0
        self.each = min(max(0.0, each), mean_y / max(1.0, mean_x))
        self.fixed = max(0.0, mean_y - self.each * mean_x)

    def of(self, tokens: int) -> float:
        """Seconds that a pass over ``tokens`` is expected to take."""
        return self.fixed + self.each * tokens


@dataclass(slots=True)
class Acceptance:
    """Share of judged guesses that were right, the recent ones counting most."""

    prior: float = ACCEPTANCE_PRIOR
    right: float = field(init=False)
    judged: float = PRIOR_WEIGHT

    def __post_init__(self) -> None:
        self.right = self.prior * self.judged

    def observe(self, accepted: int, refused: bool) -> None:
        """A run of guesses was judged: so many right, then perhaps a wrong one."""
        count = accepted + refused
        keep = FORGETTING**count
        self.right = keep * self.right + accepted
        self.judged = keep * self.judged + count

    @property
    def alpha(self) -> float:
        """Probability that the next guess is right, kept away from 0 and 1."""
        return min(0.99, max(0.01, self.right / self.judged))


@dataclass(slots=True)
class SessionPace:
    """What is known of one answer: its drafter, the look-up, its speed, its last commit."""

    edge: Acceptance = field(default_factory=Acceptance)
    own: Acceptance = field(default_factory=lambda: Acceptance(OWN_PRIOR))
    rate: float | None = None
    committed_at: float | None = None

    def committed(self, tokens: int, now: float) -> None:
        """So many tokens were committed now."""
        if self.committed_at is not None and now > self.committed_at:
            rate = tokens / (now - self.committed_at)
            self.rate = rate if self.rate is None else self.rate + RATE_GAIN * (rate - self.rate)
        self.committed_at = now


def arrivals(session: CloudSession, now: float, limit: int) -> list[float]:
    """Seconds from now until each of the next guesses is expected, at most ``limit`` of them.

    An unbroken stream goes on at its own gap, and has to catch up first if it was overtaken. After
    a contradiction the edge needs its usual time to answer the verdict that told it so, and then
    has to catch up with what was committed since. Empty: nothing is expected (not riding, nothing
    known yet, or the edge waits for us).
    """
    if not session.riding or session.frame_at is None:
        return []
    window, gap = session.window, session.node_gap
    length, tip = len(session.ids), window.tip_position
    if window.contradicted or tip is None:
        if session.reply_time is None:
            return []
        told, since = next((e for e in session.told_log if e[0] > (tip or 0) + 1), (length, now))
        first = since + session.reply_time + (length - told) * (gap or 0.0)
    elif gap is None or session.full:
        return []  # lockstep, or its window is full: it waits for us
    else:
        first = session.frame_at + gap * (length - tip)
    if first < now:  # overdue: the longer, the later it is expected
        first = now + (now - first)
    return [first - now + i * (gap or 0.0) for i in range(limit)]
