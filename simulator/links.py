"""What one direction of a network link does to bytes: pure models, no clock, no sockets.

Times are seconds, sizes bytes, rates bytes a second. Time is an argument, and so is the source of
chance: the virtual world and the real proxy ask the same :class:`Pipe` the same questions.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from outrider.protocol.errors import SettingError

PACKET = 1500
"""The largest packet, headers included."""

OVERHEAD = 74
"""Bytes around what is sent in one packet: IPv4 and TCP with timestamps 52, a TLS 1.3 record 22.

The WebSocket header is not among them: it is part of what is sent.
"""

JITTER_STEP = 0.01
"""Jitter is redrawn this often; what is sent within one step shares its luck."""

LOSS_STEP = 0.001
"""Losses are redrawn this often."""

_WORD = (1 << 64) - 1


class Steps:
    """A value that holds from each start to the next, and begins anew after ``period``.

    The first start must be 0; values are finite and not negative.
    """

    __slots__ = ("_sums", "_total", "period", "starts", "values")

    def __init__(self, starts: Sequence[float], values: Sequence[float], period: float) -> None:
        if not starts or len(starts) != len(values) or starts[0] != 0:
            raise SettingError("steps: as many starts as values, at least one, the first at 0")
        ends = (*starts[1:], period)
        if not all(a < b < math.inf for a, b in zip(starts, ends, strict=True)):
            raise SettingError("steps: starts must rise and stay below the period")
        if not all(0 <= value < math.inf for value in values):
            raise SettingError("steps: values must be finite and not negative")
        self.starts, self.values, self.period = tuple(starts), tuple(values), period
        parts = (v * (b - a) for v, a, b in zip(values, starts, ends, strict=True))
        self._sums = (0.0, *accumulate(parts))
        self._total = self._sums[-1]

    @classmethod
    def every(cls, step: float, values: Sequence[float]) -> Steps:
        """One value after another, each for ``step`` seconds."""
        return cls([i * step for i in range(len(values))], values, step * len(values))

    @property
    def mean(self) -> float:
        """The mean over one period."""
        return self._total / self.period

    def scaled(self, factor: float, offset: float = 0.0, floor: float = 0.0) -> Steps:
        """Every value times ``factor`` plus ``offset``, but at least ``floor``."""
        changed = [max(floor, value * factor + offset) for value in self.values]
        return Steps(self.starts, changed, self.period)

    def at(self, time: float) -> float:
        """The value at a time."""
        return self.values[bisect_right(self.starts, time % self.period) - 1]

    def sum_to(self, time: float) -> float:
        """The integral from 0 to ``time``; ``time`` may be negative."""
        rounds, rest = divmod(time, self.period)
        i = bisect_right(self.starts, rest) - 1
        part = self._sums[i] + self.values[i] * (rest - self.starts[i])
        return rounds * self._total + part

    def when(self, target: float) -> float:
        """The first time at which the integral reaches ``target``; needs a mean above 0."""
        rounds, rest = divmod(target, self._total)
        if rest == 0.0:  # at the end of a round, or before, where that ends with zeros
            rounds, rest = rounds - 1, self._total
        i = max(0, bisect_left(self._sums, rest) - 1)
        return rounds * self.period + self.starts[i] + (rest - self._sums[i]) / self.values[i]


@dataclass(frozen=True, slots=True, kw_only=True)
class Background:
    """A bulk transfer that shares the direction and keeps its queue full.

    It takes ``share`` of the rate. Everybody waits behind what it has queued: ``standing`` seconds
    at the top of a saw-tooth, ``floor`` of that at the bottom, one tooth in ``period`` seconds. The
    defaults are CUBIC's: it gives up three tenths at each loss.
    """

    share: float = 0.5
    standing: float = 1.0
    floor: float = 0.7
    period: float = 2.6

    def __post_init__(self) -> None:
        if not 0 <= self.share < 1 or not 0 <= self.floor <= 1:
            raise SettingError("background: share must be 0 to below 1, floor 0 to 1")
        if self.standing < 0 or self.period <= 0:
            raise SettingError("background: standing must not be negative, period above 0")

    def wait(self, time: float) -> float:
        """Seconds that a byte sent at ``time`` queues behind the transfer."""
        phase = time % self.period / self.period
        return self.standing * (self.floor + (1 - self.floor) * phase)

    @property
    def mean_wait(self) -> float:
        """The mean of :meth:`wait`."""
        return self.standing * (1 + self.floor) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Direction:
    """One direction of a link.

    ``rate``: bytes a second, constant or over time; None has no limit. ``burst``: bytes that leave
    at once after a pause (the depth of a token bucket). ``delay``: one way, constant or over time.
    ``jitter``: the mean of an exponentially distributed extra delay; nothing is ever overtaken by
    what was sent after it. ``loss``: the chance of each packet to be lost, which holds it and what
    its sender sends after it back for ``stall`` seconds, as TCP does. A sender is held back while
    more than ``queue`` bytes, or ``queue_seconds`` of sending, wait. ``overhead``: bytes around
    what is sent, for each packet; the rate pays for them.
    """

    rate: float | Steps | None = None
    burst: float = 0.0
    delay: float | Steps = 0.0
    jitter: float = 0.0
    loss: float = 0.0
    stall: float = 0.0
    queue: float = 65_536
    queue_seconds: float | None = None
    background: Background | None = None
    overhead: int = OVERHEAD

    def __post_init__(self) -> None:
        mean = self.mean_rate
        if mean is not None and not 0 < mean < math.inf:
            raise SettingError("rate: its mean must be above 0 and finite; None has no limit")
        for name in ("burst", "jitter", "stall"):
            if not 0 <= getattr(self, name) < math.inf:
                raise SettingError(f"{name}: it must be finite and not negative")
        if not isinstance(self.delay, Steps) and not 0 <= self.delay < math.inf:
            raise SettingError("delay: it must be finite and not negative")
        if not 0 <= self.loss < 1:
            raise SettingError("loss: it must be 0 to below 1")
        if self.queue < PACKET or (self.queue_seconds is not None and self.queue_seconds <= 0):
            raise SettingError(f"queue: at least {PACKET} bytes; queue_seconds: above 0")
        if not 0 <= self.overhead < PACKET:
            raise SettingError(f"overhead: it must be 0 to below {PACKET} bytes")

    @property
    def mean_rate(self) -> float | None:
        """Bytes a second over a long time, before the background takes its share."""
        return self.rate.mean if isinstance(self.rate, Steps) else self.rate

    @property
    def mean_delay(self) -> float:
        """Seconds that a small message takes in the mean, losses and own queue left out."""
        delay = self.delay.mean if isinstance(self.delay, Steps) else self.delay
        return delay + self.jitter + (self.background.mean_wait if self.background else 0.0)

    def on_wire(self, size: int) -> int:
        """Bytes that ``size`` bytes become, packet headers included."""
        return size + self.overhead * self.packets(size)

    def packets(self, size: int) -> int:
        """How many packets carry ``size`` bytes."""
        return max(1, math.ceil(size / (PACKET - self.overhead)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Both directions as the edge sees them, with a name and what is behind the figures."""

    name: str
    up: Direction
    down: Direction
    about: str = ""

    @property
    def rtt(self) -> float:
        """Mean seconds for a small message there and one back."""
        return self.up.mean_delay + self.down.mean_delay


class Flow:
    """What one connection sends one way. Its bytes keep their order; others may pass them."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last = -math.inf


class Pipe:
    """One direction at work. Times given to it must not go back; ``start`` is where courses begin.

    Delay, jitter, rate and losses are functions of time and seed alone, whatever was sent before:
    two programs compared on one seed meet the same weather.
    """

    def __init__(self, direction: Direction, rng: random.Random, start: float = 0.0) -> None:
        self._key = rng.getrandbits(64)
        self._loss_key = rng.getrandbits(64)
        self._start = start
        self._first = Flow()
        self._held = -math.inf
        self.bytes_in = 0
        self.losses = 0
        self._set(direction)
        self._served = -math.inf

    def _set(self, direction: Direction) -> None:
        self.direction = direction
        rate = direction.rate
        share = 1 - direction.background.share if direction.background else 1.0
        steps = Steps((0.0,), (rate,), 1.0) if isinstance(rate, int | float) else rate
        self._rate = steps.scaled(share) if steps and share < 1 else steps

    def begin(self, start: float) -> None:
        """Let courses begin at ``start``; before anything is sent."""
        self._start = start

    def change(self, direction: Direction, now: float) -> None:
        """Become another direction. What waits is sent on at the new rate.

        What was accepted before keeps the arrival it was given: it is on its way.
        """
        waiting = self.backlog(now)
        self._set(direction)
        if self._rate is not None:
            self._served = self._rate.sum_to(now - self._start) + waiting
            if not waiting:
                self._served -= direction.burst

    def hold(self, until: float) -> None:
        """Nothing accepted from now on arrives before ``until``."""
        self._held = max(self._held, until)

    def backlog(self, now: float) -> float:
        """Bytes accepted and not yet sent, packet headers included."""
        if self._rate is None:
            return 0.0
        return max(0.0, self._served - self._rate.sum_to(now - self._start))

    def room(self, now: float) -> int:
        """Bytes that a sender may hand over now; 0: it has to wait."""
        d = self.direction
        if self._rate is None:
            return int(d.queue)
        backlog = self.backlog(now)
        room = d.queue - backlog
        if d.queue_seconds is not None:
            t = now - self._start
            ahead = self._rate.sum_to(t + d.queue_seconds) - self._rate.sum_to(t)
            room = min(room, ahead - backlog)
        if backlog <= 0:
            room = max(room, PACKET)  # an empty queue takes a packet, however slow the link
        return max(0, int(room) - d.overhead * math.ceil(room / PACKET))

    def offer(self, size: int, now: float) -> float:
        """When a sender may hand over ``size`` bytes: ``now``, or later where the queue is full.

        Something larger than the queue goes when the queue is empty.
        """
        if self._rate is None:
            return now
        d = self.direction
        end = self._served + d.on_wire(size)
        fits = self._when(end - d.queue)
        if d.queue_seconds is not None:
            fits = max(fits, self._when(end) - d.queue_seconds)
        return max(now, min(self._when(self._served), fits))

    def deliver_at(self, size: int, now: float, flow: Flow | None = None) -> float:
        """Take ``size`` bytes, and tell when the last of them arrives.

        ``flow`` is the connection that sends them, when there are several.
        """
        flow = flow or self._first
        d = self.direction
        self.bytes_in += size
        sent = self._send(d.on_wire(size), now)
        t = sent - self._start
        arrival = sent + (d.delay.at(t) if isinstance(d.delay, Steps) else d.delay)
        if d.background:
            arrival += d.background.wait(t)
        if d.jitter:
            arrival += d.jitter * self._luck(t)
        if d.loss and self._lost(now - self._start, 1 - (1 - d.loss) ** d.packets(size)):
            self.losses += 1
            arrival += d.stall
        flow.last = max(flow.last, arrival, self._held)
        return flow.last

    def _send(self, size: int, now: float) -> float:
        """When the last of ``size`` bytes has left the queue."""
        if self._rate is None:
            return now
        # In the unit of bytes that the link could have carried since the start, a token bucket is
        # one line: service begins where the last one ended, or at most a burst ago.
        could = self._rate.sum_to(now - self._start)
        self._served = max(self._served, could - self.direction.burst) + size
        return max(now, self._when(self._served))

    def _when(self, served: float) -> float:
        if self._rate is None or served == -math.inf:
            return -math.inf
        return self._start + self._rate.when(served)

    def _luck(self, time: float) -> float:
        """An exponentially distributed number of mean 1, the same all through a jitter step."""
        return -math.log(_draw(self._key, int(time / JITTER_STEP)))

    def _lost(self, time: float, chance: float) -> bool:
        """Whether what is sent now meets a loss: all that is sent within one loss step, or none."""
        return _draw(self._loss_key, int(time / LOSS_STEP)) <= chance


def _draw(key: int, step: int) -> float:
    """Uniform above 0 and up to 1: splitmix64, a draw at any step without all those before it."""
    z = (key + step * 0x9E3779B97F4A7C15) & _WORD
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _WORD
    return ((z ^ (z >> 31)) + 1) / (1 << 64)
