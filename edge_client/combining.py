"""How far to ride where models are combined: one row at a time as plain collaborative decoding has
it, on without waiting, or in turns with the cloud, whichever is predicted to be quickest.

One row at a time also measures how often a guess stands, and costs nothing against plain
collaborative decoding. So the edge does anything else only where what is known by then says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from outrider.edge_client.policy import Observed, Plan
from outrider.protocol.decoding.sampling import Collaboration, Combination
from outrider.protocol.origins import Origins

CAUTION = 2.0
"""Standard errors by which acceptance may be measured too high: the edge goes on without waiting
only if that pays even then."""

LONGEST = 32
"""Guesses outstanding at most."""

MOST_PROPOSED = 8
"""Proposals of the cloud's that a frame scores at most: its rows behind those begin the next."""

TURNS_KNOWN = 8.0
"""Guesses of the edge's that are judged before it is asked whether turns would do better."""

TURNS_TRIED, TURNS_HOPE = 4.0, 0.95
"""Proposals of the cloud's whose fate tells how good they are, and what share of them is hoped to
stand at most until then: only where turns would win with that are they tried."""

TURNS_GAIN = 0.95
"""The time of a token in turns must be less than this share of that of the other ways."""

READING = 0.25
"""Time of a token that is scored along with others, in draft steps."""

USUAL_PASS = 0.03
"""Seconds, where the cloud has told nothing."""


@dataclass(frozen=True, slots=True)
class Combining:
    """Seconds a draft step, a pass of the cloud's, a round trip, and a row on the uplink; the
    acceptance and its standard error; guesses that were judged. None: not known."""

    alpha: float
    error: float
    judged: float
    step: float | None
    target: float
    rtt: float | None
    row: float

    @classmethod
    def of(cls, seen: Observed, alpha: float, weight: float, row: float) -> Combining:
        """``alpha`` rests on ``weight`` guesses. A frame's time in the cloud's queue is left out:
        it is mostly that of going on, since frames come while a pass runs."""
        link = seen.link
        told = link.passes.of(1) if link.passes.known else USUAL_PASS
        target = max(1e-4, told if link.target is None else link.target)
        rtt = link.greeting if link.srtt is None else link.srtt
        error = sqrt(alpha * (1 - alpha) / weight)
        return cls(alpha, error, seen.judged, seen.draft_step, target, rtt, row)

    def plan(self, made_of: Collaboration, origins: Origins) -> Plan:
        """``origins``: what became of the cloud's proposals in the text so far."""
        if self.step is None:
            return Plan(1, 1)  # the first guess tells
        if self.rtt is None:
            return Plan(1, LONGEST)  # the first verdict tells; till then nothing can be wasted
        waiting = self.waiting()
        if self.judged >= TURNS_KNOWN:
            others = min(waiting, self.going_on(self.alpha))
            if self.turns(self._stands(made_of, origins)) < TURNS_GAIN * others:
                return Plan(1, 1, offers=True)
        if self.going_on(self.alpha - CAUTION * self.error) < waiting:
            return Plan(1, self._window())
        return Plan(1, 1)

    def waiting(self) -> float:
        """Seconds a token with one row at a time. The target's row is made meanwhile, so that is a
        trip or a pass."""
        return max(self.target, max(self._step, self.row) + self.row + self._rtt)

    def going_on(self, alpha: float) -> float:
        """Seconds a token where the edge never waits.

        Its steps follow each other, and those are wasted that were taken between a refused guess
        and the verdict on it: whole ones, so one at least, and half a one more than fits on
        average. The verdict comes after a trip and after the cloud's lag. Where a pass takes longer
        than a row of the edge's, that grows by the difference with each guess that stands, up to
        the rest of a pass and one more: then one pass has all that came meanwhile.
        """
        alpha = min(0.99, max(0.0, alpha))
        each = max(1e-6, self._step, self.row)
        trip = self.row + self._rtt + 0.5 * each
        slower, lag = self.target - each, 0.0
        if slower > 0:
            lag = max(0.0, slower - trip)
            until = max(0.0, 1.5 * self.target - lag) / slower
            lag += slower * alpha * (1 - alpha**until) / (1 - alpha)
        return each + (1 - alpha) * max(each, trip + lag)

    def turns(self, stands: float) -> float:
        """Seconds a token in turns, of the cloud's proposals a share of ``stands`` being right.

        The cloud makes as many rows and proposals in the time of a token as passes fit into it, and
        the edge's next frame scores them: each spares a trip if it stands.
        """
        waiting = self.waiting()
        rows = min(MOST_PROPOSED, int(waiting / self.target))
        tokens = sum(stands**i for i in range(rows))
        return (waiting + (rows - 1) * (self.row + READING * self._step)) / max(1.0, tokens)

    def _stands(self, made_of: Collaboration, origins: Origins) -> float:
        """How many of the cloud's proposals stand; until some were judged, how many may.

        In an ensemble in which the edge has the weight w, its guesses are refused as often as
        (1 - w) times the distance between both sides, and the cloud's proposals w times.
        """
        if origins.judged >= TURNS_TRIED:
            return origins.right / origins.judged
        if made_of.kind is not Combination.ENSEMBLE or made_of.weight >= 1:
            return TURNS_HOPE
        refused = (1 - self.alpha) * made_of.weight / (1 - made_of.weight)
        return min(TURNS_HOPE, max(0.0, 1 - refused))

    def _window(self) -> int:
        """Guesses that cover a trip and two passes."""
        trip = self._rtt + 2 * self.target
        return max(4, min(LONGEST, 2 + int(trip / max(1e-4, self._step))))

    @property
    def _step(self) -> float:
        return self.step or 0.0

    @property
    def _rtt(self) -> float:
        return self.rtt or 0.0
