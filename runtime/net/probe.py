"""What a link can do, measured with WebSocket pings alone: any cloud answers them, asleep or busy.

Round trips come from single pings, goodput from trains of full ones sent at once: what comes back
is spaced as the slower direction lets it through. Bytes and seconds are bounded beforehand.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from outrider.protocol.errors import LinkError
from outrider.runtime.net.link import Link, frame_size

PAYLOAD = 125
"""Bytes that a control frame carries at most (RFC 6455, section 5.5)."""

PING_BYTES = frame_size(PAYLOAD, masked=True)

FIRST_TRAIN = 8
LONGER = 4
"""A train too short to tell is followed by one so many times as long."""

CLEAR = 0.025
"""Seconds between the first and the last pong from which on the timer's grain does not matter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a measurement may cost: single pings ``interval`` seconds apart, bytes sent in trains,
    seconds in all."""

    pings: int = 16
    interval: float = 0.05
    train_bytes: int = 48 << 10
    seconds: float = 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was found. Times in seconds, ``goodput`` in bytes of frames a second.

    ``at_least``: the train was through before the link could be seen to be the limit. So many
    single pings were ``unanswered`` in time. ``sent`` is the bytes of everything that was sent.
    """

    trips: tuple[float, ...]
    unanswered: int
    goodput: float | None
    at_least: bool
    sent: int

    @property
    def lowest(self) -> float:
        """The round trip without any queue."""
        return min(self.trips)

    @property
    def median(self) -> float:
        """The usual round trip."""
        return statistics.median(self.trips)

    @property
    def p95(self) -> float:
        """Only one in twenty was longer."""
        ordered = sorted(self.trips)
        return ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]

    @property
    def jitter(self) -> float:
        """Mean change from one round trip to the next."""
        pairs = list(zip(self.trips, self.trips[1:]))  # noqa: B905 - the second is shorter
        return sum(abs(a - b) for a, b in pairs) / len(pairs) if pairs else 0.0


async def measure(link: Link, budget: Budget | None = None) -> Measured:
    """Measure an idle link.

    Raises:
        LinkError: it was lost, or no ping at all came back in time.
    """
    budget = budget or Budget()
    loop = asyncio.get_running_loop()
    before, deadline = link.bytes_out, loop.time() + budget.seconds
    trips = await _trips(link, budget, deadline)
    if not trips:
        raise LinkError(f"{link.peer} answered no ping within {budget.seconds:g} s")
    goodput, at_least = await _goodput(link, budget, deadline, max(trips))
    return Measured(
        trips=tuple(trips),
        unanswered=budget.pings - len(trips),
        goodput=goodput,
        at_least=at_least,
        sent=link.bytes_out - before,
    )


async def _trips(link: Link, budget: Budget, deadline: float) -> list[float]:
    """Single pings at a steady pace, also where one takes longer to come back than the next."""
    tasks = []
    for _ in range(budget.pings):
        tasks.append(asyncio.ensure_future(link.ping()))
        await asyncio.sleep(budget.interval)
    return await _answered(tasks, deadline)


async def _goodput(
    link: Link, budget: Budget, deadline: float, trip: float
) -> tuple[float | None, bool]:
    """Longer and longer trains, until one tells or the next would exceed the budget."""
    count, left = FIRST_TRAIN, budget.train_bytes
    rate: float | None = None
    while left >= 2 * PING_BYTES:
        count = min(count, left // PING_BYTES)
        left -= count * PING_BYTES
        came = await _train(link, count, deadline)
        if len(came) < 2:
            break
        spread = came[-1] - came[0]
        rate = (len(came) - 1) * PING_BYTES / max(spread, 1e-6)
        if spread >= CLEAR or len(came) < count:
            return rate, False
        count *= LONGER
        expected = trip + count * PING_BYTES / rate
        if asyncio.get_running_loop().time() + expected > deadline:
            break
    return rate, True


async def _train(link: Link, count: int, deadline: float) -> list[float]:
    """Full pings, all at once; when each came back."""
    loop = asyncio.get_running_loop()
    came: list[float] = []

    async def one(index: int) -> float:
        took = await link.ping(index.to_bytes(4) * (PAYLOAD // 4) + b"-" * (PAYLOAD % 4))
        came.append(loop.time())
        return took

    await _answered([asyncio.ensure_future(one(index)) for index in range(count)], deadline)
    return came


async def _answered(tasks: Sequence[asyncio.Future[float]], deadline: float) -> list[float]:
    """Results of those that came in time; the others are given up."""
    loop = asyncio.get_running_loop()
    try:
        done, late = await asyncio.wait(tasks, timeout=max(0.0, deadline - loop.time()))
    finally:
        for task in tasks:
            task.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    return [task.result() for task in tasks if task in done]
