"""How many clients a verifier could serve at most: an oracle that knows costs and acceptance.

It knows each recorded answer beforehand and what every step costs, and runs one kind of schedule
for ever, the best of all: a step every T seconds; answer c has k guesses judged whenever it has
guesses, or is in a share of the steps only. After a contradiction no guess can be there when the
next step begins, since the edge has to hear of it first: the row goes on with one token, or is left
out of that step. The drafter makes so many guesses in the time of a step, one after the other: also
at the place of the target's own token, which nobody at the edge knows before the next step has
begun. Not drafting is one of the schedules. What it cannot do is know which guess is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

from outrider.benchmarks.load_world import ROUND_TRIP, Shape
from outrider.simulator.traced import Line, Record

LONGEST = 16
STEP = 0.0005
"""Resolution of T in seconds."""

TURNS = 8
"""Times that an answer is walked through."""

FINE = 10
"""Parts of a guess that are told apart."""

STOCK = 64.0
"""Guesses beyond the text at most."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way of serving an answer, a step in the mean: tokens it gains, rows and tokens it costs.

    ``drafts`` are judged at a time.
    """

    drafts: int
    gained: float
    rows: float
    fed: float


def ways(line: Line, made: float, fresh: float) -> list[Way]:
    """All draft lengths, going on alone after a contradiction or sitting a step out.

    ``made``: guesses in the time of a step, ``fresh``: in a step that begins with a verdict on its
    way to the edge.
    """
    return _ways(line.right, _upward(made), _upward(fresh))


def _upward(guesses: float) -> float:
    """Rounded up, so that the same walks serve many lengths of a step."""
    return min(LONGEST + 1.0, math.ceil(FINE * max(0.0, guesses)) / FINE)


@cache
def _ways(right: tuple[bool, ...], made: float, fresh: float) -> list[Way]:
    return [_walk(right, k, alone, made, fresh) for k, alone in product(range(LONGEST + 1), (1, 0))]


def _walk(right: tuple[bool, ...], drafts: int, alone: int, made: float, fresh: float) -> Way:
    """``stock``: guesses beyond the text when a step begins, all of them right so far as is known;
    None: the edge has yet to hear where the text went."""
    n = len(right)
    at = steps = rows = fed = 0
    stock: float | None = fresh
    while at < n * TURNS:
        steps += 1
        if stock is None:
            if alone:
                rows, fed, at = rows + 1, fed + 1, at + 1
            # The first guess after the verdict stands where the row went on alone.
            lost = alone and not right[(at - 1) % n]
            stock = None if lost else max(0.0, fresh - alone)
            continue
        count = min(drafts, int(stock))
        good = 0
        while good < count and right[(at + good) % n]:
            good += 1
        rows, fed, at = rows + 1, fed + count + 1, at + good + 1
        follows = good == count and right[(at - 1) % n]
        # Overtaken, the drafter begins again when it hears the verdict.
        left = min(STOCK, stock + made - (count + 1))
        stock = fresh if drafts == 0 else left if follows and left >= 0 else None
    return Way(drafts, at / steps, rows / steps, fed / steps)


def bound(record: Record, shape: Shape, rate: float, draft_step: float, gap: float) -> float:
    """Clients at ``rate`` tokens a second each, with at most ``gap`` seconds between steps."""
    best, step = 0.0, shape.fixed
    while step <= gap:
        made = step / draft_step
        cost = _cost(record, shape, rate * step, made, (step - ROUND_TRIP) / draft_step)
        if cost is not None:
            best = max(best, (step - shape.fixed) / cost)
        step += STEP
    return min(best, float(shape.sessions))


def _cost(record: Record, shape: Shape, need: float, made: float, fresh: float) -> float | None:
    """Seconds of a step that a client costs in the mean, if each gains ``need`` tokens a step.

    None: it cannot be done.
    """
    total = 0.0
    for line in record.lines:
        # Read once an answer, with the first token at its end.
        prompt = shape.each * (len(line.prompt) - 1) / len(line.tokens)
        points = [(0.0, 0.0)]
        for way in ways(line, made, fresh):
            spent = shape.row * way.rows + shape.each * way.fed + prompt * way.gained
            points.append((way.gained, spent))
        cost = _cheapest(points, need)
        if cost is None:
            return None
        total += cost / len(record.lines)
    return total


def _cheapest(points: Sequence[tuple[float, float]], need: float) -> float | None:
    """The least cost of gaining ``need``, two ways mixed: the lower convex hull there."""
    above = [p for p in points if p[0] >= need]
    below = [p for p in points if p[0] < need]
    if not above:
        return None
    return min(
        y1 + (y2 - y1) * (need - x1) / (x2 - x1) if x2 > x1 else y2
        for x2, y2 in above
        for x1, y1 in below or [(need, 0.0)]
    )
