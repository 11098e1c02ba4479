"""Traces of radio by Sionna's 3GPP TR 38.901 channels (``sionna-no-rt``, on PyTorch).

Offline, in chunks of devices. All places of a device's way are terminals of *one* topology, so that
sight, shadowing and rays are consistent along it. (A topology a step draws all of them anew each
time, and a moving device jumps.) Sight is made consistent as well (``enable_spatial_consistency``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from outrider.protocol.errors import BackendError
from outrider.runtime.extras import hint
from outrider.simulator.cell.channel import Floats, scenario
from outrider.simulator.cell.radio import Radio, Tracks, traced

CHUNK = 4
"""Devices at a time: memory grows with devices x servers x the square of places."""


def sionna_radio(
    tracks: Tracks,
    kind: str,
    seed: int,
    carrier: float = 3.5e9,
    *,
    report: Callable[[int, int], None] = lambda _done, _of: None,
) -> Radio:
    """One trace. All devices are outdoors, antennas single and omnidirectional.

    Raises:
        SettingError: there is no scenario of that name.
        BackendError: Sionna is not installed.
    """
    make = _maker(kind, carrier, seed)
    devices = tracks.places.shape[1]
    parts = []
    for first in range(0, devices, CHUNK):
        chunk = slice(first, first + CHUNK)
        parts.append(_chunk(make(), tracks, tracks.places[:, chunk], scenario(kind).heights))
        report(min(first + CHUNK, devices), devices)
    return traced(tracks, *(np.concatenate(part, axis=1) for part in zip(*parts, strict=True)))


def _maker(kind: str, carrier: float, seed: int) -> Callable[[], Any]:
    scenario(kind)
    try:
        import sionna.phy
        from sionna.phy.channel import tr38901
    except ImportError as error:
        raise BackendError(f"Sionna is not installed: {hint('sim')}") from error
    sionna.phy.config.device = "cpu"
    sionna.phy.config.seed = seed
    array = tr38901.PanelArray(
        num_rows_per_panel=1,
        num_cols_per_panel=1,
        polarization="single",
        polarization_type="V",
        antenna_pattern="omni",
        carrier_frequency=carrier,
    )

    def make() -> Any:
        settings = {
            "carrier_frequency": carrier,
            "o2i_model": "low",
            "ut_array": array,
            "bs_array": array,
            "direction": "uplink",
            "enable_spatial_consistency": True,
        }
        return {"umi": tr38901.UMi, "uma": tr38901.UMa}[kind](**settings)

    return make


def _chunk(
    channel: Any, tracks: Tracks, places: Floats, heights: tuple[float, float]
) -> tuple[Any, ...]:
    """(sight, path loss, shadowing, gain) [T, devices of the chunk, E]. A batch entry a device."""
    import torch

    steps, devices, _ = places.shape
    servers = len(tracks.servers)

    def located(flat: Floats, height: float) -> torch.Tensor:
        whole = np.concatenate([flat, np.full((*flat.shape[:-1], 1), height)], -1)
        return torch.tensor(whole, dtype=torch.float32)

    high, low = heights
    channel.set_topology(
        located(places.transpose(1, 0, 2), low),
        located(np.broadcast_to(tracks.servers, (devices, servers, 2)), high),
        torch.zeros(devices, steps, 3),
        torch.zeros(devices, servers, 3),
        torch.zeros(devices, steps, 3),
        torch.zeros(devices, steps, dtype=torch.bool),
        spatial_consistency_track_ids=torch.zeros(devices, steps, dtype=torch.long),
    )
    paths, _ = channel(1, 1.0)  # [devices, E, 1, T, 1, paths, 1]
    power = paths.sum(5).abs().square().reshape(devices, servers, steps)
    # What the paths were made with; sample_lsp() would draw another set.
    large, sight = channel._lsp, channel._scenario.los
    shadow = -10.0 * torch.log10(large.sf)  # Sionna's is a gain
    return tuple(
        np.asarray(part.cpu().numpy().transpose(2, 0, 1), wanted)
        for part, wanted in (
            (sight, np.bool_),
            (large.pathloss, np.float64),
            (shadow, np.float64),
            (power, np.float64),
        )
    )
