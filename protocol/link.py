"""What the edge knows of the link and of what is behind it: times, rates, load."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

ALPHA, BETA = 1 / 8, 1 / 4
"""Gains of the smoothed round trip and its variation: RFC 6298, section 2."""

GOODPUT_GAIN = 1 / 4


class PassCurve:
    """What a pass of the target takes, by the tokens in it, as the cloud told; maybe nothing.

    Between the sizes told it is a line, beyond them the last of these lines goes on.
    """

    def __init__(self, points: Sequence[tuple[float, float]] = ()) -> None:
        """``points``: tokens and seconds. What cannot be such a pair is left out."""
        self.points = sorted(
            {tokens: seconds for tokens, seconds in points if _sound(tokens, seconds)}.items()
        )

    @property
    def known(self) -> bool:
        """The time of passes of different sizes was told."""
        return len(self.points) > 1

    def of(self, tokens: float) -> float:
        """Seconds of a pass over ``tokens``; only where :attr:`known`."""
        points = self.points
        at = next((i for i, p in enumerate(points) if p[0] >= tokens), len(points) - 1)
        (x0, y0), (x1, y1) = points[max(0, at - 1) : max(0, at - 1) + 2]
        # A larger pass never takes less time: where it seems to, that is noise.
        return max(1e-6, y0 + (tokens - x0) * max(0.0, (y1 - y0) / (x1 - x0)))


def _sound(tokens: float, seconds: float) -> bool:
    return 1 <= tokens < math.inf and 0 < seconds < math.inf


@dataclass(slots=True)
class LinkEstimator:
    """Round-trip and goodput estimates, and the verifier's own times as its acks tell them.

    Times in seconds, rates in bytes a second, ``load`` a share from 0 to 1; None is unknown.
    ``passes`` is what the cloud said when the link was made, ``greeting`` how long that took: a
    trip and whatever kept either end, to go by until there is a round trip.

    Filters follow RFC 6298. As in QUIC (RFC 9002, section 5.3) the delay that the peer reports is
    subtracted; here from the smallest round trip too, since a pass of the target is part of every
    sample. So ``srtt`` never falls under ``min_rtt``.
    """

    srtt: float | None = None
    rttvar: float | None = None
    min_rtt: float | None = None
    greeting: float | None = None
    goodput_up: float | None = None
    goodput_down: float | None = None
    queue: float | None = None
    target: float | None = None
    load: float = 0.0
    passes: PassCurve = field(default_factory=PassCurve)

    def served(self, queue: float, target: float, load: float) -> None:
        """The peer says how long a frame waited there, how long the target took, and its load."""
        self.queue = _smooth(self.queue, queue)
        self.target = _smooth(self.target, target)
        self.load = load

    def round_trip(self, elapsed: float, service: float) -> None:
        """A frame was answered after ``elapsed`` seconds, ``service`` of them at the peer."""
        elapsed = max(0.0, elapsed)
        adjusted = max(0.0, elapsed - service)
        if self.srtt is None or self.rttvar is None or self.min_rtt is None:
            self.srtt, self.rttvar, self.min_rtt = adjusted, adjusted / 2, adjusted
            return
        self.min_rtt = min(self.min_rtt, adjusted)
        self.rttvar += BETA * (abs(self.srtt - adjusted) - self.rttvar)
        self.srtt += ALPHA * (adjusted - self.srtt)

    def uploaded(self, size: int, seconds: float, *, backlogged: bool) -> None:
        """``size`` bytes left in ``seconds``; only with a backlog was the link the limit."""
        self.goodput_up = _rate(self.goodput_up, size, seconds, backlogged)

    def downloaded(self, size: int, seconds: float, *, backlogged: bool) -> None:
        """``size`` bytes came in ``seconds``; without a backlog they only raise the estimate."""
        self.goodput_down = _rate(self.goodput_down, size, seconds, backlogged)


def _smooth(known: float | None, sample: float) -> float:
    return sample if known is None else known + ALPHA * (sample - known)


def _rate(known: float | None, size: int, seconds: float, backlogged: bool) -> float | None:
    if seconds <= 0:
        return known
    rate = size / seconds
    if known is None:
        return rate if backlogged else None
    if backlogged:
        return known + GOODPUT_GAIN * (rate - known)
    return max(known, rate)
