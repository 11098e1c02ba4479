"""Passes of shapes that come again, recorded once and replayed: CUDA graphs.

On a GPU a small pass costs more to launch than to compute. ``step.lay_out_dense`` rounds shapes
up, so that few come up; each is recorded when it has been seen often enough, and a shape that has
not is simply run. Nothing is ever compiled, so a new shape costs no more than a recording, once.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from outrider.cloud_server.targets.ragged import RowIndex
from outrider.cloud_server.targets.step import Block

_log = logging.getLogger(__name__)

SEEN = 3
"""How often a shape has to come before it is recorded."""
MOST = 24
"""Recordings kept; each holds its logits. The one that was not used longest goes."""

Run = Callable[[RowIndex], Tensor]


class Recorder(Protocol):
    """Makes a recording of a function that reads and writes fixed memory."""

    def __call__(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """A function that does again what ``run`` does, on what the memory holds then."""


class CudaRecorder:
    """CUDA graphs that share one pool of memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Run twice beside the stream, as libraries set themselves up at first; then record."""
        with torch.cuda.device(self._device):
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):
                    run()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                out = run()

        def replay() -> Tensor:
            graph.replay()
            return out

        return replay


class Graphs:
    """Runs steady passes; the logits of all their tokens, ``[tokens, width]``."""

    def __init__(self, run: Run, recorder: Recorder) -> None:
        self._run = run
        self._recorder: Recorder | None = recorder
        self._seen: dict[Block, int] = {}
        self._kept: OrderedDict[Block, tuple[RowIndex, Callable[[], Tensor]]] = OrderedDict()

    def __call__(self, index: RowIndex) -> Tensor:
        """The result is valid until the next call."""
        (shape,) = index.blocks
        if shape not in self._kept and not self._worth(shape, index):
            return self._run(index)
        self._kept.move_to_end(shape)
        held, replay = self._kept[shape]
        held.fill(index)
        return replay()

    def _worth(self, shape: Block, index: RowIndex) -> bool:
        """Record a shape that has come often enough."""
        self._seen[shape] = self._seen.get(shape, 0) + 1
        if self._recorder is None or self._seen[shape] < SEEN:
            return False
        held = index.copy()
        try:
            self._kept[shape] = held, self._recorder(lambda: self._run(held))
        except RuntimeError as error:
            _log.warning("passes are not recorded as graphs: %s", str(error).splitlines()[0])
            self._recorder = None
            return False
        if len(self._kept) > MOST:
            self._kept.popitem(last=False)
        return True
