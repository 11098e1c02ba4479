"""The branch cache: other guesses beside the chain, for the places where it may be refused.

While verdicts are on their way a quick drafter has time to spare. A chain that goes on is of use
only if all of it is right; at some place of it the runner-up may be the likelier investment. So the
next guesses go where they are most likely to be of use, along the chain or beside it: the tree of
the largest expected number of right guesses. The other guesses are sent ahead like any and wait at
the cloud, so a refusal that they foresaw costs no round trip and no drafting.

How likely a guess is right is learned from its *lead*: by how much its score beat the runner-up's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.runtime.lm.drafter import Guess

LEADS = (0.25, 0.5, 1.0, 2.0, 4.0)
RIGHT = (0.5, 0.65, 0.7, 0.88, 0.95, 0.99)
"""Leads (natural units) at which a class of guesses ends, and the share that is right in each until
it is known: about as in the recorded pairs (``benchmarks/records``)."""

SECOND = 0.5
"""Share of refused guesses whose runner-up is right, until it is known."""

PRIOR_WEIGHT = 8.0
FORGETTING = 0.98

LEAST = 0.05
"""Chance to be of use under which no guess is made beside the chain, however idle the drafter."""

BETTER = 1.5
"""By how much a second beside the chain must promise more than one spent on going on."""


WAIT = 0.3
"""For how much of a pass the cloud waits for the first guesses after a refusal, about."""


@dataclass(slots=True)
class Share:
    """A share that is observed, the recent past counting most."""

    hits: float
    of: float

    @property
    def value(self) -> float:
        return self.hits / self.of

    def observe(self, hit: bool) -> None:
        """One more."""
        self.hits = FORGETTING * self.hits + hit
        self.of = FORGETTING * self.of + 1


class Trust:
    """How likely guesses are right, by their lead, and runner-ups where guesses were refused."""

    def __init__(self) -> None:
        self._right = [Share(PRIOR_WEIGHT * p, PRIOR_WEIGHT) for p in RIGHT]
        self._second = Share(PRIOR_WEIGHT * SECOND, PRIOR_WEIGHT)

    def right(self, lead: float) -> float:
        """Chance that a guess with this lead is right."""
        return self._right[bisect_right(LEADS, lead)].value

    @property
    def second(self) -> float:
        """Chance that the runner-up is right where the guess was refused."""
        return self._second.value

    def judged(self, lead: float, right: bool) -> None:
        """A guess was judged."""
        self._right[bisect_right(LEADS, lead)].observe(right)

    def refused(self, second: bool) -> None:
        """A guess was refused; whether its runner-up was right."""
        self._second.observe(second)


@dataclass(slots=True)
class Place:
    """A guess of the chain at sequence index ``index``; ``side`` are those after its runner-up."""

    index: int
    token: int
    second: int | None
    lead: float
    at: float
    branched: bool = False
    side: list[Place] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Side:
    """Guess ``count`` tokens after the runner-up of the guess at ``index``."""

    index: int
    second: int
    count: int


def places(start: int, guess: Guess, now: float) -> list[Place]:
    """The places of a chain of guesses from sequence index ``start`` on; none where of a tree."""
    if guess.parents or not guess.runners_up:
        return []
    parts = zip(guess.tokens, guess.runners_up, guess.leads, strict=True)
    return [Place(start + i, *part, now) for i, part in enumerate(parts)]


@dataclass(frozen=True, slots=True)
class Pace:
    """What time is like: seconds of a guess and of an id read, of a pass, and of the round trip."""

    step: float
    read: float
    target: float
    rtt: float


class Branches:
    """What is known of one session's guesses. ``line``: those of the chain, as far as known."""

    def __init__(self, trust: Trust) -> None:
        self.line: list[Place] = []
        self._trust = trust
        self._answer = 0
        self._length = 0
        self._told = 0.0
        self._begun_anew = True

    def settle(self, answer: int, ids: Sequence[int], ahead: Sequence[int], now: float) -> int:
        """Learn from what was committed by ``now``; ``ahead`` is the chain that stands after it.

        Returns how often the text went on with guesses that stood beside the chain.
        """
        hits = 0
        if answer != self._answer:
            self._answer, self.line = answer, []
        if len(ids) != self._length:
            self._length, self._told, self._begun_anew = len(ids), now, not ahead
        while self.line and self.line[0].index < len(ids):
            place = self.line.pop(0)
            right = ids[place.index] == place.token
            self._trust.judged(place.lead, right)
            if not right:
                answered = ids[place.index] == place.second
                self._trust.refused(answered)
                hits += answered and place.branched
                self.line = place.side if answered else []
        first = self.line[0].index - len(ids) if self.line else 0
        if [place.token for place in self.line] != list(ahead[first:]):
            self.line = []  # begun anew, or written by somebody else
        return hits

    def extended(self, added: list[Place]) -> None:
        """The chain was made longer."""
        joined = self.line and added and self.line[-1].index + 1 == added[0].index
        self.line = [*self.line, *added] if joined else added

    def branched(self, index: int, side: list[Place]) -> None:
        """The runner-up at ``index`` has guesses after it now."""
        for place in self.line:
            if place.index == index:
                place.branched, place.side = True, side

    def best(
        self, pace: Pace, now: float, alpha: float, longest: int, *, away: int, going_on: bool
    ) -> Side | None:
        """Where to guess beside the chain; None: going on is better, or nothing is worth it.

        Only what is in the pass under way is looked at: beside later guesses there is time later.

        ``alpha`` is the chance of a guess that is yet to be made, at most ``longest`` are made in
        one place; ``away``: so many ids have to be read to go on with the chain; ``going_on``: it
        may be made longer.
        """
        step, left = max(1e-6, pace.step), self._left(pace, now)
        in_pass = self._told - pace.rtt + (WAIT * pace.target if self._begun_anew else 0.0)
        reached = survives = 1.0  # chance that all so far are right, and those in the pass
        found: list[tuple[float, Place]] = []
        for place in self.line:
            right = self._trust.right(place.lead)
            if place.at <= in_pass:
                survives *= right
                if place.second is not None and not place.branched:
                    found.append((reached * (1 - right) * self._trust.second, place))
            reached *= right
        on_chain = reached * alpha if going_on else 0.0
        going = on_chain / step
        if away:
            count = int((left - away * pace.read) / step)
            useful = on_chain * sum(alpha**i for i in range(count))
            going = useful / (count * step + away * pace.read) if count > 0 else 0.0
        best, side = BETTER * max(going, LEAST / step), None
        end = self.line[-1].index if self.line else 0
        for chance, place in found:
            count, useful, last = 0, 0.0, chance * alpha
            while count < max(1, min(longest, left / step)) and last >= max(LEAST, on_chain):
                count, useful, last = count + 1, useful + last, last * alpha
            # Who leaves the chain has to read it again, unless it is refused meanwhile.
            reading = max(0, place.index - (end + 1 - away)) if away else end - place.index
            seconds = count * step + reading * (1.0 if away else survives) * pace.read
            if count and place.second is not None and useful / seconds > best:
                best, side = useful / seconds, Side(place.index, place.second, count)
        return side

    def _left(self, pace: Pace, now: float) -> float:
        """Seconds until a guess has to leave in order to be in the next pass."""
        target = max(1e-6, pace.target)
        return target - (now - self._told + pace.rtt) % target
