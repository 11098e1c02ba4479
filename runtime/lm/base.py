"""A causal language model behind four verbs: feed, cut, fork, close.

The model owns the list of ids in its cache. Callers ask for a text with :func:`follow`, which
cuts at the longest common prefix and feeds the rest; nobody else counts cache positions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from outrider.protocol.errors import BackendError

Rows = NDArray[np.float32]
"""Logits, float32, shape ``[positions, row_width]``: row i predicts the token after position i."""


class CausalLM(ABC):
    """One sequence of ids in one model's cache.

    Not thread-safe: one thread owns it. ``row_width`` is the width of a logits row and may exceed
    the tokenizer's size (padding rows); ``n_ctx`` is how many ids the cache can hold.
    """

    name: str
    row_width: int
    n_ctx: int

    @property
    @abstractmethod
    def ids(self) -> Sequence[int]:
        """The ids in the cache, in order. Read only; owned by the model."""

    @abstractmethod
    def feed(self, ids: Sequence[int], rows: int = 1) -> Rows:
        """Evaluate ``ids`` (at least one) after the cached ones.

        Returns the logits of the last ``rows`` positions.

        ``rows`` may be 0 (prefill) up to ``len(ids)``. The array is the caller's to keep.

        Raises:
            BackendError: the context is full, an id is out of range, or the backend failed.
            The cache is unchanged then.
        """

    @abstractmethod
    def cut(self, length: int) -> None:
        """Keep the first ``length`` ids of the cache and forget the rest."""

    @abstractmethod
    def fork(self) -> CausalLM:
        """An independent sequence with the same ids, sharing the weights."""

    @abstractmethod
    def close(self) -> None:
        """Free the sequence. Calling it twice is harmless."""


class ListedLM(CausalLM):
    """What the models that keep their own list of ids share: the list, its cuts and its end."""

    def __init__(self, name: str, row_width: int, n_ctx: int) -> None:
        self.name = name
        self.row_width = row_width
        self.n_ctx = n_ctx
        self._ids: list[int] = []
        self._closed = False

    @property
    def ids(self) -> Sequence[int]:
        self._check_open()
        return self._ids

    def cut(self, length: int) -> None:
        self._check_open()
        check_cut(length, len(self._ids))
        del self._ids[length:]

    def close(self) -> None:
        self._closed = True
        self._ids = []

    def _check_open(self) -> None:
        if self._closed:
            raise BackendError(f"{self.name} has been closed")


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix of two id sequences."""
    n = min(len(a), len(b))
    head, other = a[:n], b[:n]
    if type(head) is not type(other):
        head, other = list(head), list(other)
    if head == other:  # one C-level comparison for the usual case
        return n
    low, high = 0, n  # equal before low, different somewhere before high: halve, still in C
    while high - low > 1:
        middle = (low + high) // 2
        if head[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low


def follow(lm: CausalLM, ids: Sequence[int], rows: int = 1) -> Rows:
    """Make the cache hold exactly ``ids`` and return the logits of its last ``rows`` positions.

    Cuts at the longest common prefix and feeds the rest; positions whose logits are wanted are
    evaluated again if they were cached already. ``ids`` must hold at least ``rows`` ids.
    """
    keep = min(common_prefix(lm.ids, ids), len(ids) - rows)
    if keep < len(lm.ids):
        lm.cut(keep)
    if keep == len(ids):
        return np.empty((0, lm.row_width), np.float32)
    return lm.feed(ids[keep:], rows)


class Limits(Protocol):
    """What :func:`check_feed` has to know of a model."""

    name: str
    row_width: int
    n_ctx: int


def check_feed(model: Limits, ids: Sequence[int], rows: int, past: int) -> None:
    """The conditions of ``feed`` after ``past`` cached ids, the same for every backend.

    Raises:
        BackendError: nothing to feed, more rows than ids, no room, or an id that is no token.
    """
    name = model.name
    if len(ids) == 0:
        raise BackendError(f"{name}: nothing to feed")
    if not 0 <= rows <= len(ids):
        raise BackendError(f"{name}: {rows} rows wanted of {len(ids)} ids")
    if past + len(ids) > model.n_ctx:
        raise BackendError(
            f"{name}: the context holds {model.n_ctx} ids; {past} are cached and {len(ids)} more "
            "do not fit"
        )
    low, high = min(ids), max(ids)
    if low < 0 or high >= model.row_width:
        bad = low if low < 0 else high
        last = model.row_width - 1
        raise BackendError(f"{name}: id {bad} is not a token; ids go from 0 to {last}")


def check_cut(length: int, cached: int) -> None:
    """The condition of ``cut``: a length from 0 to what is cached."""
    if not 0 <= length <= cached:
        raise BackendError(f"cannot cut to {length} ids: {cached} are cached")
