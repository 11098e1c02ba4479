"""A learned policy, run without torch: the exported actor on ONNX Runtime, and what it sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.cloud_server.placement import association
from outrider.cloud_server.placement.problem import Floats, Ints, Placement, Problem
from outrider.protocol.errors import BackendError
from outrider.runtime.extras import hint

LEAST = 0.02
"""The smallest weight: nobody is left without any share."""

FEATURES = 10
"""Numbers that a device sees of each server."""


def observe(problem: Problem) -> NDArray[np.float32]:
    """What each device sees of each server, about within -3 to 3: [M, E, FEATURES].

    Its bits, drafting time, work and battery; its channel's SNR over the whole band, by how much
    that is below its best one; the server's speed, queue, and how many devices hear it best; and
    how many devices there are to a server. Nothing in it depends on how many there are of either.
    """
    m, e = problem.devices, problem.servers
    own = (
        np.log10(problem.bits) - 5.3,
        4.0 * (problem.draft - 0.2),
        np.log10(problem.work) - 12.0,
        np.log10(problem.battery) - 3.0,
    )
    snr = np.log10(problem.gain * problem.power[:, None] / (problem.noise * problem.band)) / 2.0
    heard = np.bincount(problem.gain.argmax(1), minlength=e) * e / m - 1.0
    servers = (np.log10(problem.speed) - 13.0, problem.queue - 0.5, heard)
    parts = [
        *(value[:, None] for value in own),
        snr - 1.0,
        snr - snr.max(1, keepdims=True),
        *servers,
        np.log10(m / e) - 1.0,
    ]
    rows = np.stack([np.broadcast_to(part, (m, e)) for part in parts], axis=-1)
    return np.asarray(np.clip(rows, -10.0, 10.0), np.float32)


def weighted(problem: Problem, server: Ints, weights: Floats) -> Placement:
    """Shares from weights [M, 2]: each over the sum at its server."""
    weights = np.clip(weights, LEAST, 1.0)
    band = np.bincount(server, weights[:, 0], problem.servers)
    compute = np.bincount(server, weights[:, 1], problem.servers)
    return Placement(server, weights[:, 0] / band[server], weights[:, 1] / compute[server])


class Actor:
    """A policy of association and shares, for any number of devices and servers."""

    def __init__(self, path: Path, features: int = FEATURES) -> None:
        """Load an actor who sees ``features`` numbers of a server.

        Raises:
            BackendError: the file is missing, broken, or no policy for such observations.
        """
        try:
            import onnxruntime
        except ImportError as error:
            raise BackendError(f"ONNX Runtime is not installed: {hint('edge')}") from error
        if not path.is_file():
            raise BackendError(f"no such file: {path}")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        try:
            self._session = onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # its exceptions share no base class of their own
            line = str(error).strip().partition("\n")[0]
            raise BackendError(f"ONNX Runtime cannot load {path}: {line}") from error
        _check(self._session, path, features)

    def place(self, problem: Problem, *, matched: bool = False) -> Placement:
        """The likeliest servers and the mean weights there; ``matched``: as TMA-MASAC, which takes
        the servers from the matching and the shares from the actor."""
        logits, weights = self._session.run(["logits", "weights"], {"seen": observe(problem)})
        server = np.asarray(logits.argmax(-1), np.int64)
        if matched:
            server = association.tma(problem, np.random.default_rng(0))
        return weighted(problem, server, weights[np.arange(len(server)), server].astype(np.float64))


def _check(session: Any, path: Path, features: int) -> None:
    shapes = {value.name: value.shape for value in (*session.get_inputs(), *session.get_outputs())}
    if not {"seen", "logits", "weights"} <= shapes.keys() or len(shapes["seen"]) != 3:
        raise BackendError(
            f"{path} is no policy of placement: it has {', '.join(sorted(shapes))}, not seen, "
            f"logits and weights"
        )
    if shapes["seen"][-1] != features:
        raise BackendError(
            f"{path} is a policy that sees {shapes['seen'][-1]} numbers of a server; here are "
            f"{features}: learn it again with this version"
        )
