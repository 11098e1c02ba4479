"""How many members draft together, and which guesses beside the chain are worth their place.

Speculation control as CoSine has it (arXiv 2503.10325): a busy verifier gets fewer drafters and
guesses, an idle one more. What decides is measured: how often the chain is right with so many
drafters, and what their steps take. Where more drafters do not pay, one is left.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

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

BINS = 10
HOPE, HOPE_WEIGHT = 0.5, 2.0
"""A guess is taken to be right as often as its confidence says times this, until so many were
judged."""


@dataclass(slots=True)
class Rate:
    """How often something was right, recent cases counting most."""

    right: float = 0.0
    judged: float = 0.0

    def observe(self, right: bool) -> None:
        """One more case."""
        self.right = KEEP * self.right + right
        self.judged = KEEP * self.judged + 1


@dataclass(slots=True)
class _Size:
    """What is known of one number of drafters."""

    rate: Rate = field(default_factory=Rate)
    step: float | None = None
    seen: int = 0

    @property
    def hit(self) -> float:
        """How often the chain is right."""
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
        if self.most == 1 or load > HOPE:
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
        """The chain of so many drafters was right at a position, or not."""
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


class Odds:
    """How often guesses of a confidence turned out right, for the chain and beside it."""

    def __init__(self) -> None:
        self._bins = [[Rate() for _ in range(BINS + 1)] for _ in range(2)]

    def of(self, confidence: float, *, side: bool) -> float:
        """The chance that a guess is the token committed, if all before it are."""
        rate = self._bins[side][int(BINS * confidence)]
        hope = confidence * (HOPE if side else 1.0)
        return (rate.right + HOPE_WEIGHT * hope) / (rate.judged + HOPE_WEIGHT)

    def observe(self, confidence: float, right: bool, *, side: bool) -> None:
        """One such guess was judged."""
        self._bins[side][int(BINS * confidence)].observe(right)
