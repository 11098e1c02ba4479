"""Whether to ride at all: what riding gave, beside what the cloud gives when it is left alone.

A model of the stream (:mod:`outrider.edge_client.adaptive`) says how far ahead guesses pay. It
cannot know that drafter and target share two cores, or that a pass over three tokens costs three
passes. So the gate compares tokens a second as they came, of both ways to go on, and holds the
promise that riding never costs more than a few per cent:

- It begins with what the cloud says of its passes: if not even guesses that cost nothing could pay,
  it begins without riding.
- While it rides, it counts the seconds lost against the cloud alone, as a one-sided cumulative sum
  (E. S. Page, 1954): what riding gains is forgotten but for a little. When more than a few tokens'
  time is lost, it has a look at the cloud alone.
- A look measures the cloud alone afresh, and ends in riding on unless riding was slower *as far as
  it is remembered*: where a sum has just fallen, the text was hard, and what was measured there
  says little of riding. Staying out lasts until the last attempt is paid for (one that lost L
  seconds by L / 3 % seconds without one, and twice as long each time that it fails in a row), or
  until the cloud alone turns out to be the slower way after all.
- While riding goes well there are looks too, as often as their cost allows: the more riding gains,
  the dearer they are, and the less they could tell.

The cloud alone is told by two figures, since they differ in how long they take to be known. Seconds
from one verdict to the next hardly vary, and follow the machine: the last look tells. Tokens in a
verdict are one, but for runs that the cloud finds by its own look-up, rare and long: they belong to
the text, and are remembered from look to look.

Seconds are those between verdicts in answers under way, of all sessions of an edge.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from outrider.edge_client.policy import Observed
from outrider.protocol.link import PassCurve

BUDGET, LOOKS = 0.03, 0.005
"""Shares of the time that attempts at riding, and looks while it goes well, may lose."""

ALLOWANCE, CREDIT = 3.0, 4.0
"""Tokens' time that may be lost before riding is doubted, and that a gain may count for."""

EXPECTED = 6.0
"""Tokens' time that an attempt is taken to lose at least: it takes a round to be seen."""

LEAST = 6.0
"""Verdicts from which on a way counts as measured. Not tokens: a single lucky look-up of the
cloud's brings as many at once, and says nothing of its rate."""

MEMORY, LONG_MEMORY = 64.0, 96.0
"""Verdicts after which what riding gave, and how many tokens are in a verdict without it, count
half."""

HASTY, FADE = 24, 0.25
"""Where doubt comes again after so few tokens of riding, something may have changed since, and what
is remembered of riding counts so much less: hard text alone does not last that long."""

SINGLE = 16.0
"""Verdicts of one token each that the cloud alone is taken to have given before any was seen."""

FIRST_LOOK, SOON = 16, 64
"""Tokens of riding before which there is no look: where nothing is known of the cloud alone, and
where something is."""

SETTLING = 2.0
"""Verdicts after a change of ways that still belong to the way before."""

CLOSE = 0.05
"""Share by which two ways are taken to differ at least when the cost of a look is reckoned."""

MORE_RARELY = 4
"""Looks that find riding better, one after the other, make the time to the next at most so many
times as long."""

NEAR_END = 24
"""Tokens left of an answer, under which nothing is tried any more."""

MARGIN = 1.15
"""What riding must be predicted to gain, with guesses that cost nothing and are always in time, to
be begun with: real ones do cost, and are late."""

AFTER_ALL = 1.05
"""By how much riding must have been faster than the cloud alone is by now to be taken up again."""

MOST_GUESSES = 32

CATCH_UP = 0.3
"""Share of the drafter's reading time that an attempt may cost: both may share a machine."""

UNKNOWN_READING = 100.0
"""Ids a second that a drafter is taken to read before it was measured."""

LONGEST_BACKOFF = 16
"""A row of failures makes the time to the next attempt at most so many times as long."""


@dataclass(slots=True)
class Meter:
    """Tokens, seconds and verdicts of one way to go on, the recent ones counting most."""

    memory: float
    tokens: float = 0.0
    seconds: float = 0.0
    verdicts: float = 0.0
    seen: int = 0

    def add(self, tokens: int, seconds: float) -> None:
        """So many more tokens came in so many seconds."""
        keep = 0.5 ** (1 / self.memory)
        self.tokens = keep * self.tokens + tokens
        self.seconds = keep * self.seconds + seconds
        self.verdicts = keep * self.verdicts + 1
        self.seen += 1

    def fade(self, keep: float) -> None:
        """What comes from now on shall count for more."""
        self.tokens, self.seconds, self.verdicts = (
            keep * each for each in (self.tokens, self.seconds, self.verdicts)
        )

    @property
    def rate(self) -> float | None:
        """Tokens a second; None while too little was seen."""
        return self.tokens / self.seconds if self.seen >= LEAST and self.seconds > 0 else None


@dataclass(slots=True)
class Alone:
    """The cloud left alone: ``pace`` in seconds a verdict, None while nothing is known of it.

    ``fresh`` is since the last change of ways, ``text`` all that was ever seen.
    """

    pace: float | None = None
    fresh: Meter = field(default_factory=lambda: Meter(MEMORY))
    text: Meter = field(default_factory=lambda: Meter(LONG_MEMORY))

    def add(self, tokens: int, seconds: float) -> None:
        """So many more tokens came in so many seconds."""
        self.fresh.add(tokens, seconds)
        self.text.add(tokens, seconds)
        if self.measured:
            self.pace = self.fresh.seconds / self.fresh.verdicts

    @property
    def measured(self) -> bool:
        """Enough was seen since the last change of ways."""
        return self.fresh.seen >= LEAST

    @property
    def rate(self) -> float | None:
        """Tokens a second."""
        tokens = (SINGLE + self.text.tokens) / (SINGLE + self.text.verdicts)
        return tokens / self.pace if self.pace else None


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
        self._riding, self._alone = Meter(MEMORY), Alone()
        self._lost = 0.0
        # When to look, and when to try again.
        self._since_alone, self._riding_since = 0, 0.0
        self._wins = 0
        self._closed_at = self._owed = 0.0
        self._looking = False
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
                self._alone.add(tokens, seconds)
        stretch.at, stretch.emitted = seen.now, seen.emitted

    def _settling(self, seen: Observed) -> float:
        """Seconds after a change in which what comes still belongs to the way before."""
        return (seen.link.srtt or 0.0) + SETTLING * (self._alone.pace or 0.05)

    def _rode(self, tokens: int, seconds: float, settled: bool) -> None:
        self._since_alone += tokens
        self._riding_since += seconds
        if settled:
            self._riding.add(tokens, seconds)
        alone = self._alone.rate
        if alone is not None:
            self._lost = max(-CREDIT / alone, self._lost + seconds - tokens / alone)

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
        elif self._alone.measured:
            self._while_closed(seen)
        return self.open

    def _begin(self, seen: Observed, alpha: float) -> None:
        """Nothing was measured yet: go by what the cloud says of its passes."""
        self._begun = True
        passes = seen.link.passes
        if not passes.known:
            return
        self._alone.pace = passes.of(1)
        if most_gained(passes, alpha) < MARGIN:
            times = passes.of(2) / passes.of(1)
            self._close(f"guesses cannot pay: a pass over two tokens takes {times:.1f} times one")
            self._looking = False

    def _while_open(self, seen: Observed) -> None:
        alone, link = self._alone.rate, seen.link
        spread = (link.srtt or 0.0) + 4 * (link.rttvar or 0.0)
        if alone is not None and self._lost > ALLOWANCE / alone + spread:
            if self._since_alone < HASTY:
                self._riding.fade(FADE)
            self._close("riding seems slower than the cloud alone")
        elif seen.left > NEAR_END and self._look_is_due(seen):
            self._close("looking what the cloud gives alone")

    def _look_is_due(self, seen: Observed) -> bool:
        """A look costs what riding gains, for the time that it takes."""
        riding, alone, pace = self._riding.rate, self._alone.rate, self._alone.pace
        if riding is None:
            return False  # a look could only end in staying out
        if alone is None or pace is None:
            return self._since_alone >= FIRST_LOOK
        lasts = (LEAST + SETTLING) * pace + (seen.link.srtt or 0.0)
        cost = lasts * max(CLOSE, 1 - alone / riding)
        pause = min(MORE_RARELY, 1 << self._wins) * cost / LOOKS
        return self._since_alone >= SOON and self._riding_since >= pause

    def _close(self, reason: str) -> None:
        """Stop riding. Whether for long is judged when the cloud alone has been measured."""
        self.open, self.reason, self._looking = False, reason, True
        self._alone.fresh = Meter(MEMORY)
        self._closed_at = self._elapsed
        least = EXPECTED * (self._alone.pace or 0.05)
        self._owed = max(self._lost, least)

    def _while_closed(self, seen: Observed) -> None:
        """The cloud alone, measured afresh, beside what riding gave before."""
        alone, riding = self._alone.rate, self._riding.rate
        if alone is not None and riding is not None:
            if self._looking and riding >= alone:
                self._wins, self._failures = self._wins + 1, 0
                self._ride()
                return
            if riding > AFTER_ALL * alone:
                self._ride()
                return
            if self._looking:
                self._wins, self._failures = 0, self._failures + 1
                self.reason = f"riding gave {riding:.1f} tokens/s, the cloud alone {alone:.1f}"
        self._looking = False
        if seen.left > NEAR_END and self._elapsed - self._closed_at >= self._pause(seen):
            self._ride()

    def _pause(self, seen: Observed) -> float:
        """Seconds without riding that pay for the last attempt and for the next one's reading."""
        reading = seen.behind / (seen.prefill_rate or UNKNOWN_READING)
        times = min(LONGEST_BACKOFF, 1 << max(0, self._failures - 1))
        return (times * self._owed + CATCH_UP * reading) / BUDGET

    def _ride(self) -> None:
        self.open, self.reason = True, ""
        self._lost, self._since_alone, self._riding_since = 0.0, 0, 0.0


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
