"""How many members draft together, and which guesses beside the chain are worth their place.

Speculation control as CoSine has it (arXiv 2503.10325): a busy verifier gets fewer drafters and
guesses, an idle one more. What decides is measured: how often the tree is right with so many
drafters, and what their steps take. Where more drafters do not pay, one is left.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field

from outrider.edge_client.group.pool import Candidate

KEEP = 0.97
"""Weight of a rate's past with each position judged."""

ENOUGH = 12.0
"""Positions after which a size counts as known."""

LOOK = 96
"""Positions after which another size is tried again, for ``ENOUGH`` positions. Twice as many after
each try that changed nothing, up to ``RARELY``: what never pays must not cost a tenth of it all."""

RARELY = 8 * LOOK

DEPTH = 6
"""Draft length at which sizes are compared."""

CLOSED = 0.5
"""Share of one drafter's mistakes that a group is hoped to avoid at the best."""

GAIN = 1.03
"""A larger group must be predicted to be so much faster to be kept."""

BUSY = 0.5
"""How likely right guesses must be at the verifier for one drafter to be enough."""

GAPS = (0.25, 0.5, 1.0, 2.0, 4.0)
RIGHT = (0.45, 0.55, 0.65, 0.8, 0.9, 0.97)
"""Gaps (natural units) at which a class of candidates ends, and how often the first choice is right
in each until it is known."""

BESIDE, LATER, RANKS = 0.6, 1.5, 3
"""Share of the first choice's mistakes in which the second is right until it is known; the r-th
after it r^-LATER of that. Those from the third on are one class."""

AGREED, VOTES = 0.5, 3
"""Share of the first choice's mistakes that is left for each further member that names it first,
until it is known; more than so many are one class."""

PRIOR_WEIGHT = 4.0

HEARD_KEEP = 0.99

AGAIN, TOGETHER = 0.15, 3.0
"""What a place is worth to a further member, as a share; and by how much more for the share of one
member's mistakes that the pool avoids."""


@dataclass(slots=True)
class Rate:
    """How often something was right, recent cases counting most."""

    right: float = 0.0
    judged: float = 0.0
    keep: float = KEEP

    def observe(self, right: bool) -> None:
        """One more case."""
        self.right = self.keep * self.right + right
        self.judged = self.keep * self.judged + 1


@dataclass(slots=True)
class _Size:
    """What is known of one number of drafters."""

    rate: Rate = field(default_factory=Rate)
    step: float | None = None
    seen: int = 0

    @property
    def hit(self) -> float:
        """How often the tree goes on with what is committed."""
        return min(0.98, self.rate.right / max(1.0, self.rate.judged))

    @property
    def error(self) -> float:
        """The standard error of that."""
        return math.sqrt(self.hit * (1 - self.hit) / max(1.0, self.rate.judged))

    def speed(self, round_seconds: float, hit: float | None = None) -> float:
        """Predicted tokens a second in rounds of ``DEPTH`` guesses, ``hit`` of which are right."""
        hit = max(0.0, self.hit if hit is None else hit)
        tokens = (1 - hit ** (DEPTH + 1)) / (1 - hit)
        return float(tokens / (DEPTH * (self.step or 0.0) + round_seconds + 1e-6))


class Crew:
    """Chooses between one drafter and ``most`` of them."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._sizes = {1: _Size(), most: _Size()}
        self._judged = 0
        self._looking = 0
        self._best, self._every = 1, LOOK

    def size(self, round_seconds: float, load: float) -> int:
        """How many are to draft now. ``load``: how likely right a guess must be at the verifier."""
        if self.most == 1 or load > BUSY:
            return 1
        group, single = self._sizes[self.most], self._sizes[1]
        if single.seen < ENOUGH:
            return 1
        at_best = single.hit + CLOSED * (1 - single.hit)
        if group.step is not None and group.speed(round_seconds, at_best) < single.speed(
            round_seconds
        ):
            return 1  # its steps take too long for anything that it could gain
        if group.seen < ENOUGH:
            return self.most
        best = self.most
        # What few cases say of the group is not believed at once: it is the one that costs more.
        surely = group.speed(round_seconds, group.hit - group.error)
        if surely < GAIN * single.speed(round_seconds):
            best = 1
        if best != self._best:
            self._best, self._every = best, LOOK
        if self._looking or self._judged >= self._every:
            if not self._looking:
                self._looking, self._judged = int(ENOUGH), 0
                self._every = min(RARELY, 2 * self._every)
            return 1 if best > 1 else self.most
        return best

    def judged(self, size: int, right: bool) -> None:
        """The tree of so many drafters held what was committed at a position, or not."""
        known = self._sizes.get(size)
        if known is None:  # some were away
            return
        known.rate.observe(right)
        known.seen += 1
        self._judged += 1
        self._looking = max(0, self._looking - 1)

    def took(self, size: int, seconds: float) -> None:
        """A step of so many drafters took so long."""
        known = self._sizes.get(size)
        if known is not None:
            step = seconds if known.step is None else known.step
            known.step = step + 0.1 * (seconds - step)


class Hearing:
    """Whether members are best heard alike or by who foresees the text, and best asked together.

    Where errors of members fall on different places, what most of them say is right far more often
    than what any of them says, so they are worth asking about one place; members that differ by
    domain only are worth more apart. Each position about which several were asked says which it is.
    """

    def __init__(self) -> None:
        self._alike, self._weighed, self._alone = (Rate(keep=HEARD_KEEP) for _ in range(3))

    def observe(self, *, alike: bool, weighed: bool, alone: bool) -> None:
        """Who was right: the pool of equals, the weighed pool, the member that weighs most."""
        self._alike.observe(alike)
        self._weighed.observe(weighed)
        self._alone.observe(alone)

    @property
    def equals(self) -> bool:
        """All are to be heard alike."""
        return self._alike.right > self._weighed.right

    @property
    def again(self) -> float:
        """What a place is still worth to a member where another was, as a share."""
        judged, alone = self._alone.judged, self._alone.right
        avoided = max(self._alike.right, self._weighed.right) - alone
        return min(1.0, AGAIN + TOGETHER * max(0.0, avoided) / max(1.0, judged - alone))


class Odds:
    """How often candidates turned out right, by their rank, the gap between them and the first, and
    how many members named them first.

    What a model calls its probability says little here: with the shared noise a token of 10 % can
    be the target's choice almost surely. What says it is by how much its noisy score leads, and
    that others say the same.
    """

    def __init__(self) -> None:
        self._rates: dict[tuple[int, int, int, bool], Rate] = {}

    def of(self, candidate: Candidate) -> float:
        """The chance that it is the token committed, if all before it are."""
        rate = self._rate(candidate)
        return rate.right / rate.judged

    def observe(self, candidate: Candidate, right: bool) -> None:
        """One such candidate was judged."""
        self._rate(candidate).observe(right)

    def _rate(self, candidate: Candidate) -> Rate:
        rank, at = min(candidate.rank, RANKS), bisect_right(GAPS, candidate.gap)
        votes = min(candidate.votes, VOTES)
        key = rank, at, votes, candidate.voices > 1
        if key not in self._rates:
            wrong = 1 - RIGHT[at]
            hope = wrong * BESIDE / rank**LATER if rank else 1 - wrong * AGREED ** (votes - 1)
            self._rates[key] = Rate(PRIOR_WEIGHT * min(1.0, hope), PRIOR_WEIGHT)
        return self._rates[key]
