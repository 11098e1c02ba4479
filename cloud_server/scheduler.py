"""When to start a pass: now, unless waiting for more guesses pays. Pure decisions on plain numbers.

The rule of ``docs/architecture.md``: with m live guesses and the j-th next expected in d_j, take
the j that maximises E[tokens | m + j] - weight * rate * (T_pass + d_j). What the objectives change
is the weight of time, and how long after the last verdict a session may be kept waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.protocol.session import Objective


@dataclass(frozen=True, slots=True)
class Stance:
    """One objective in numbers. ``weight``: what a second is worth against target work.

    ``cap``: longest wait since the last verdict, in passes (infinite: as long as patience).
    """

    weight: float
    cap: float


STANCES: dict[Objective, Stance] = {
    "latency": Stance(1.0, 0.3),
    "balanced": Stance(0.5, 1.0),
    "cost": Stance(0.1, float("inf")),
}


def expected_tokens(guesses: int, alpha: float) -> float:
    """Tokens that a pass commits with so many guesses: (1 - a^(k+1)) / (1 - a)."""
    return float((1 - alpha ** (guesses + 1)) / (1 - alpha))


def wait(
    live: int,
    arrivals: Sequence[float],
    *,
    alpha: float,
    rate: float,
    pass_time: float,
    stance: Stance,
) -> float:
    """Seconds to wait for further guesses; 0: start now.

    ``arrivals[j]`` is when the (j+1)-th next guess is expected, in seconds from now.
    """
    worth = stance.weight * rate
    best, best_wait = expected_tokens(live, alpha) - worth * pass_time, 0.0
    for j, delay in enumerate(arrivals, start=1):
        value = expected_tokens(live + j, alpha) - worth * (pass_time + delay)
        if value > best:
            best, best_wait = value, delay
    return best_wait


def useful(alpha: float, each: float, rate: float, limit: int) -> int:
    """How many guesses in a row are worth their share of a pass, each costing ``each`` seconds.

    The k-th is reached with probability alpha^k and then saves a token's time, 1 / rate.
    """
    count, reached = 0, alpha
    while count < limit and reached > each * rate:
        count += 1
        reached *= alpha
    return count
