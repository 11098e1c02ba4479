"""Channels between moving devices and servers after 3GPP TR 38.901, in numpy.

Path loss and line-of-sight probability of UMi street canyon and UMa (tables 7.4.1-1 and 7.4.2-1),
sight that is correlated over distance (7.6.3.3), shadowing likewise (7.4.4; that of places in sight
and of others are two fields), and small-scale fading: Rician in line of sight, its K factor drawn
and correlated over distance (table 7.5-6), Rayleigh elsewhere, correlated in time as the Doppler
spread says (Jakes). One topology a track: what a device sees changes only as far as it has moved.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import j0, ndtr

from outrider.protocol.errors import SettingError

Floats = NDArray[np.float64]
LIGHT = 299_792_458.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """``heights``: of server and device in metres. ``shadow``: deviation in dB with and without
    line of sight. ``apart``: metres over which shadowing forgets. ``rice``: mean and deviation of
    the K factor in dB, and the metres over which it forgets.
    """

    name: str
    heights: tuple[float, float]
    shadow: tuple[float, float]
    apart: tuple[float, float]
    rice: tuple[float, float, float]


SIGHT_APART = 50.0
"""Metres over which the state of sight forgets, in both scenarios (table 7.6.3.1-2)."""

SCENARIOS = {
    "umi": Scenario("umi", (10.0, 1.5), (4.0, 7.82), (10.0, 13.0), (9.0, 5.0, 15.0)),
    "uma": Scenario("uma", (25.0, 1.5), (4.0, 6.0), (37.0, 50.0), (9.0, 3.5, 12.0)),
}


def scenario(name: str) -> Scenario:
    """A scenario by name.

    Raises:
        SettingError: there is none of that name.
    """
    if name not in SCENARIOS:
        raise SettingError(f"scenario {name!r} is not one of {', '.join(SCENARIOS)}")
    return SCENARIOS[name]


def sight_probability(kind: Scenario, flat: Floats) -> Floats:
    """Chance of a line of sight at a horizontal distance in metres (outdoor, below 13 m)."""
    d = np.maximum(flat, 1e-9)
    far = 36.0 if kind.name == "umi" else 63.0
    return np.asarray(np.where(d <= 18.0, 1.0, 18.0 / d + np.exp(-d / far) * (1.0 - 18.0 / d)))


def path_loss(kind: Scenario, flat: Floats, carrier: float, sight: NDArray[np.bool_]) -> Floats:
    """Path loss in dB. ``flat``: horizontal distance, metres. ``carrier``: hertz."""
    high, low = kind.heights
    d = np.maximum(flat, 10.0)
    slant, f = np.hypot(d, high - low), carrier / 1e9
    bend = 4.0 * (high - 1.0) * (low - 1.0) * carrier / LIGHT
    slope, base = (21.0, 32.4) if kind.name == "umi" else (22.0, 28.0)
    share = 9.5 if kind.name == "umi" else 9.0
    near = base + slope * np.log10(slant) + 20.0 * np.log10(f)
    beyond = base + 40.0 * np.log10(slant) + 20.0 * np.log10(f)
    beyond -= share * np.log10(bend**2 + (high - low) ** 2)
    seen = np.where(d <= bend, near, beyond)
    if kind.name == "umi":
        hidden = 35.3 * np.log10(slant) + 22.4 + 21.3 * np.log10(f) - 0.3 * (low - 1.5)
    else:
        hidden = 13.54 + 39.08 * np.log10(slant) + 20.0 * np.log10(f) - 0.6 * (low - 1.5)
    return np.asarray(np.where(sight, seen, np.maximum(seen, hidden)))


@dataclass
class Channel:
    """The channels of M devices to E servers, step by step.

    ``servers`` [E, 2] and ``devices`` [M, 2]: places in metres.
    """

    servers: Floats
    devices: Floats
    rng: np.random.Generator
    kind: Scenario = field(default_factory=lambda: SCENARIOS["umi"])
    carrier: float = 3.5e9

    def __post_init__(self) -> None:
        m, e = len(self.devices), len(self.servers)
        self._sight = self.rng.standard_normal((m, e))
        self._shadow = self.rng.standard_normal((2, m, e))  # in sight, and not
        self._rice = self.rng.standard_normal((m, e))
        self._wave = _complex(self.rng, (m, e))

    def move(self, places: Floats, seconds: float) -> None:
        """The devices are elsewhere after some time: all follows by how far."""
        went = np.linalg.norm(places - self.devices, axis=1)[:, None]
        self.devices = places.copy()
        self._sight = self._drifted(self._sight, went / SIGHT_APART)
        self._rice = self._drifted(self._rice, went / self.kind.rice[2])
        self._shadow = self._drifted(self._shadow, went / np.array(self.kind.apart)[:, None, None])
        doppler = went / max(seconds, 1e-9) * self.carrier / LIGHT
        fade = j0(2.0 * np.pi * doppler * seconds)
        scattered = _complex(self.rng, self._wave.shape)
        self._wave = fade * self._wave + np.sqrt(1.0 - fade**2) * scattered

    def _drifted(self, field: Floats, way: Floats) -> Floats:
        """A unit Gaussian field further on; ``way`` in correlation distances."""
        keep = np.exp(-way)
        fresh = self.rng.standard_normal(field.shape)
        return np.asarray(keep * field + np.sqrt(1.0 - keep**2) * fresh)

    @property
    def distance(self) -> Floats:
        """Horizontal, metres [M, E]."""
        return np.asarray(
            np.linalg.norm(self.devices[:, None, :] - self.servers[None, :, :], axis=2)
        )

    @property
    def sight(self) -> NDArray[np.bool_]:
        """Which pairs see each other [M, E]."""
        return np.asarray(ndtr(self._sight) < sight_probability(self.kind, self.distance))

    def shadow(self) -> Floats:
        """Shadowing in dB, a loss [M, E]."""
        deviation = np.array(self.kind.shadow)[:, None, None] * self._shadow
        return np.asarray(np.where(self.sight, deviation[0], deviation[1]))

    def loss(self) -> Floats:
        """Path loss in dB, without shadowing [M, E]."""
        return path_loss(self.kind, self.distance, self.carrier, self.sight)

    def large(self) -> Floats:
        """Power gain without small-scale fading, linear [M, E]."""
        return np.asarray(10.0 ** (-(self.loss() + self.shadow()) / 10.0))

    def gain(self) -> Floats:
        """Power gain, linear [M, E]."""
        mean, deviation, _ = self.kind.rice
        k = 10.0 ** ((mean + deviation * self._rice) / 10.0)
        direct = np.abs(np.sqrt(k / (k + 1)) + np.sqrt(1 / (k + 1)) * self._wave) ** 2
        return np.asarray(self.large() * np.where(self.sight, direct, np.abs(self._wave) ** 2))


def _complex(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.complex128]:
    """Circular Gaussian numbers of mean power 1."""
    return np.asarray((rng.standard_normal(shape) + 1j * rng.standard_normal(shape)) / np.sqrt(2.0))
