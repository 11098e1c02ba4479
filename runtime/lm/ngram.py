"""Prompt lookup as a language model: what followed the last time these words were seen.

No weights and no cost worth counting. A row is a peak on the id that followed the latest earlier
occurrence of the longest known suffix (3 ids, then 2, then 1), as high as such a guess is usually
right; where the suffix is new, the row is flat.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from outrider.protocol.errors import SettingError
from outrider.runtime.lm.base import ListedLM, Rows, check_cut, check_feed

CONFIDENCE = {3: 0.85, 2: 0.6, 1: 0.3}
"""The probability given to a guess by the length of the suffix it rests on."""


class NgramLM(ListedLM):
    """An index of where every n-gram of the cached ids ended; cut and fork keep it exact."""

    def __init__(self, vocab_size: int, n_ctx: int = 1 << 17) -> None:
        for setting, value in (("vocab_size", vocab_size), ("n_ctx", n_ctx)):
            if value < 2:
                raise SettingError(f"{setting} is {value}; it must be at least 2")
        super().__init__("ngram", vocab_size, n_ctx)
        self._peaks = {n: math.log(p / (1 - p) * (vocab_size - 1)) for n, p in CONFIDENCE.items()}
        # n-gram -> the lengths of the cache at which it ended, ascending: a stack under cuts
        self._ends: dict[tuple[int, ...], list[int]] = {}

    def feed(self, ids: Sequence[int], rows: int = 1) -> Rows:
        self._check_open()
        check_feed(self, ids, rows, len(self._ids))
        out = np.zeros((rows, self.row_width), np.float32)
        for i, token in enumerate(ids, start=rows - len(ids)):
            length, guess = self._append(int(token))
            if i >= 0 and length:
                out[i, guess] = self._peaks[length]
        return out

    def _append(self, token: int) -> tuple[int, int]:
        """Index one id; the longest suffix seen before (0: none) and the id that followed it."""
        self._ids.append(token)
        end = len(self._ids)
        length = guess = 0
        for n in range(1, min(end, max(CONFIDENCE)) + 1):
            ends = self._ends.setdefault(tuple(self._ids[end - n :]), [])
            if ends:
                length, guess = n, self._ids[ends[-1]]
            ends.append(end)
        return length, guess

    def cut(self, length: int) -> None:
        self._check_open()
        check_cut(length, len(self._ids))
        for end in range(len(self._ids), length, -1):
            for n in range(1, min(end, max(CONFIDENCE)) + 1):
                gram = tuple(self._ids[end - n : end])
                ends = self._ends[gram]
                ends.pop()
                if not ends:
                    del self._ends[gram]
        super().cut(length)

    def fork(self) -> NgramLM:
        self._check_open()
        twin = NgramLM(self.row_width, self.n_ctx)
        twin._ids = list(self._ids)
        twin._ends = {gram: list(ends) for gram, ends in self._ends.items()}
        return twin

    def close(self) -> None:
        super().close()
        self._ends = {}
