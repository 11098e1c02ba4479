"""A learned policy, run without torch: the exported actor on ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.cloud_server.placement.problem import Ints
from outrider.protocol.errors import BackendError
from outrider.runtime.extras import hint


class Actor:
    """``seen`` [M, F] -> (server [M], weights [M, 2])."""

    def __init__(self, path: Path, features: int, servers: int) -> None:
        """Load an actor for ``servers`` servers whose observations have ``features`` numbers.

        Raises:
            BackendError: the file is missing, broken, or of another number of servers.
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
        _check(self._session, path, features, servers)

    def decide(self, seen: NDArray[np.float32]) -> tuple[Ints, NDArray[np.float64]]:
        """The likeliest server and the mean weights."""
        logits, weights = self._session.run(["logits", "weights"], {"seen": seen})
        return logits.argmax(-1), np.asarray(weights, np.float64)


def _check(session: Any, path: Path, features: int, servers: int) -> None:
    shapes = {value.name: value.shape for value in (*session.get_inputs(), *session.get_outputs())}
    found = (shapes.get("seen", [0, 0])[-1], shapes.get("logits", [0, 0])[-1])
    if found != (features, servers):
        raise BackendError(
            f"{path} is a policy for {found[1]} servers ({found[0]} features); here are {servers} "
            f"({features} features)"
        )
