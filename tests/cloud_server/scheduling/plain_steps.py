"""The rules around a policy on plain lists, slow and short: what those on arrays must choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType

import numpy as np

from outrider.cloud_server.scheduling.batch import Caps, Choice, Rank, Request, fed, seconds, worth
from outrider.cloud_server.scheduling.control import SpeculationControl
from outrider.cloud_server.scheduling.policies import SchedulerName
from outrider.cloud_server.scheduling.shares import Shares
from outrider.cloud_server.scheduling.step_time import StepTime
from outrider.cloud_server.scheduling.steps import (
    AHEAD,
    LATENESS,
    LEAST_WEIGHT,
    LOAD_GAIN,
    LONGEST_GAP,
    MOST_WEIGHT,
    OPTIONAL_LOAD,
    PASSES,
    PRICE,
    SCARCE,
    USUAL,
    Ask,
)


@dataclass(slots=True)
class PlainScheduler:
    """The same as ``StepScheduler``, one request after the other."""

    policies: ModuleType
    name: SchedulerName = "cosine"
    caps: Caps = field(default_factory=Caps)
    control: SpeculationControl = field(default_factory=SpeculationControl)
    shares: Shares = field(default_factory=Shares)
    load: float = 0.0
    loads: list[float] = field(default_factory=list)
    _step: float = 0.4

    def choose(self, asks: Sequence[Ask], times: StepTime) -> Choice:
        """The next step, by index of the asks: guesses granted, or prompt ids held back."""
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
        policy = self.policies.POLICIES[self.name]()
        choice = policy.choose(asked, times, caps)
        self._tell(asked, choice, times)
        self._step = seconds(asked, choice, times)
        self.loads = [min(1.0, self.load / weight) for weight in weights]
        return {kept[i]: drafts for i, drafts in choice.items()}

    def _limit(self, times: StepTime, longest: int) -> float:
        """Seconds that a step may take."""
        return max(self.caps.seconds, PASSES * times.of(1, 1, longest))

    def _weights(self, asks: Sequence[Ask], lateness: Sequence[float]) -> list[float]:
        """Late sessions and keys under their share weigh more; the mean is about 1."""
        factors = self.shares.factors(ask.owner for ask in asks)
        # Numpy's power differs from Python's in the last bit now and then, which decides ties.
        powers = (np.array(lateness) ** LATENESS).tolist()
        return [
            min(
                MOST_WEIGHT,
                max(LEAST_WEIGHT, share * late * factors[ask.owner]),
            )
            for ask, late, share in zip(asks, powers, _shares(asks), strict=True)
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


def _shares(asks: Sequence[Ask]) -> list[float]:
    """Each session's weight over the mean of its owner's."""
    given: dict[str, list[float]] = {}
    for ask in asks:
        given.setdefault(ask.owner, []).append(ask.request.weight)
    mean = {owner: sum(weights) / len(weights) for owner, weights in given.items()}
    return [a.request.weight / mean[a.owner] for a in asks]


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
