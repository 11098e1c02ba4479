"""What a link can do, measured with WebSocket pings alone: any cloud answers them, asleep or busy.

Round trips come from single pings, goodput from trains of full ones sent at once: how much later
the last one comes back is the slower direction's doing. Bytes and seconds are bounded beforehand.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from outrider.protocol.errors import LinkError
from outrider.protocol.packing import frame_size
from outrider.runtime.net.link import Link

PAYLOAD = 125
"""Bytes that a control frame carries at most (RFC 6455, section 5.5)."""

PING_BYTES = frame_size(PAYLOAD, masked=True)

FIRST_TRAIN = 8
LONGER = 4
"""A train too short to tell is followed by one so many times as long."""

CLEAR, SPREADS = 0.025, 4.0
"""Seconds that a train takes longer than a single ping, from which on the timer's grain does not
matter; and so many times the spread of single pings, for their jitter not to matter either."""


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
    goodput, at_least = await _goodput(link, budget, deadline, trips)
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
    link: Link, budget: Budget, deadline: float, trips: Sequence[float]
) -> tuple[float | None, bool]:
    """Longer and longer trains, until two tell or the next would exceed the budget.

    Two: a process that was not scheduled for a moment looks like a slow link, once.
    """
    loop = asyncio.get_running_loop()
    count, left, told = FIRST_TRAIN, budget.train_bytes, 0
    clear = CLEAR + SPREADS * (max(trips) - min(trips))
    best: float | None = None
    while left >= 2 * PING_BYTES:
        count = min(count, left // PING_BYTES)
        left -= count * PING_BYTES
        began = loop.time()
        came = await _train(link, count, deadline)
        if not came:
            break
        # Not from pong to pong: packets carry several, and what the first one does is not told.
        drain = max(1e-4, came[-1] - began - min(trips))
        rate = len(came) * PING_BYTES / drain
        best = max(rate, best or 0.0)
        if drain >= clear:
            told += 1
        else:
            told, count = 0, count * LONGER
        if told == 2 or loop.time() + max(trips) + count * PING_BYTES / rate > deadline:
            break
    return best, told == 0


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
