"""One slot of the UARA problem: devices, servers, radio, and what an association with shares costs.

The model is that of arXiv 2511.01695, corrected: shares of a server's bandwidth and compute sum to
at most one over the devices at that server (its eq. 4 sums over servers); noise is the density
times the bandwidth that a device is given; rates are in log2; the energy of sending has the time of
sending in it. All times in seconds, powers in watts, bandwidth in hertz.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.protocol.errors import SettingError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Problem:
    """M devices and E servers in one slot.

    ``gain`` [M, E]: power gain of the channel. ``power`` [M]: sending power. ``band`` [E]: a
    server's bandwidth. ``noise``: density, W/Hz. ``bits`` [M]: to be sent up. ``draft`` [M]:
    seconds of drafting. ``work`` [M]: operations of the verification. ``speed`` [E]: operations a
    second. ``queue`` [E]: seconds of work that wait already. ``battery`` [M]: joules left.
    ``match``: weight of the squared difference of drafting and sending time (the paper's lambda).
    ``thrift``: weight of energy over battery (its w). ``amplifier``: joules taken for a joule sent.
    """

    gain: Floats
    power: Floats
    band: Floats
    bits: Floats
    draft: Floats
    work: Floats
    speed: Floats
    queue: Floats
    battery: Floats
    noise: float = 10 ** (-17.4 - 3)
    match: float = 1e-2
    thrift: float = 20.0
    amplifier: float = 2.6

    def __post_init__(self) -> None:
        m, e = self.gain.shape
        for name, size in (("power", m), ("bits", m), ("draft", m), ("work", m), ("battery", m)):
            _check(name, getattr(self, name), size)
        for name, size in (("band", e), ("speed", e)):
            _check(name, getattr(self, name), size)
        _check("queue", self.queue, e, zero=True)
        _check("gain", self.gain.ravel(), m * e)

    @property
    def devices(self) -> int:
        """M."""
        return int(self.gain.shape[0])

    @property
    def servers(self) -> int:
        """E."""
        return int(self.gain.shape[1])

    def uplink(self, share: Floats, device: Ints | slice, server: Ints | slice) -> Floats:
        """Seconds of sending with a share of a server's band. All arguments broadcast."""
        width = share * self.band[server]
        snr = self.gain[device, server] * self.power[device] / (self.noise * width)
        rate = width * np.log2(1.0 + snr)
        return np.asarray(self.bits[device] / rate)

    def band_cost(self, up: Floats, device: Ints | slice) -> Floats:
        """The part of the cost that depends on the bandwidth share, from the sending time."""
        energy = self.amplifier * self.power[device] * up / self.battery[device]
        return np.asarray(self.match * (self.draft[device] - up) ** 2 + self.thrift * energy)


@dataclass(frozen=True, slots=True)
class Placement:
    """``server`` [M]: where each device goes. ``band``, ``compute`` [M]: its shares there."""

    server: Ints
    band: Floats
    compute: Floats

    def check(self, problem: Problem) -> None:
        """Raises AssertionError if a constraint does not hold (a policy's bug, not a user's)."""
        m, e = problem.devices, problem.servers
        assert self.server.shape == self.band.shape == self.compute.shape == (m,)
        assert ((self.server >= 0) & (self.server < e)).all()
        for share in (self.band, self.compute):
            assert (share > 0).all()
            assert (np.bincount(self.server, share, e) <= 1 + 1e-9).all()


@dataclass(frozen=True, slots=True)
class Outcome:
    """By device [M]: ``cost`` as in the objective, ``latency`` in seconds, ``energy`` in joules.

    Latency is drafting, waiting and verifying, and what of the sending drafting does not cover (the
    paper leaves the last out and pays for the mismatch in the objective alone).
    """

    cost: Floats
    latency: Floats
    energy: Floats

    @property
    def total(self) -> float:
        """The objective: the sum of the costs."""
        return float(self.cost.sum())

    @property
    def mean_latency(self) -> float:
        """Seconds."""
        return float(self.latency.mean())


def evaluate(problem: Problem, placement: Placement) -> Outcome:
    """What a placement costs: the slow and obvious reference of every faster formula."""
    device = np.arange(problem.devices)
    server = placement.server
    up = problem.uplink(placement.band, device, server)
    verify = problem.work / (placement.compute * problem.speed[server])
    fixed = problem.draft + problem.queue[server] + verify
    return Outcome(
        cost=fixed + problem.band_cost(up, device),
        latency=fixed + np.maximum(0.0, up - problem.draft),
        energy=problem.amplifier * problem.power * up,
    )


def _check(name: str, values: Floats, size: int, *, zero: bool = False) -> None:
    """Raises SettingError for a wrong size or a value that no such quantity has."""
    if values.shape != (size,):
        raise SettingError(f"{name} has shape {values.shape}; it must be ({size},)")
    low = values.min(initial=np.inf)
    if not np.isfinite(values).all() or low < 0 or (low == 0 and not zero):
        raise SettingError(
            f"{name} holds {low}; all must be finite and {'not ' if zero else ''}"
            f"{'negative' if zero else 'more than 0'}"
        )
