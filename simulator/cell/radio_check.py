"""Our generator of radio held against Sionna's, figure by figure, on the same ways."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.simulator.cell.channel import Floats, path_loss, scenario, sight_probability
from outrider.simulator.cell.model import Settings, tracks
from outrider.simulator.cell.radio import Radio, Tracks, numpy_radio
from outrider.simulator.cell.sionna_radio import CHUNK, sionna_radio

RINGS = (18.0, 40.0, 70.0, 120.0, 200.0, 400.0)
"""Horizontal distances, metres, between which the share of sight is counted."""

LAGS = (2.0, 4.0, 6.0, 8.0, 10.0, 15.0)
"""Metres between two places of a way."""


def compare(
    settings: Settings,
    *,
    seed: int,
    slots: int,
    keep: Path | None = None,
    say: Callable[[str], None] = lambda _line: None,
) -> dict[str, Any]:
    """Both generators on the ways of one cell; the traces are kept in a folder if one is given.

    ``sinr_distance``: Kolmogorov's. ``topology_a_step_db_per_m``: what Sionna's mean change a metre
    becomes if every slot is a topology of its own, which a trace must never be.

    Raises:
        SettingError: the settings are of no cell.
        BackendError: Sionna is not installed, or a trace cannot be written.
    """
    kind, ways = settings.channel, tracks(settings, seed, slots)
    traces = {"numpy": numpy_radio(ways, kind, seed)}
    traces["sionna"] = sionna_radio(
        ways, kind, seed, report=lambda done, of: say(f"sionna: {done} of {of} devices")
    )
    for name, radio in traces.items():
        if keep is not None:
            radio.save(keep / f"{name}.npz")
    return {
        "scenario": kind,
        "seed": seed,
        "devices": settings.devices,
        "servers": settings.servers,
        "slots": slots,
        **{name: figures(radio, kind) for name, radio in traces.items()},
        "sinr_distance": distance_of(traces["numpy"], traces["sionna"]),
        "topology_a_step_db_per_m": _step(topology_a_step(ways, kind, seed)),
    }


def topology_a_step(ways: Tracks, kind: str, seed: int, slots: int = 12) -> Radio:
    """The mistake, made on purpose: every slot drawn by itself. For the first few devices."""
    places, power = ways.places[:slots, :CHUNK], ways.power[:CHUNK]
    rows = [
        sionna_radio(replace(ways, places=place[None], power=power), kind, seed + i)
        for i, place in enumerate(places)
    ]
    names = ("sight", "loss", "shadow", "sinr", "rate")
    parts = {name: np.concatenate([getattr(row, name) for row in rows]) for name in names}
    return replace(rows[0], places=places, **parts)


def figures(radio: Radio, kind: str, carrier: float = 3.5e9) -> dict[str, Any]:
    """What a trace says of its own distributions, and how far it is from the standard's formulas.

    ``path_loss_off_db``: most by which a loss differs from the formula for its distance and state.
    ``sight``: by ring of distance, the share in sight, and what the formula expects at the same
    places. ``shadow_*_db``: deviation; ``shadow_*_m``: correlation distance. ``sight_kept_10m``:
    correlation of the state of sight, less its mean chance, over 10 m. ``fading_*_db``: deviation
    of what is left. ``sinr_db``: tenths. ``step_db_per_m``: mean change of loss and shadowing.
    None: a trace too short for the figure.
    """
    shape, distance, sight = scenario(kind), radio.distance, radio.sight
    chance = sight_probability(shape, distance)
    fading = 10 * np.log10(radio.gain) + radio.loss + radio.shadow
    off = np.abs(radio.loss - path_loss(shape, distance, carrier, sight))
    far = distance > 10.0  # below, the standard has no formula
    rings = []
    for low, high in pairwise(RINGS):
        inside = (distance >= low) & (distance < high)
        if inside.any():
            rings.append((low, high, float(sight[inside].mean()), float(chance[inside].mean())))
    found: dict[str, Any] = {
        "path_loss_off_db": float(off[far].max()),
        "sight": rings,
        "sight_kept_10m": _sight_kept(radio, chance),
        "sinr_db": [float(np.quantile(radio.sinr, q)) for q in (0.1, 0.5, 0.9)],
        "step_db_per_m": _step(radio),
    }
    for name, state in (("los", sight), ("nlos", ~sight)):
        found[f"shadow_{name}_db"] = _deviation(radio.shadow[state])
        found[f"shadow_{name}_m"] = _forgets(radio, state)
        found[f"fading_{name}_db"] = _deviation(fading[state])
    return found


def lines(found: dict[str, Any]) -> list[str]:
    """What :func:`compare` found, as a table."""
    one, two = found["numpy"], found["sionna"]
    table = [f"{'':34}{'numpy':>10}{'Sionna':>10}"]
    for (low, high, ours, expected), (*_, other, _) in zip(one["sight"], two["sight"], strict=True):
        name = f"in sight at {low:.0f} to {high:.0f} m ({expected:.2f})"
        table.append(f"{name:34}{ours:10.2f}{other:10.2f}")
    for name, key in (
        ("path loss off the formula, dB", "path_loss_off_db"),
        ("sight kept over 10 m", "sight_kept_10m"),
        ("shadowing in sight, dB", "shadow_los_db"),
        ("  forgets over, m", "shadow_los_m"),
        ("shadowing out of sight, dB", "shadow_nlos_db"),
        ("  forgets over, m", "shadow_nlos_m"),
        ("fading in sight, dB", "fading_los_db"),
        ("fading out of sight, dB", "fading_nlos_db"),
        ("change of loss and shadow, dB/m", "step_db_per_m"),
    ):
        table.append(f"{name:34}{_shown(one[key]):>10}{_shown(two[key]):>10}")
    for name, ours, other in zip(
        ("10%", "50%", "90%"), one["sinr_db"], two["sinr_db"], strict=True
    ):
        table.append(f"{'SINR, dB, ' + name:34}{ours:10.1f}{other:10.1f}")
    table.append(f"largest difference of the distributions of SINR: {found['sinr_distance']:.3f}")
    jump = _shown(found["topology_a_step_db_per_m"])
    table.append(f"were each slot a topology of its own: {jump} dB/m")
    return table


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def distance_of(ours: Radio, other: Radio) -> float:
    """Kolmogorov's: the largest difference of the two distribution functions of SINR."""
    both = np.sort(np.concatenate([ours.sinr.ravel(), other.sinr.ravel()]))
    one, two = (
        np.searchsorted(np.sort(radio.sinr.ravel()), both, "right") / radio.sinr.size
        for radio in (ours, other)
    )
    return float(np.abs(one - two).max())


def _pairs(radio: Radio, lag: float) -> tuple[Floats, Floats, Floats]:
    """Indices of time and device of places about ``lag`` metres apart on one way."""
    way = np.linalg.norm(np.diff(radio.places, axis=0), axis=2)
    gone = np.concatenate([np.zeros((1, way.shape[1])), np.cumsum(way, axis=0)])
    starts, ends, devices = [], [], []
    for m in range(gone.shape[1]):
        end = np.searchsorted(gone[:, m], gone[:, m] + lag)
        start = np.flatnonzero(end < len(gone))
        straight = np.linalg.norm(radio.places[end[start], m] - radio.places[start, m], axis=1)
        good = np.abs(straight - lag) < 0.25 * lag
        starts.append(start[good])
        ends.append(end[start][good])
        devices.append(np.full(good.sum(), m))
    return tuple(np.concatenate(part) for part in (starts, ends, devices))  # type: ignore[return-value]


def _deviation(values: Floats) -> float | None:
    return float(values.std()) if len(values) > 1 else None


def _forgets(radio: Radio, state: NDArray[np.bool_]) -> float | None:
    """Correlation distance of shadowing in a state: the slope of -log of correlation."""
    apart, fallen = [], []
    for lag in LAGS:
        start, end, device = _pairs(radio, lag)
        both = state[start, device] & state[end, device]
        a, b = radio.shadow[start, device][both], radio.shadow[end, device][both]
        if len(a) < 50:
            continue
        way = np.linalg.norm(radio.places[end, device] - radio.places[start, device], axis=1)
        correlation = float((a * b).mean() / np.sqrt((a * a).mean() * (b * b).mean()))
        if correlation > 0.15:  # beyond, noise rules the logarithm
            apart.append(float(way.mean()))
            fallen.append(-np.log(correlation))
    if not apart:
        return None
    return float(np.dot(apart, apart) / np.dot(apart, fallen))


def _sight_kept(radio: Radio, chance: Floats) -> float | None:
    start, end, device = _pairs(radio, 10.0)
    if not len(start):
        return None
    a = (radio.sight - chance)[start, device]
    b = (radio.sight - chance)[end, device]
    scale = float(np.sqrt((a * a).mean() * (b * b).mean()))
    return float((a * b).mean()) / scale if scale > 0 else None


def _step(radio: Radio) -> float | None:
    """Mean change, dB a metre, over steps of at least half a metre."""
    way = np.linalg.norm(np.diff(radio.places, axis=0), axis=2)
    change = np.abs(np.diff(radio.loss + radio.shadow, axis=0))
    walked = way > 0.5
    if not walked.any():
        return None
    return float((change[walked] / way[walked][:, None]).mean())
