"""The batch that llama.cpp decodes: tokens of several sequences, flat, in memory owned by numpy."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.runtime.lm.llama_library import library

Item = tuple[int, Sequence[int], int]
"""(sequence, ids to feed after its cached ones, logits rows wanted of the last positions)."""


@dataclass(slots=True)
class Flat:
    """The tokens of all items one after the other, as llama.cpp wants them."""

    token: NDArray[np.int32]
    position: NDArray[np.int32]
    sequence: NDArray[np.int32]
    wanted: NDArray[np.int8]

    @classmethod
    def of(cls, items: Sequence[Item], past: Sequence[int]) -> Flat:
        """Lay out the items; ``past[seq]`` is how many ids a sequence holds already."""
        n = sum(len(ids) for _, ids, _ in items)
        token, position, sequence = np.empty((3, n), np.int32)
        flat = cls(token, position, sequence, np.zeros(n, np.int8))
        end = 0
        for seq, ids, rows in items:
            start, end = end, end + len(ids)
            flat.token[start:end] = ids
            flat.position[start:end] = np.arange(past[seq], past[seq] + len(ids))
            flat.sequence[start:end] = seq
            flat.wanted[end - rows : end] = 1
        return flat

    def part(self, start: int, end: int) -> Flat:
        """Views of a range of the tokens."""
        cut = slice(start, end)
        return Flat(self.token[cut], self.position[cut], self.sequence[cut], self.wanted[cut])


class Batch:
    """A ``llama_batch`` over numpy arrays that live as long as it does."""

    def __init__(self, capacity: int) -> None:
        api = library()
        self.capacity = capacity
        self._token = np.zeros(capacity, np.int32)
        self._position = np.zeros(capacity, np.int32)
        self._sequence = np.zeros(capacity, np.int32)
        self._wanted = np.zeros(capacity, np.int8)
        self._one = np.ones(capacity, np.int32)  # each token belongs to one sequence
        step = self._sequence.itemsize
        # llama.cpp wants for each token a pointer to its list of sequences: here a list of one.
        self._pointers = self._sequence.ctypes.data + step * np.arange(capacity, dtype=np.uint64)
        batch = api.llama_batch()
        for field, array in (
            ("token", self._token),
            ("pos", self._position),
            ("n_seq_id", self._one),
            ("seq_id", self._pointers),
            ("logits", self._wanted),
        ):
            kind = type(getattr(batch, field))
            setattr(batch, field, ctypes.cast(array.ctypes.data, kind))
        self._struct = batch

    def fill(self, chunk: Flat) -> Any:
        """Copy one chunk in and return the struct to decode."""
        n = len(chunk.token)
        self._token[:n] = chunk.token
        self._position[:n] = chunk.position
        self._sequence[:n] = chunk.sequence
        self._wanted[:n] = chunk.wanted
        self._struct.n_tokens = n
        return self._struct
