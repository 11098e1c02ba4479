"""One model over several processes, each with a part of every layer: tensor parallelism.

The process that serves is rank 0. The others hear over a pipe which rows come next and evaluate
the same, layer by layer together with rank 0 (transformers' own plan, torch.distributed: NCCL on
GPUs, gloo on a CPU). Each holds the keys and values of its own heads.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import msgspec

from outrider.cloud_server.targets import hf_load
from outrider.cloud_server.targets.base import Decided, Row, Target
from outrider.cloud_server.targets.hf_target import HfTarget
from outrider.protocol.decoding.processors import F32
from outrider.protocol.errors import BackendError

PATIENCE = 600.0
"""Seconds for the others to load; longer than any model that fits takes from a disk."""


@dataclass(frozen=True, slots=True)
class Rank:
    """One process of the group; ``meeting`` is a folder in which they find each other."""

    number: int
    of: int
    meeting: str


class TensorParallelTarget(Target):
    """Rank 0 of several; otherwise what the target it holds is."""

    def __init__(
        self, inner: HfTarget, others: list[tuple[BaseProcess, Connection]], meeting: str
    ) -> None:
        self._inner = inner
        self._others = others
        self._meeting = meeting
        self.info = inner.info

    @classmethod
    def load(cls, model: str, ranks: int, **settings: Any) -> TensorParallelTarget:
        """Start the other ranks and load everywhere.

        Args:
            model: a folder or hub id.
            ranks: processes, this one included; on CUDA each has the GPU of its number.
            settings: as of :meth:`TransformersTarget.load`; ``device`` is cpu or cuda.

        Raises:
            BackendError: the model cannot be split that way, or a rank cannot load it.
        """
        hf_load.check_ranks(model, ranks)
        meeting = tempfile.mkdtemp(prefix="outrider-ranks-")
        context = multiprocessing.get_context("spawn")
        others: list[tuple[BaseProcess, Connection]] = []
        try:
            for rank in range(1, ranks):
                mine, theirs = context.Pipe()
                process: BaseProcess = context.Process(
                    target=_follow,
                    args=(Rank(rank, ranks, meeting), theirs, model, settings),
                    name=f"rank {rank}",
                    daemon=True,
                )
                process.start()
                theirs.close()
                others.append((process, mine))
            inner = _load(Rank(0, ranks, meeting), model, settings)
            for process, pipe in others:
                _await(process, pipe)
        except BaseException:
            _end(others, meeting)
            raise
        return cls(inner, others, meeting)

    def forward(self, rows: Sequence[Row]) -> list[Decided]:
        self._tell(rows)
        return self._inner.forward(rows)

    def logits(self, rows: Sequence[Row]) -> list[F32]:
        self._tell(rows)
        return self._inner.logits(rows)

    def score(self, row: Row, candidates: Sequence[int]) -> list[tuple[float, float]]:
        self._tell([row])
        return self._inner.score(row, candidates)

    def lengths(self) -> list[int]:
        """How many ids each slot has cached."""
        return self._inner.lengths()

    def close(self) -> None:
        self._inner.close()
        if self._others:
            _end(self._others, self._meeting)
            self._others = []

    def _tell(self, rows: Sequence[Row]) -> None:
        """Let the other ranks begin the same pass."""
        if not rows:
            return
        for process, pipe in self._others:
            if not process.is_alive():
                raise BackendError(f"{self.info.name}: {process.name} of the target has died")
            with contextlib.suppress(BrokenPipeError):
                pipe.send([msgspec.structs.replace(row, constraint=None) for row in rows])


def _load(rank: Rank, model: str, settings: dict[str, Any]) -> HfTarget:
    """Join the group and load this rank's part."""
    import torch.distributed as dist

    from outrider.cloud_server.targets.transformers import TransformersTarget

    device = settings.get("device", "cpu")
    # What torch.distributed and transformers ask the environment for; one machine, so loopback.
    number = str(rank.number)
    os.environ.update(RANK=number, LOCAL_RANK=number, WORLD_SIZE=str(rank.of))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "nccl" if device.startswith("cuda") else "gloo",
        init_method=f"file://{rank.meeting}/ranks",
        rank=rank.number,
        world_size=rank.of,
    )
    place = f"cuda:{rank.number}" if device == "cuda" else device
    return TransformersTarget.load(model, **(settings | {"device": place, "ranks": rank.of}))


def _follow(rank: Rank, pipe: Connection, model: str, settings: dict[str, Any]) -> None:
    """What another rank does, until rank 0 ends or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all; rank 0 says when to end
    try:
        target = _load(rank, model, settings)
    except BaseException as error:
        pipe.send(f"{error}" or type(error).__name__)
        raise
    pipe.send(None)
    while True:
        try:
            rows = pipe.recv()
        except EOFError:
            return
        if rows is None:
            return
        with contextlib.suppress(BackendError):  # rank 0 finds the same and says it
            target.evaluate(rows)


def _await(process: BaseProcess, pipe: Connection) -> None:
    """The other rank's word that it is ready."""
    try:
        problem = pipe.recv() if pipe.poll(PATIENCE) else "it takes too long"
    except EOFError:
        problem = "it has died"
    if problem is not None:
        raise BackendError(f"{process.name} of the target did not load: {problem}")


def _end(others: list[tuple[BaseProcess, Connection]], meeting: str) -> None:
    import torch.distributed as dist

    for process, pipe in others:
        with contextlib.suppress(OSError):
            pipe.send(None)
        process.join(2.0)
        if process.is_alive():
            process.terminate()
            process.join()
        pipe.close()
    if dist.is_initialized():
        dist.destroy_process_group()
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)
    for file in Path(meeting).glob("*"):
        file.unlink()
    Path(meeting).rmdir()
