"""What travels of a distribution under the ratio rule. Without numpy: messages are made of it."""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

MAX_KEEP = 64
"""Most ids in a row."""

MAX_LEVELS = 4096


class SparseRow(NamedTuple):
    """A distribution: ``ids`` ascending, ``counts`` of at least 1 each, their sum the levels."""

    ids: tuple[int, ...]
    counts: tuple[int, ...]

    @property
    def levels(self) -> int:
        """What the counts are parts of."""
        return sum(self.counts)

    @property
    def peak(self) -> float:
        """The largest mass of an id."""
        return max(self.counts) / self.levels

    def mass(self, token: int) -> float:
        """The probability of an id; 0 for one that the row lacks."""
        at = bisect_left(self.ids, token)
        if at == len(self.ids) or self.ids[at] != token:
            return 0.0
        return self.counts[at] / self.levels

    def masses(self) -> list[float]:
        """The probabilities of ``ids``."""
        levels = self.levels
        return [count / levels for count in self.counts]
