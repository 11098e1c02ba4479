"""How many clients a verifier could serve at most: an oracle that knows costs and acceptance.

It knows each recorded answer beforehand and what every step costs, and runs one kind of schedule
for ever, the best of all: a step every T seconds; answer c has k guesses judged whenever it has
guesses, or is in a share of the steps only. After a contradiction no guess can be there when the
next step begins, since the edge has to hear of it first: the row goes on with one token, or is left
out of that step. In one step no more guesses can be judged than the drafter makes in its time. Not
drafting is one of the schedules. What it cannot do is know which guess is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from outrider.benchmarks.load_world import ROUND_TRIP, Shape
from outrider.simulator.traced import Line, Record

LONGEST = 16
STEP = 0.0005
"""Resolution of T in seconds."""

TURNS = 8
"""Times that an answer is walked through."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way of serving an answer, a step in the mean: tokens it gains, rows and tokens it costs.

    ``drafts`` are judged at a time.
    """

    drafts: int
    gained: float
    rows: float
    fed: float


def ways(line: Line) -> list[Way]:
    """All draft lengths, going on alone after a contradiction or sitting a step out."""
    return _ways(line.right)


@cache
def _ways(right: tuple[bool, ...]) -> list[Way]:
    return [_walk(right, k, alone) for k in range(LONGEST + 1) for alone in (True, False)]


def _walk(right: tuple[bool, ...], drafts: int, alone: bool) -> Way:
    n = len(right)
    at = steps = rows = fed = 0
    ready = True
    while at < n * TURNS:
        steps += 1
        if ready:
            good = 0
            while good < drafts and right[(at + good) % n]:
                good += 1
            rows, fed, at = rows + 1, fed + drafts + 1, at + good + 1
            ready = good == drafts and (drafts == 0 or right[(at - 1) % n])
        elif alone:
            rows, fed, at = rows + 1, fed + 1, at + 1
            ready = right[(at - 1) % n]
        else:
            ready = True
    return Way(drafts, at / steps, rows / steps, fed / steps)


def bound(record: Record, shape: Shape, rate: float, draft_step: float, gap: float) -> float:
    """Clients at ``rate`` tokens a second each, with at most ``gap`` seconds between steps."""
    best, step = 0.0, shape.fixed
    while step <= gap:
        cost = _cost(record, shape, rate * step, (step - ROUND_TRIP) / draft_step)
        if cost is not None:
            best = max(best, (step - shape.fixed) / cost)
        step += STEP
    return min(best, float(shape.sessions))


def _cost(record: Record, shape: Shape, need: float, most: float) -> float | None:
    """Seconds of a step that a client costs in the mean, if each gains ``need`` tokens a step.

    ``most`` guesses can be there in time. None: it cannot be done.
    """
    total = 0.0
    for line in record.lines:
        # Read once an answer, with the first token at its end.
        prompt = shape.each * (len(line.prompt) - 1) / len(line.tokens)
        points = [(0.0, 0.0)]
        for way in ways(line):
            if way.drafts <= most:
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
