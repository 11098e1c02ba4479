"""The batch that llama.cpp decodes: tokens of several sequences, flat, in memory owned by numpy."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.runtime.lm.llama_library import library

Item = tuple[int, Sequence[int], int]
"""(sequence, ids to feed after its cached ones, logits rows wanted of the last positions)."""


@dataclass(frozen=True, slots=True)
class Tree:
    """The last tokens of an item are nodes, ``parents[i]`` an earlier node or -1.

    ``members[i]``: the sequences that node i belongs to, one for each end of the tree under it;
    ``all`` are those of the whole tree, to which the item's other tokens belong.
    """

    parents: Sequence[int]
    depths: Sequence[int]
    members: Sequence[Sequence[int]]
    all: Sequence[int]


NO_TREES: Mapping[int, Tree] = {}


@dataclass(slots=True)
class Flat:
    """The tokens of all items one after the other, as llama.cpp wants them.

    Token i belongs to ``counts[i]`` sequences; ``members`` has those of all tokens in a row.
    """

    token: NDArray[np.int32]
    position: NDArray[np.int32]
    counts: NDArray[np.int32]
    members: NDArray[np.int32]
    wanted: NDArray[np.int8]

    @classmethod
    def of(
        cls, items: Sequence[Item], past: Sequence[int], trees: Mapping[int, Tree] = NO_TREES
    ) -> Flat:
        """Lay out the items; ``past[seq]`` is how many ids a sequence holds already.

        ``trees``: by sequence, of the items that end on one.
        """
        n = sum(len(ids) for _, ids, _ in items)
        token, position, counts = np.empty((3, n), np.int32)
        counts[:] = 1
        members: list[NDArray[np.int32]] = []
        flat = cls(token, position, counts, np.empty(0, np.int32), np.zeros(n, np.int8))
        end = 0
        for seq, ids, rows in items:
            start, end = end, end + len(ids)
            flat.token[start:end] = ids
            flat.position[start:end] = np.arange(past[seq], past[seq] + len(ids))
            flat.wanted[end - rows : end] = 1
            tree = trees.get(seq)
            if tree is None:
                members.append(np.full(len(ids), seq, np.int32))
                continue
            middle = end - len(tree.parents)
            flat.position[middle:end] = past[seq] + (middle - start) + np.array(tree.depths)
            lists = [*([tree.all] * (middle - start)), *tree.members]
            flat.counts[start:end] = list(map(len, lists))
            members.append(np.array([m for each in lists for m in each], np.int32))
        if members:
            flat.members = np.concatenate(members)
        return flat

    def part(self, start: int, end: int) -> Flat:
        """Views of a range of the tokens."""
        cut = slice(start, end)
        before = int(self.counts[:start].sum())
        mine = slice(before, before + int(self.counts[cut].sum()))
        return Flat(
            self.token[cut], self.position[cut], self.counts[cut], self.members[mine],
            self.wanted[cut],
        )  # fmt: skip


class Batch:
    """A ``llama_batch`` over numpy arrays that live as long as it does."""

    def __init__(self, capacity: int, ends: int = 1) -> None:
        """``ends``: sequences that a token may belong to."""
        api = library()
        self.capacity = capacity
        self.ends = ends
        self._token = np.zeros(capacity, np.int32)
        self._position = np.zeros(capacity, np.int32)
        self._members = np.zeros(capacity * ends, np.int32)
        self._wanted = np.zeros(capacity, np.int8)
        self._counts = np.ones(capacity, np.int32)
        # llama.cpp wants for each token a pointer to its list of sequences.
        self._pointers = np.zeros(capacity, np.uint64)
        batch = api.llama_batch()
        for field, array in (
            ("token", self._token),
            ("pos", self._position),
            ("n_seq_id", self._counts),
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
        self._counts[:n] = chunk.counts
        self._members[: len(chunk.members)] = chunk.members
        begins = np.cumsum(chunk.counts, dtype=np.uint64) - chunk.counts.astype(np.uint64)
        step = np.uint64(self._members.itemsize)
        self._pointers[:n] = np.uint64(self._members.ctypes.data) + step * begins
        self._wanted[:n] = chunk.wanted
        self._struct.n_tokens = n
        return self._struct
