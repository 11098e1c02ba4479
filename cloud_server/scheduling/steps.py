"""One step after another: weights, control and caps put around a policy. Pure, no tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from outrider.cloud_server.scheduling.batch import Caps, Choice, Rank, Request
from outrider.cloud_server.scheduling.control import SpeculationControl
from outrider.cloud_server.scheduling.policies import POLICIES, SchedulerName
from outrider.cloud_server.scheduling.shares import Shares
from outrider.cloud_server.scheduling.step_time import StepTime
from outrider.cloud_server.scheduling.table import Counts, Floats, Mask, Table

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

OPTIONAL = int(Rank.OPTIONAL)

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
        table = Table.of([ask.request for ask in asks])
        lateness = _lateness(asks)
        table.weight = self._weights(asks, table.weight, lateness)
        longest = int(table.context.max(initial=0))
        caps = replace(self.caps, price=PRICE * times.each, seconds=self._limit(times, longest))
        lengths = self._trimmed(table.most)
        room = min(caps.tokens, caps.memory)
        # Prompts are no backlog: they take what is left, and fewer guesses would not help them.
        others = table.verified()
        guesses = int(lengths[~table.prompts].sum() if table.reads else lengths.sum())
        tokens, took = int(others.tokens.sum()) + guesses, others.seconds(guesses, times)
        backlog = took > caps.seconds or tokens > room
        self.control.stepped(backlog=backlog)
        if backlog:
            lengths = self._trimmed(lengths)
        busy = took > OPTIONAL_LOAD * caps.seconds or tokens > OPTIONAL_LOAD * room
        kept = table.rank != OPTIONAL
        kept = kept if busy and kept.any() else np.ones(len(table), np.bool_)
        if times.fixed < SCARCE * took:
            even = kept & ~self._ahead(asks, table.prompts, lateness)
            kept = even if even.any() else kept
        index = np.flatnonzero(kept)
        asked = table.of_drafts(lengths).of_rows(index)
        policy = POLICIES[self.name]()
        choice = policy.choose(asked, times, caps)
        self._tell(asked, choice, times)
        self.loads = np.minimum(1.0, self.load / table.weight).tolist()
        if asked is table:
            return choice
        names = index.tolist()
        return {names[i]: drafts for i, drafts in choice.items()}

    def _trimmed(self, lengths: Counts) -> Counts:
        if int(lengths.sum()) <= self.control.allowed:
            return lengths
        return np.array(self.control.trim(lengths.tolist()), np.int64)

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

    def _weights(self, asks: Sequence[Ask], weight: Floats, lateness: Floats) -> Floats:
        """Late sessions and keys under their share weigh more; the mean is about 1."""
        owners = [ask.owner for ask in asks]
        factors = self.shares.factors(owners)
        weight = _shares(weight, owners) * lateness**LATENESS
        if len(factors) > 1:
            weight *= [factors[owner] for owner in owners]
        else:
            weight *= next(iter(factors.values()))
        return np.clip(weight, LEAST_WEIGHT, MOST_WEIGHT)

    def _ahead(self, asks: Sequence[Ask], reads: Mask, lateness: Floats) -> Mask:
        """Which answers can do without the step: their row is saved while their guesses grow.

        So answers keep one pace without a guess being refused that would pay.
        """
        idle = np.array([ask.idle for ask in asks])
        return ~reads & (lateness < AHEAD) & (idle + 2 * self._step < LONGEST_GAP)

    def _tell(self, requests: Table, choice: Choice, times: StepTime) -> None:
        """The load: a guess pays while its chance is above its time over that of a token."""
        drafts = np.zeros(len(requests), np.int64)
        inside = np.zeros(len(requests), np.bool_)
        rows = list(choice)
        drafts[rows] = list(choice.values())
        inside[rows] = True
        step = requests.of_rows(np.flatnonzero(inside))
        self._step = step.seconds(sum(choice.values()), times)
        if requests.reads:
            inside &= ~requests.prompts
            step = requests.of_rows(np.flatnonzero(inside))
        if len(step):
            rest = requests.of_rows(np.flatnonzero(~inside))
            each = step.worth(drafts[inside], rest, times) or 1.0
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


def _shares(weight: Floats, owners: Sequence[str]) -> Floats:
    """Each session's weight over the mean of its owner's: it moves nothing between owners."""
    if (weight == 1.0).all():
        return weight
    _, owner = np.unique(owners, return_inverse=True)
    mean = np.bincount(owner, weight) / np.bincount(owner)
    return np.asarray(weight / mean[owner])


def _lateness(asks: Sequence[Ask]) -> Floats:
    """Each session's seconds a token, over the mean.

    The mean counts for some tokens: a few say little of how late an answer is.
    """
    elapsed, tokens = [ask.pace[0] for ask in asks], [ask.pace[1] for ask in asks]
    seconds, count = sum(elapsed), sum(tokens)
    mean = seconds / count if seconds and count else 1.0
    late: Floats = (np.array(elapsed) + USUAL * mean) / (np.array(tokens) + USUAL) / mean
    return late
