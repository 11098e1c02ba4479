"""Traces of radio: what devices on their ways hear of every server, slot by slot.

One schema for whoever makes them: our numpy generator (here), Sionna (``sionna_radio``), or a
measurement. A cell can be run on a trace instead of on channels of its own.
"""

from __future__ import annotations

import zipfile
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outrider.protocol.errors import BackendError, SettingError
from outrider.simulator.cell.channel import Channel, scenario

Floats = NDArray[np.float64]
NOISE = 10 ** (-17.4 - 3)
"""Density of thermal noise at -174 dBm/Hz, W/Hz."""


@dataclass(frozen=True, slots=True)
class Tracks:
    """``places`` [T, M, 2] and ``servers`` [E, 2] in metres, ``power`` [M] in watts, ``slot``
    seconds from one row to the next, ``band`` [E] in hertz."""

    places: Floats
    servers: Floats
    power: Floats
    slot: Floats
    band: Floats


@dataclass(frozen=True, slots=True)
class Radio:
    """All [T, M, E] but what :class:`Tracks` has.

    ``sight``: there is a line of sight. ``loss``: path loss in dB, ``shadow``: shadowing in dB
    (positive: weaker). ``sinr``: dB over the server's whole band with all fading; bands of servers
    do not overlap, so that there is no interference in it. ``rate``: bits a second with the whole
    band.
    """

    places: Floats
    servers: Floats
    power: Floats
    slot: Floats
    band: Floats
    sight: NDArray[np.bool_]
    loss: Floats
    shadow: Floats
    sinr: Floats
    rate: Floats

    def __post_init__(self) -> None:
        t, m, _ = self.places.shape
        e = len(self.servers)
        for name in ("sight", "loss", "shadow", "sinr", "rate"):
            found = getattr(self, name)
            if found.shape != (t, m, e) or not np.isfinite(found).all():
                raise SettingError(f"{name} must be {t} x {m} x {e} finite numbers")
        if self.power.shape != (m,) or self.band.shape != (e,) or self.slot.shape != ():
            raise SettingError("power is one number a device, band one a server, slot one in all")

    @property
    def distance(self) -> Floats:
        """Horizontal, metres [T, M, E]."""
        apart = self.places[:, :, None, :] - self.servers
        return np.asarray(np.linalg.norm(apart, axis=-1))

    @property
    def gain(self) -> Floats:
        """Power gain, linear [T, M, E]."""
        snr = 10.0 ** (self.sinr / 10.0)
        return np.asarray(snr * NOISE * self.band / self.power[:, None])

    def save(self, path: Path) -> None:
        """Whole or not at all.

        Raises:
            BackendError: it cannot be written.
        """
        part = path.with_suffix(".part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                np.savez_compressed(file, allow_pickle=False, **asdict(self))
            part.replace(path)
        except OSError as error:
            raise BackendError(f"cannot write {path}: {error}") from error


def load(path: Path) -> Radio:
    """A trace from its file.

    Raises:
        BackendError: there is none, or it is of something else.
        SettingError: its parts do not fit each other.
    """
    try:
        with np.load(path, allow_pickle=False) as found:
            return Radio(**{field.name: found[field.name] for field in fields(Radio)})
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise BackendError(f"{path} is no trace of radio: {error}") from error


def traced(
    tracks: Tracks,
    sight: NDArray[np.bool_],
    loss: Floats,
    shadow: Floats,
    gain: Floats,
) -> Radio:
    """The whole schema from the parts that a generator makes; ``gain`` linear [T, M, E]."""
    snr = gain * tracks.power[:, None] / (NOISE * tracks.band)
    rate = tracks.band * np.log2(1.0 + snr)
    own = {field.name: getattr(tracks, field.name) for field in fields(Tracks)}
    return Radio(**own, sight=sight, loss=loss, shadow=shadow, sinr=10.0 * np.log10(snr), rate=rate)


def numpy_radio(tracks: Tracks, kind: str, seed: int, carrier: float = 3.5e9) -> Radio:
    """By :class:`outrider.simulator.cell.channel.Channel`.

    Raises:
        SettingError: there is no scenario of that name.
    """
    channel = Channel(
        tracks.servers, tracks.places[0], np.random.default_rng(seed), scenario(kind), carrier
    )
    rows = []
    for places in tracks.places:
        channel.move(places, float(tracks.slot))
        rows.append((channel.sight, channel.loss(), channel.shadow(), channel.gain()))
    return traced(tracks, *(np.stack(part) for part in zip(*rows, strict=True)))


@dataclass
class Replayed:
    """A trace in a channel's place: the same in every run, wherever the devices are said to be."""

    radio: Radio
    at: int = 0

    def move(self, _places: Floats, _seconds: float) -> None:
        """The next slot.

        Raises:
            SettingError: the trace has ended.
        """
        if self.at + 1 == len(self.radio.places):
            raise SettingError(f"the trace of radio has {self.at + 1} slots, and more were asked")
        self.at += 1

    def gain(self) -> Floats:
        """Power gain, linear [M, E]."""
        return np.asarray(self.radio.gain[self.at])
