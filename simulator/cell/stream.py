"""The delay of the streaming engine: seconds a token, measured in virtual time, looked up here.

The paper's model drafts, sends and verifies one after the other and counts no token. Ours runs all
three at once, drops what is refused, and stops drafting where that does not pay. How long a token
takes then has no formula: ``python -m outrider.benchmarks.stream_table`` runs the real engines on
recorded acceptance over a grid of speeds and writes the table that lies beside this file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import RegularGridInterpolator

from outrider.protocol.errors import SettingError

Floats = NDArray[np.float64]
AXES = ("draft_step", "rtt", "uplink", "target_pass")
"""Seconds a draft token, seconds there and back, bytes a second, seconds of a pass."""

TOKEN = 0.05
"""What each token in a pass adds, as a part of the pass."""


@dataclass
class StreamTable:
    """``seconds`` [tasks, one length an axis]: a token's, between grid points by their logarithms;
    beyond the grid as at its rim, but in proportion to passes that are longer than the longest."""

    tasks: tuple[str, ...]
    axes: tuple[Floats, ...]
    seconds: Floats

    def __post_init__(self) -> None:
        shape = (len(self.tasks), *(len(axis) for axis in self.axes))
        if self.seconds.shape != shape or not (self.seconds > 0).all():
            raise SettingError(f"a table of seconds a token must be {shape}, all above 0")
        self._log = [np.log(axis) for axis in self.axes]
        self._look = [
            RegularGridInterpolator(self._log, np.log(each), bounds_error=False)
            for each in self.seconds
        ]

    def look_up(
        self, task: NDArray[np.int64], draft: Floats, rtt: float, uplink: Floats, passes: Floats
    ) -> Floats:
        """Seconds a token, by device. ``task``: indices into ``tasks``."""
        wanted = np.stack(np.broadcast_arrays(draft, rtt, uplink, passes), axis=-1)
        place = np.stack(
            [
                np.clip(np.log(wanted[..., k]), axis[0], axis[-1])
                for k, axis in enumerate(self._log)
            ],
            axis=-1,
        )
        found = np.empty(len(task))
        for number in range(len(self.tasks)):
            mine = task == number
            if mine.any():
                found[mine] = np.exp(self._look[number](place[mine]))
        return np.asarray(found * np.maximum(1.0, passes / self.axes[-1][-1]))


@cache
def table() -> StreamTable:
    """The one that comes with the package."""
    text = files("outrider.simulator.cell").joinpath("stream_table.json").read_text("utf-8")
    data = json.loads(text)
    return StreamTable(
        tasks=tuple(data["tasks"]),
        axes=tuple(np.array(data["axes"][name], np.float64) for name in AXES),
        seconds=np.array(data["seconds"], np.float64),
    )
