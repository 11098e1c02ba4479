"""When to start a pass: now, unless waiting for more guesses pays. Pure, on plain numbers.

A run of right guesses of acceptance a has to be got through in as little time as can be. With m
live guesses, and the j-th next expected in d_j, a pass started then lasts T and decides m + j + 1
positions. If all guesses up to there were right, which has probability a^(m+j+1), the run needs
1 / (1 - a^n) passes more on average, where n guesses arrive during a pass: what arrives meanwhile
is not lost, it is judged next. So take the j that minimises

    d_j + worth * T * a^(m+j+1) * (1 - 1/n) / (1 - a^n)

(1 - 1/n) because a later pass is spared only where the wait moved a guess across its start.
``worth`` is what the objective thinks a second of the target costs against one of the user's. With
short passes or slow drafters j = 0 wins (start eagerly); with long passes and quick drafters a few
guesses are worth waiting for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.protocol.objective import Objective


@dataclass(frozen=True, slots=True)
class Stance:
    """One objective in numbers. ``worth``: a second of the target, in seconds of the user.

    ``cap``: longest wait since the last commit, in passes (infinite: as long as patience).
    """

    worth: float
    cap: float


STANCES: dict[Objective, Stance] = {
    "latency": Stance(1.0, 0.3),
    "balanced": Stance(2.0, 1.0),
    "cost": Stance(10.0, float("inf")),
}


def wait(
    live: int,
    first: float,
    gap: float,
    count: int,
    *,
    alpha: float,
    pass_time: float,
    stance: Stance,
    longest: float = float("inf"),
) -> float:
    """Seconds to wait for further guesses; 0: start now.

    ``first`` is when the next guess is expected, in seconds from now, and ``gap`` how long after
    it each of the further ones; ``count`` of them are looked at. Those that come after ``longest``
    are not waited for: setting out for them would be a wait for nothing.
    """
    if count == 0 or first > longest:
        return 0.0
    meanwhile = max(1.0, pass_time / gap if gap > 0 else float(count))
    further = (1 - 1 / meanwhile) / (1 - alpha**meanwhile)
    target = stance.worth * pass_time
    best, best_wait = target * alpha ** (live + 1) * further, 0.0
    for j in range(count):
        delay = first + j * gap
        if delay > longest:
            break
        cost = delay + target * alpha ** (live + j + 2) * further
        if cost < best:
            best, best_wait = cost, delay
    return best_wait


def useful(alpha: float, each: float, rate: float, limit: int) -> int:
    """How many guesses in a row are worth their share of a pass, each costing ``each`` seconds.

    The k-th is reached with probability alpha^k and then saves a token's time, 1 / rate.
    """
    count, reached, least = 0, alpha, each * rate
    while count < limit and reached > least:
        count += 1
        reached *= alpha
    return count


def own_rate(alpha: float, step: float, pass_time: float, limit: int) -> float:
    """Tokens a second of co-located speculation: the best E(k) / (k * step + pass_time), k >= 0.

    E(k) = (1 - alpha^(k+1)) / (1 - alpha) tokens are expected of a pass that judges k guesses.
    """
    best = expected = reached = 0.0
    for k in range(limit + 1):
        reached = reached * alpha if k else 1.0
        expected += reached
        best = max(best, expected / max(1e-9, k * step + pass_time))
    return best


def own_count(reached: float, alpha: float, step: float, rate: float, limit: int) -> int:
    """How many guesses a drafter beside the target should make, each in ``step`` seconds.

    ``reached`` is the probability that all guesses before them are right. Each is worth its time
    while the tokens expected of it are more than ``rate`` tokens a second make of that time.
    """
    count = 0
    while count < limit and reached * alpha > rate * step:
        count += 1
        reached *= alpha
    return count


def worth_drafting(
    own: tuple[float, float], arrivals: Sequence[float], alpha: float, rate: float, longest: float
) -> bool:
    """Whether guesses made beside the target are worth more than waiting for the edge's.

    ``own`` is the tokens expected of them and the seconds they take, ``arrivals`` when the edge's
    are expected, ``longest`` how long they may be awaited; a second is worth ``rate`` tokens.
    """
    tokens, seconds = own
    ours = tokens - rate * seconds
    expected, reached = 0.0, 1.0
    for delay in arrivals:
        if delay > longest:
            break
        reached *= alpha
        expected += reached
        if expected - rate * delay > ours:
            return False
    return True
