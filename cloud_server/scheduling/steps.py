"""One step after another: weights, control and caps put around a policy. Pure, no tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from outrider.cloud_server.scheduling.batch import Caps, Choice, Rank, Request, fed, seconds, worth
from outrider.cloud_server.scheduling.control import SpeculationControl
from outrider.cloud_server.scheduling.policies import POLICIES, SchedulerName
from outrider.cloud_server.scheduling.shares import Shares
from outrider.cloud_server.scheduling.step_time import StepTime

LATENESS = 3.0
"""Power of a session's seconds a token, over the mean, that weighs it: late ones go first."""

AHEAD = 0.95
"""Seconds a token, over the mean, under which an answer that is ahead of the others sits out."""

SCARCE = 0.6
"""Share of a step that reading the weights may be for that to save anybody anything."""

LONGEST_GAP = 0.45
"""Seconds that an answer which sits out may go without a token."""

USUAL = 16.0
"""Tokens for which the mean of all counts in an answer's pace."""

LEAST_WEIGHT, MOST_WEIGHT = 0.25, 4.0

PRICE = 0.0
"""Share of a token's own time that it counts for besides: the weight of verified tokens."""

OPTIONAL_LOAD = 0.8
"""Share of a cap above which a step takes no optional row."""

LOAD_GAIN = 1 / 4

PASSES = 2.0
"""Passes over one token that a step may last however short the cap is: with a slow target one alone
uses that up, and no guess would ever be judged."""


class Ask(msgspec.Struct, frozen=True):
    """A request, whose it is, and its session's ``pace``: seconds so far, and tokens in them.

    Its last token came ``idle`` seconds ago.
    """

    request: Request
    owner: str = ""
    pace: tuple[float, float] = (0.0, 0.0)
    idle: float = 0.0


@dataclass(slots=True)
class StepScheduler:
    """Chooses steps; owns the control, what the keys used, and the load.

    ``load`` is how likely right a guess must be to be worth its part of a step now: near 0 while
    the verifier has time, 1 if no guess pays. ``loads`` are those of the last asks: less for an
    answer that is late, more for one that is ahead of the others.
    """

    name: SchedulerName = "cosine"
    caps: Caps = field(default_factory=Caps)
    control: SpeculationControl = field(default_factory=SpeculationControl)
    shares: Shares = field(default_factory=Shares)
    load: float = 0.0
    loads: list[float] = field(default_factory=list)
    _step: float = 0.4

    def choose(self, asks: Sequence[Ask], times: StepTime) -> Choice:
        """The next step, by index of the asks: guesses granted, or prompt ids held back."""
        if len(asks) == 1 and (alone := self._alone(asks[0].request, times)) is not None:
            self.loads = [self.load]
            return {0: alone}
        lateness = _lateness(asks)
        weights = self._weights(asks, lateness)
        requests = [ask.request for ask in asks]
        longest = max((request.context for request in requests), default=0)
        caps = replace(self.caps, price=PRICE * times.each, seconds=self._limit(times, longest))
        lengths = self.control.trim([len(r.reach) for r in requests])
        room = min(caps.tokens, caps.memory)
        took, tokens = _size(requests, lengths, times)
        backlog = took > caps.seconds or tokens > room
        self.control.stepped(backlog=backlog)
        if backlog:
            lengths = self.control.trim(lengths)
        busy = took > OPTIONAL_LOAD * caps.seconds or tokens > OPTIONAL_LOAD * room
        kept = [i for i, r in enumerate(requests) if not (busy and r.rank is Rank.OPTIONAL)]
        kept = kept or list(range(len(requests)))
        if times.fixed < SCARCE * took:
            kept = [i for i in kept if not self._ahead(asks[i], lateness[i])] or kept
        asked = [_weighed(requests[i], weights[i], lengths[i]) for i in kept]
        policy = POLICIES[self.name]()
        choice = policy.choose(asked, times, caps)
        self._tell(asked, choice, times)
        self._step = seconds(asked, choice, times)
        self.loads = [min(1.0, self.load / weight) for weight in weights]
        return {kept[i]: drafts for i, drafts in choice.items()}

    def _alone(self, request: Request, times: StepTime) -> int | None:
        """The same where one request asks and no cap is near: few operations, no arrays.

        A single user's rounds are short, and after a pass everything that is touched is cold. The
        guesses are those that make a token cheapest; their chances fall, so the first that does not
        pay ends them (``fifo`` takes all). None: the long way has to decide.
        """
        reach, count = request.reach, len(request.reach)
        room = min(self.caps.tokens, self.caps.memory)
        if request.tokens + count > OPTIONAL_LOAD * room or count > self.control.allowed:
            return None
        took = times.of(request.tokens, 1, request.context)
        most = took + times.each * count
        near = most > OPTIONAL_LOAD * self.caps.seconds  # the limit itself is only asked for then
        if near and most > OPTIONAL_LOAD * self._limit(times, request.context):
            return None
        self.control.stepped(backlog=False)
        if request.rank is Rank.PREFILL:
            return 0
        gain, taken = 1.0, 0
        for chance in reach:
            if self.name == "cosine" and times.each * gain > chance * took:
                break
            took, gain, taken = took + times.each, gain + chance, taken + 1
        self._toward(times.each * gain / took if took > 0 else 0.0)
        return taken

    def _limit(self, times: StepTime, longest: int) -> float:
        """Seconds that a step may take."""
        return max(self.caps.seconds, PASSES * times.of(1, 1, longest))

    def _weights(self, asks: Sequence[Ask], lateness: Sequence[float]) -> list[float]:
        """Late sessions and keys under their share weigh more; the mean is about 1."""
        factors = self.shares.factors(ask.owner for ask in asks)
        return [
            min(
                MOST_WEIGHT,
                max(LEAST_WEIGHT, ask.request.weight * late**LATENESS * factors[ask.owner]),
            )
            for ask, late in zip(asks, lateness, strict=True)
        ]

    def _ahead(self, ask: Ask, late: float) -> bool:
        """Whether this answer can do without the step: its row is saved while its guesses grow.

        So answers keep one pace without a guess being refused that would pay.
        """
        if ask.request.rank is Rank.PREFILL or late >= AHEAD:
            return False
        return ask.idle + 2 * self._step < LONGEST_GAP

    def _tell(self, requests: Sequence[Request], choice: Choice, times: StepTime) -> None:
        """The load: a guess pays while its chance is above its time over that of a token."""
        rows = {i: d for i, d in choice.items() if requests[i].rank is not Rank.PREFILL}
        if not rows:
            return
        free = Caps(tokens=1 << 30)
        each = worth(requests, rows, times, free) or 1.0
        self._toward(times.each / max(1e-9, each))

    def _toward(self, load: float) -> None:
        self.load += LOAD_GAIN * (min(1.0, load) - self.load)

    def done(self, used: Mapping[str, tuple[int, int, int]], times: StepTime, now: float) -> None:
        """A step is over: of each key so many rows, tokens and ids of context were in it."""
        self.shares.charge(
            {
                owner: rows * times.row + times.padded * context + times.each * tokens
                for owner, (rows, tokens, context) in used.items()
            },
            now,
        )


def _lateness(asks: Sequence[Ask]) -> list[float]:
    """Each session's seconds a token, over the mean.

    The mean counts for some tokens: a few say little of how late an answer is.
    """
    elapsed, tokens = (sum(ask.pace[i] for ask in asks) for i in (0, 1))
    mean = elapsed / tokens if elapsed and tokens else 1.0
    return [(a.pace[0] + USUAL * mean) / (a.pace[1] + USUAL) / mean for a in asks]


def _size(
    requests: Sequence[Request], lengths: Sequence[int], times: StepTime
) -> tuple[float, int]:
    """Seconds and tokens of a step with all of them, so many guesses each.

    Prompts are no backlog: they take what is left, and fewer guesses would not help them.
    """
    everything = {i: n for i, n in enumerate(lengths) if requests[i].rank is not Rank.PREFILL}
    return seconds(requests, everything, times), fed(requests, everything)


def _weighed(request: Request, weight: float, most: int) -> Request:
    """The request with another weight and at most so many guesses."""
    return Request(
        rank=request.rank,
        tokens=request.tokens,
        reach=request.reach if most >= len(request.reach) else request.reach[:most],
        context=request.context,
        weight=weight,
        since=request.since,
    )
