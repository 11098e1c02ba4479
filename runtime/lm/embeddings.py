"""Token embeddings of a GGUF file, row by row, for how alike two tokens are."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.runtime.hub.gguf import read_header

BLOCK = np.dtype([("scale", "<f2"), ("values", "i1", (32,))])
"""Of Q8_0: 32 values and what they are multiplied by."""

_TYPES: dict[str, tuple[np.dtype[Any], int]] = {
    "F32": (np.dtype("<f4"), 1),
    "F16": (np.dtype("<f2"), 1),
    "Q8_0": (BLOCK, 32),
}


class TokenEmbeddings:
    """Rows ``[size]`` of the input embeddings, read from the file as they are asked for."""

    def __init__(self, rows: NDArray[Any]) -> None:
        self._rows = rows
        self.similarity = lru_cache(maxsize=4096)(self._similarity)

    @classmethod
    def open(cls, path: Path) -> TokenEmbeddings | None:
        """Those of a file; None if it has none, or of a type that is not read here.

        Raises:
            BackendError: it is no sound GGUF file.
        """
        place = read_header(path).embeddings
        if place is None or place.kind not in _TYPES or len(place.shape) != 2:
            return None
        kind, block = _TYPES[place.kind]
        size, tokens = place.shape
        if size % block:
            return None
        shape = (tokens, size // block)
        return cls(np.memmap(path, kind, "r", place.offset, shape))

    def row(self, token: int) -> NDArray[np.float32]:
        """The embedding of a token, float32."""
        row = np.asarray(self._rows[token])
        if row.dtype != BLOCK:
            return row.astype(np.float32)
        scaled = row["values"].astype(np.float32) * row["scale"].astype(np.float32)[:, None]
        return scaled.reshape(-1)

    def _similarity(self, a: int, b: int) -> float:
        """The cosine of the angle between two tokens, -1 to 1; 0 for one that is not there."""
        if max(a, b) >= len(self._rows):
            return 0.0
        x, y = self.row(a), self.row(b)
        length = float(np.linalg.norm(x) * np.linalg.norm(y))
        return float(x @ y) / length if length > 0 else 0.0
