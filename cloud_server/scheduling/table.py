"""The requests of a step as arrays, a row each: what the rules compute with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import chain

import numpy as np
import numpy.typing as npt

from outrider.cloud_server.scheduling.batch import LATER, Rank, Request
from outrider.cloud_server.scheduling.step_time import StepTime

PREFILL = int(Rank.PREFILL)

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(slots=True)
class Table:
    """The fields of :class:`Request`, ``[rows]`` each; of ``reach`` ``[rows, most guesses]``.

    ``most`` is how many guesses a row has; ``reach`` is 0 beyond them.
    """

    rank: Counts
    tokens: Counts
    context: Counts
    since: Floats
    weight: Floats
    most: Counts
    reach: Floats

    @classmethod
    def of(cls, requests: Sequence[Request]) -> Table:
        """These requests, in this order."""
        reaches = [r.reach for r in requests]
        most = np.array(list(map(len, reaches)), np.int64)
        reach = np.zeros((len(requests), int(most.max(initial=0))))
        reach[np.arange(reach.shape[1]) < most[:, None]] = [*chain.from_iterable(reaches)]
        return cls(
            np.array([r.rank._value_ for r in requests], np.int64),  # an enum is slow to convert
            np.array([r.tokens for r in requests], np.int64),
            np.array([r.context for r in requests], np.int64),
            np.array([r.since for r in requests], np.float64),
            np.array([r.weight for r in requests], np.float64),
            most,
            reach,
        )

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.rank)

    def of_rows(self, rows: Counts) -> Table:
        """Some of the rows only."""
        if len(rows) == len(self):
            return self
        return Table(*(getattr(self, column.name)[rows] for column in fields(self)))

    def of_drafts(self, most: Counts) -> Table:
        """The same with so many guesses a row."""
        if most is self.most:
            return self
        reach = self.reach * (np.arange(self.reach.shape[1]) < most[:, None])
        return Table(self.rank, self.tokens, self.context, self.since, self.weight, most, reach)

    @property
    def prompts(self) -> Mask:
        """The rows that read a prompt."""
        found: Mask = self.rank == PREFILL
        return found

    def seconds(self, inside: Mask, drafts: int, times: StepTime) -> float:
        """How long a step of these rows takes, with so many guesses in all."""
        rows = int(np.count_nonzero(inside))
        if not rows:
            return 0.0
        longest = int((self.context * inside).max()) if times.padded else 0
        return times.of(int(self.tokens @ inside) + drafts, rows, longest)

    def worth(self, inside: Mask, drafts: Counts, times: StepTime) -> float:
        """As :func:`batch.worth` where tokens have no price and no cap is exceeded."""
        taken = drafts * inside
        took = self.seconds(inside, int(taken.sum()), times) + self.seconds(~inside, 0, times)
        chances = self.reach[np.arange(self.reach.shape[1]) < taken[:, None]]
        weight = self.weight
        expected = weight @ np.where(inside, 1.0, LATER) + np.repeat(weight, taken) @ chances
        return took / float(expected)
