"""Links by name: what a laptop, a phone or a board meets, in figures.

The rates of wifi, 5g, lte and starlink are synthetic. Their constants are what
``python -m outrider.simulator.fit`` printed for recordings that are not part of this project; a
profile draws a new course of the link from them for every seed. Everything else is assumed, and
``docs/links.md`` says which is which.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice, pairwise, repeat
from statistics import NormalDist

from outrider.protocol.errors import SettingError
from outrider.simulator.links import Background, Direction, Link, Steps

KBIT = 1e3 / 8
MBIT = 1e6 / 8

LEVELS = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
"""The shares below which a process's quantiles lie."""

LENGTH = 300.0
"""Seconds after which the course of a link begins anew."""

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A value that changes every ``step`` seconds, with given quantiles and memory.

    A normal AR(1) process with coefficient ``rho`` makes up ``memory`` of the variance, noise the
    rest; the sum is mapped to the quantile that it has among normal values. Between the
    ``LEVELS``, quantiles are straight lines.
    """

    step: float
    quantiles: tuple[float, ...]
    rho: float
    memory: float = 1.0

    def __post_init__(self) -> None:
        rising = all(a <= b for a, b in pairwise(self.quantiles))
        if len(self.quantiles) != len(LEVELS) or not rising or self.quantiles[0] < 0:
            raise SettingError(f"quantiles: {len(LEVELS)} that rise from 0 or more")
        if self.step <= 0 or not -1 < self.rho < 1 or not 0 <= self.memory <= 1:
            raise SettingError("a process: step above 0, rho between -1 and 1, memory 0 to 1")

    @property
    def mean(self) -> float:
        """The mean in the long run."""
        pairs = zip(pairwise(LEVELS), pairwise(self.quantiles), strict=True)
        return sum((b - a) * (low + high) / 2 for (a, b), (low, high) in pairs)

    def values(self, rng: random.Random) -> Iterator[float]:
        """One value after another, for ever."""
        x = rng.gauss(0, 1)
        fresh = (1 - self.rho**2) ** 0.5
        slow, fast = self.memory**0.5, (1 - self.memory) ** 0.5
        while True:
            yield self._quantile(_NORMAL.cdf(slow * x + fast * rng.gauss(0, 1)))
            x = self.rho * x + fresh * rng.gauss(0, 1)

    def _quantile(self, level: float) -> float:
        i = min(bisect_right(LEVELS, level), len(LEVELS) - 1)
        (a, b), (low, high) = LEVELS[i - 1 : i + 1], self.quantiles[i - 1 : i + 1]
        return low + (high - low) * (level - a) / (b - a)


# What `python -m outrider.simulator.fit` printed, as it printed it. NR is 5G's radio. Rates in
# Mbit/s; a slot's floor of the round trip, and the mean jitter of one direction, in ms.
WIFI_RATE = Process(
    step=0.2,
    quantiles=(0.002, 2.362, 9.226, 14.343, 23.208, 29.407, 31.359, 34.375, 36.609, 40.911, 45.422),
    rho=0.942,
    memory=0.755,
)
LTE_UP = Process(
    step=0.2,
    quantiles=(0.0, 0.0, 0.72, 1.674, 3.3, 5.46, 8.46, 10.56, 12.063, 13.921, 14.88),
    rho=0.935,
    memory=0.918,
)
LTE_DOWN = Process(
    step=0.2,
    quantiles=(0.0, 0.119, 0.78, 1.26, 2.4, 4.2, 6.9, 10.206, 11.82, 15.182, 19.98),
    rho=0.949,
    memory=0.923,
)
NR_DOWN = Process(
    step=1.0,
    quantiles=(
        0.1,
        0.138,
        1.012,
        3.147,
        11.017,
        27.026,
        116.525,
        202.217,
        227.959,
        287.017,
        456.818,
    ),
    rho=0.945,
    memory=0.925,
)
STARLINK_UP = Process(
    step=1.0,
    quantiles=(1.533, 2.546, 3.036, 3.575, 4.599, 6.383, 8.679, 10.732, 11.745, 13.279, 14.303),
    rho=0.905,
    memory=0.797,
)
STARLINK_DOWN = Process(
    step=1.0,
    quantiles=(
        2.228,
        3.194,
        7.449,
        13.945,
        21.486,
        28.922,
        39.918,
        49.467,
        77.798,
        129.422,
        142.848,
    ),
    rho=0.857,
    memory=1.0,
)
STARLINK_FLOORS = Process(
    step=15.0,
    quantiles=(22.235, 22.245, 22.308, 22.534, 22.8, 24.708, 32.458, 38.764, 42.999, 49.827, 53.6),
    rho=0.344,
    memory=1.0,
)
STARLINK_JITTER = 7.66
STARLINK_LOSS = 0.00184
NR_JITTER = 3.24
NR_LOSS = 0.0087

ASSUMED_UP = 0.2
"""The 5G uplink as a part of its downlink: the recordings hold acknowledgements only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One direction of a profile: all that is fixed, and the law of what changes.

    ``rate`` in Mbit/s; a process is taken times ``factor``, but at least ``floor``. ``hand_over``:
    a process in ms of round trip, half of which is added to the delay.
    """

    fixed: Direction
    rate: float | Process | None = None
    factor: float = 1.0
    floor: float = 0.0
    hand_over: Process | None = None

    @property
    def step(self) -> float:
        """Seconds that each of the :meth:`rates` holds."""
        return self.rate.step if isinstance(self.rate, Process) else LENGTH

    def rates(self, seed: int | str) -> Iterator[float]:
        """Bytes a second, one value for each :attr:`step`, for ever; infinity without a limit."""
        if not isinstance(self.rate, Process):
            return repeat(math.inf if self.rate is None else self.rate * MBIT)
        values = self.rate.values(random.Random(f"rates {seed}"))
        return (max(self.floor, value * self.factor) * MBIT for value in values)

    def delays(self, seed: int | str) -> Iterator[float]:
        """Seconds of one-way delay, one value for each slot of the hand-overs, for ever."""
        assert not isinstance(self.fixed.delay, Steps)
        if self.hand_over is None:
            return repeat(self.fixed.delay)
        base = self.fixed.delay
        return (base + ms / 2e3 for ms in self.hand_over.values(random.Random(f"slots {seed}")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A named link. ``rtt``: mean seconds of a small message's round trip on an idle link.

    ``fitted``: its rates or delays come from recordings; otherwise all of it is assumed.
    """

    name: str
    rtt: float
    up: Way
    down: Way
    about: str
    fitted: bool = False

    def rates(self, seed: int | str = 0) -> tuple[Iterator[float], Iterator[float]]:
        """Bytes a second, up and down, one value for each step of its way, for ever."""
        return self.up.rates(f"{seed} up"), self.down.rates(f"{seed} down")

    def link(self, seed: int | str = 0) -> Link:
        """The link with the course that ``seed`` stands for: same seed, same course.

        The course begins anew after :data:`LENGTH` seconds.
        """
        rates = self.rates(seed)
        # Both directions of a satellite change at once: one seed for both.
        up, down = (
            _direction(way, each, seed)
            for way, each in zip((self.up, self.down), rates, strict=True)
        )
        return Link(name=self.name, up=up, down=down, about=self.about)


def _direction(way: Way, rates: Iterator[float], seed: int | str) -> Direction:
    changed = way.fixed
    if isinstance(way.rate, Process):
        course = Steps.every(way.step, list(islice(rates, round(LENGTH / way.step))))
        changed = replace(changed, rate=course)
    elif way.rate is not None:
        changed = replace(changed, rate=way.rate * MBIT)
    if way.hand_over is not None:
        slots = list(islice(way.delays(seed), round(LENGTH / way.hand_over.step)))
        changed = replace(changed, delay=Steps.every(way.hand_over.step, slots))
    return changed


def profile(name: str) -> Profile:
    """Give a profile by name. Raises ``SettingError`` that lists the names for another."""
    if name not in PROFILES:
        raise SettingError(f"profile {name!r}: known are {', '.join(PROFILES)}")
    return PROFILES[name]


@cache
def link(name: str, seed: int | str = 0) -> Link:
    """Give a profile's link for a seed. Raises ``SettingError`` for an unknown name."""
    return profile(name).link(seed)


def _way(
    rtt: float, jitter: float = 0.0, *, loss: float = 0.0, queue_seconds: float | None = None
) -> Direction:
    """Half of a round trip, times in seconds; ``jitter`` is part of it.

    A loss costs two round trips, TCP's tail loss probe (RFC 8985): so few packets are under way
    that nothing behind a lost one tells its sender sooner.
    """
    return Direction(
        delay=rtt / 2 - jitter,
        jitter=jitter,
        loss=loss,
        stall=2 * rtt if loss else 0.0,
        queue_seconds=queue_seconds,
    )


def _fixed(name: str, rtt: float, up: Way, about: str, down: Way | None = None) -> Profile:
    return Profile(name=name, rtt=rtt, up=up, down=down or up, about=about)


def _wifi() -> Profile:
    way = Way(rate=WIFI_RATE, fixed=_way(0.008, 0.001, queue_seconds=0.1))
    about = "office and restaurant Wi-Fi"
    return Profile(name="wifi", rtt=0.008, up=way, down=way, about=about, fitted=True)


def _5g() -> Profile:
    fixed = _way(0.03, NR_JITTER / 1e3, loss=NR_LOSS, queue_seconds=0.2)
    return Profile(
        name="5g",
        rtt=0.03,
        up=Way(rate=NR_DOWN, factor=ASSUMED_UP, floor=1.0, fixed=fixed),
        down=Way(rate=NR_DOWN, fixed=fixed),
        about="5G, standing and driving",
        fitted=True,
    )


def _starlink() -> Profile:
    rtt, jitter = 0.05, STARLINK_JITTER / 1e3
    fixed = _way(rtt, jitter, loss=STARLINK_LOSS, queue_seconds=0.2)
    # What is left of the round trip, beside the satellite's, is the way from its gateway to a host.
    fixed = replace(fixed, delay=(rtt - STARLINK_FLOORS.mean / 1e3) / 2 - jitter)
    up, down = (
        Way(rate=rate, fixed=fixed, hand_over=STARLINK_FLOORS)
        for rate in (STARLINK_UP, STARLINK_DOWN)
    )
    about = "Starlink, bent pipe, with a hand-over every 15 seconds"
    return Profile(name="starlink", rtt=rtt, up=up, down=down, about=about, fitted=True)


def _lte() -> Profile:
    fixed = _way(0.06, 0.005, queue_seconds=0.5)
    up, down = (Way(rate=rate, fixed=fixed) for rate in (LTE_UP, LTE_DOWN))
    return Profile(name="lte", rtt=0.06, up=up, down=down, about="LTE", fitted=True)


def _congested() -> Profile:
    # What the tooth of the standing queue leaves free of the one second is ours.
    upload = Background(share=0.5, standing=1.0)
    up = replace(_way(0.04, queue_seconds=0.3), background=upload)
    return Profile(
        name="congested",
        rtt=0.04 + upload.mean_wait,
        up=Way(rate=0.256, fixed=up),
        down=Way(rate=8.0, fixed=_way(0.04, queue_seconds=0.3)),
        about="ADSL whose uplink is full of somebody's upload",
    )


PROFILES: dict[str, Profile] = {
    each.name: each
    for each in (
        _fixed("loopback", 0.0003, Way(fixed=_way(0.0003)), "this machine"),
        _fixed("lan", 0.002, Way(rate=1000.0, fixed=_way(0.002, 0.0001)), "a cable in a building"),
        _wifi(),
        _5g(),
        _starlink(),
        _lte(),
        _fixed(
            "geo",
            0.6,
            Way(rate=3.0, fixed=_way(0.6, 0.005, queue_seconds=0.6)),
            "a geostationary satellite",
            Way(rate=20.0, fixed=_way(0.6, 0.005, queue_seconds=0.6)),
        ),
        _fixed(
            "narrow",
            0.3,
            Way(rate=0.024, fixed=_way(0.3, queue_seconds=2.0)),
            "a radio modem: 24 kbit/s up",
            Way(rate=0.256, fixed=_way(0.3, queue_seconds=2.0)),
        ),
        _congested(),
    )
}
"""The links by name, nearest first."""
