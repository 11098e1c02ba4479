"""What a mode would give, predicted from a few figures: for people who want to know beforehand.

The running policy (:mod:`outrider.edge_client.adaptive`) decides from what it measures while it
works; this is the same model on paper (``docs/architecture.md``, "How far to ride ahead").
"""

from __future__ import annotations

from dataclasses import dataclass, field

from outrider.edge_client.gate import most_gained
from outrider.protocol.link import PassCurve

RUNS = 4000
"""Runs of right guesses longer than this are too rare to matter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Acceptance from 0 to 1; draft step, pass over one token and round trip in seconds.

    ``passes`` tells how much longer a pass over more tokens takes; unknown, it takes no longer.
    """

    acceptance: float
    step: float
    target: float
    rtt: float
    passes: PassCurve = field(default_factory=PassCurve)

    def judging(self, length: int) -> float:
        """Seconds of a pass that judges so many guesses."""
        passes = self.passes
        return self.target * (passes.of(length + 1) / passes.of(1) if passes.known else 1.0)

    def run(self, length: int) -> float:
        """Expected tokens of a pass that judges so many guesses, the target's own included."""
        a = self.acceptance
        return float(length + 1 if a >= 1 else (1 - a ** (length + 1)) / (1 - a))


def cloud_alone(figures: Figures) -> float:
    """Tokens a second of plain cloud streaming."""
    return 1 / figures.target


def lockstep(figures: Figures, length: int) -> float:
    """Tokens a second where every frame waits for the verdict on the one before."""
    round_ = length * figures.step + figures.rtt + figures.judging(length)
    return figures.run(length) / round_


def passes(figures: Figures, length: int) -> float:
    """Passes of the target for a token, in lockstep at this length."""
    return 1 / figures.run(length)


def best_lockstep(figures: Figures, longest: int) -> tuple[int, float]:
    """The quickest draft length up to ``longest``, and its tokens a second."""
    rates = {length: lockstep(figures, length) for length in range(1, longest + 1)}
    length = max(rates, key=lambda g: rates[g])
    return length, rates[length]


def streaming(figures: Figures) -> float:
    """Tokens a second where the cloud goes on by itself and the guesses chase it.

    After a contradiction the edge knows of it half a round trip later, and its n-th guess is there
    after the whole trip and n steps. A run of n right guesses and the token that contradicts it
    take the cloud n + 1 passes alone, or, with the guesses, until the last has come and a pass
    over it is done (the one under way, half of it on average, comes first). Where longer passes are
    dear, it is no quicker than with guesses that cost nothing.
    """
    a, target = min(0.999, figures.acceptance), figures.target
    chance, tokens, seconds = 1 - a, 0.0, 0.0
    for n in range(RUNS):
        chased = figures.rtt + n * figures.step + 1.5 * target
        tokens += chance * (n + 1)
        seconds += chance * min((n + 1) * target, chased)
        chance *= a
    if not figures.passes.known:
        return tokens / seconds
    most = cloud_alone(figures) * most_gained(figures.passes, a)
    return min(tokens / seconds, most)
