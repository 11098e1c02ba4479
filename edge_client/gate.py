"""Whether to ride at all: what riding gave, beside what the cloud gives when it is left alone.

A model of the stream (:mod:`outrider.edge_client.adaptive`) says how far ahead guesses pay. It
cannot know that drafter and target share two cores, or that a pass over three tokens costs three
passes. So the gate compares tokens a second as they came, of both ways to go on, and holds the
promise that riding never costs more than a few per cent:

- It begins with what the cloud says of its passes: if not even guesses that cost nothing could pay,
  it begins without riding.
- While it rides, it counts the seconds lost against the cloud alone, as a one-sided cumulative sum
  (E. S. Page, 1954): what riding gains is forgotten but for a little. When more than a few tokens'
  time is lost, it stops.
- Stopped, it first measures the cloud alone afresh, and rides on if that was the slower way after
  all. Otherwise it tries again when the last attempt is paid for: an attempt that lost L seconds
  by L / 3 % seconds without one, and twice as long each time that it fails in a row.
- While it rides it looks now and then, for a few tokens, whether the cloud alone has become faster.

Seconds are those between verdicts in answers under way, of all sessions of an edge.
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider.edge_client.policy import Observed
from outrider.protocol.link import PassCurve

BUDGET = 0.03
"""Share of the time that attempts at riding may lose, and looks at the cloud alone may take."""

ALLOWANCE, CREDIT = 3.0, 4.0
"""Tokens' time that may be lost before riding is stopped, and that a gain may count for."""

EXPECTED = 6.0
"""Tokens' time that an attempt is taken to lose at least: it takes a round to be seen."""

LEAST = 6.0
"""Verdicts from which on a rate counts as known. Not tokens: a single lucky look-up of the cloud's
brings as many at once, and says nothing of its rate."""

HALF_LIFE = 24.0
"""Tokens after which what a way gave counts half."""

FIRST_LOOK, SECOND_LOOK, LOOK, LOOK_MAX = 16, 64, 256, 2048
"""Tokens of riding after which the cloud alone is looked at: while nothing is known of its rate,
while it was only told, and then, twice as many each time that riding was better."""

NEAR_END = 24
"""Tokens left of an answer, under which nothing is tried any more."""

MARGIN = 1.15
"""What riding must be predicted to gain, with guesses that cost nothing and are always in time, to
be begun with: real ones do cost, and are late."""

MOST_GUESSES = 32

CATCH_UP = 0.3
"""Share of the drafter's reading time that an attempt may cost: both may share a machine."""

UNKNOWN_READING = 100.0
"""Ids a second that a drafter is taken to read before it was measured."""

LONGEST_BACKOFF = 16
"""A row of failures makes the time to the next attempt at most so many times as long."""


@dataclass(slots=True)
class Meter:
    """Tokens and seconds of one way to go on, the recent ones counting most."""

    tokens: float = 0.0
    seconds: float = 0.0
    verdicts: int = 0

    def add(self, tokens: int, seconds: float) -> None:
        """So many more tokens came in so many seconds."""
        keep = 0.5 ** (tokens / HALF_LIFE)
        self.tokens = keep * self.tokens + tokens
        self.seconds = keep * self.seconds + seconds
        self.verdicts += 1

    @property
    def rate(self) -> float | None:
        """Tokens a second; None while too little was seen."""
        return self.tokens / self.seconds if self.verdicts >= LEAST and self.seconds > 0 else None


@dataclass(slots=True)
class _Stretch:
    """One answer: the way it goes on since ``since``, and when its newest token came."""

    answer: int
    riding: bool
    since: float
    emitted: int = 0
    at: float | None = None


class Gate:
    """``open``: riding may go on. One for all sessions of an edge; ``reason`` is for people."""

    def __init__(self) -> None:
        self.open = True
        self.reason = ""
        self._begun = False
        self._stretches: dict[int, _Stretch] = {}
        self._elapsed = 0.0
        # What each way gave: lately, and of riding also since it began to fall behind.
        self._riding, self._alone, self._slump = Meter(), Meter(), Meter()
        self._rate_alone: float | None = None
        self._lost = 0.0
        # When to look, and when to try again.
        self._since_alone, self._look = 0, FIRST_LOOK
        self._closed_at = self._owed = 0.0
        self._to_beat: float | None = None
        self._judging = False
        self._failures = 0

    # --- what was seen ----------------------------------------------------------------------

    def observe(self, seen: Observed) -> None:
        """Take the tokens that came since the last time."""
        stretch = self._stretches.get(seen.session)
        if stretch is None or stretch.answer != seen.answer:
            stretch = self._stretches[seen.session] = _Stretch(seen.answer, self.open, seen.now)
        tokens = seen.emitted - stretch.emitted
        if tokens <= 0:
            return
        if stretch.at is not None and seen.now > stretch.at:
            settled = stretch.at >= stretch.since + self._settling(seen)
            seconds = seen.now - stretch.at
            self._elapsed += seconds
            if stretch.riding:
                self._rode(tokens, seconds, settled)
            elif settled:
                self._was_alone(tokens, seconds)
        stretch.at, stretch.emitted = seen.now, seen.emitted

    def _settling(self, seen: Observed) -> float:
        """Seconds after a change in which what comes still belongs to the way before."""
        return (seen.link.srtt or 0.0) + 2 / (self._rate_alone or 20.0)

    def _rode(self, tokens: int, seconds: float, settled: bool) -> None:
        self._since_alone += tokens
        if settled:
            self._riding.add(tokens, seconds)
        if self._rate_alone is None:
            return
        lost = self._lost + seconds - tokens / self._rate_alone
        self._lost = max(-CREDIT / self._rate_alone, lost)
        if self._lost <= 0:
            self._slump = Meter()
        else:
            self._slump.add(tokens, seconds)

    def _was_alone(self, tokens: int, seconds: float) -> None:
        self._alone.add(tokens, seconds)
        if self._alone.rate is not None:
            self._rate_alone = self._alone.rate
            self._since_alone = 0
            self._look = max(self._look, LOOK)

    def chose(self, seen: Observed, riding: bool) -> None:
        """This is how the session goes on from here."""
        stretch = self._stretches[seen.session]
        if stretch.riding != riding:
            stretch.riding, stretch.since = riding, seen.now

    # --- what follows from it ---------------------------------------------------------------

    def decide(self, seen: Observed, alpha: float) -> bool:
        """Whether riding may go on, ``alpha`` being a hopeful estimate of the acceptance."""
        if not self._begun:
            self._begin(seen, alpha)
        if self.open:
            self._while_open(seen)
        elif self._judging:
            self._judge()
        elif seen.left > NEAR_END and self._elapsed - self._closed_at >= self._pause(seen):
            self._riding = Meter()
            self._ride()
        return self.open

    def _begin(self, seen: Observed, alpha: float) -> None:
        """Nothing was measured yet: go by what the cloud says of its passes."""
        self._begun = True
        passes = seen.link.passes
        if not passes.known:
            return
        self._rate_alone, self._look = 1 / passes.of(1), SECOND_LOOK
        if most_gained(passes, alpha) < MARGIN:
            times = passes.of(2) / passes.of(1)
            self._close(
                f"guesses cannot pay: a pass over two tokens takes {times:.1f} times one", 0
            )

    def _while_open(self, seen: Observed) -> None:
        alone, link = self._rate_alone, seen.link
        spread = (link.srtt or 0.0) + 4 * (link.rttvar or 0.0)
        if alone is not None and self._lost > ALLOWANCE / alone + spread:
            slump = self._slump
            self._to_beat = slump.tokens / slump.seconds
            self._failures += 1
            self._close("riding was slower than the cloud alone", self._lost)
        elif self._since_alone >= self._look and seen.left > NEAR_END and self._riding.rate:
            self._to_beat = self._riding.rate  # without one, a look could only end in staying out
            self._close("looking what the cloud gives alone", 0)

    def _close(self, reason: str, lost: float) -> None:
        """Stop riding. Whether for long is judged when the cloud alone has been measured."""
        self.open, self.reason, self._judging = False, reason, True
        self._alone = Meter()
        self._closed_at = self._elapsed
        self._owed = max(lost, EXPECTED / (self._rate_alone or 20.0))

    def _judge(self) -> None:
        """The cloud alone, measured afresh, beside what riding gave before."""
        alone, riding = self._alone.rate, self._to_beat
        if alone is None:
            return
        self._judging, self._to_beat = False, None
        if riding is None:  # stopped by what the cloud told, before anything was measured
            return
        if riding < alone:
            self._look = LOOK
            self.reason = f"riding gave {riding:.1f} tokens/s, the cloud alone {alone:.1f}"
            return
        self._look = min(LOOK_MAX, 2 * self._look)
        self._failures = 0
        self._ride()

    def _pause(self, seen: Observed) -> float:
        """Seconds without riding that pay for the last attempt and for the next one's reading."""
        reading = seen.behind / (seen.prefill_rate or UNKNOWN_READING)
        times = min(LONGEST_BACKOFF, 1 << max(0, self._failures - 1))
        return (times * self._owed + CATCH_UP * reading) / BUDGET

    def _ride(self) -> None:
        self.open, self.reason = True, ""
        self._lost, self._slump = 0.0, Meter()


def most_gained(passes: PassCurve, alpha: float) -> float:
    """How many times as fast the target would be with guesses that cost nothing, at the best.

    A pass that judges k guesses gives (1 - alpha^(k+1)) / (1 - alpha) tokens.
    """
    best, expected, reached = 1.0, 1.0, 1.0
    for k in range(1, MOST_GUESSES + 1):
        reached *= alpha
        expected += reached
        best = max(best, expected * passes.of(1) / passes.of(k + 1))
    return best
