"""The requests of a step as arrays, a row each: what the rules compute with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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

    ``most`` is how many guesses a row has; ``reach`` is 0 beyond them. ``prompts`` are the rows
    that read a prompt, ``reads``: there are any.
    """

    rank: Counts
    prompts: Mask
    reads: bool
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
        rank = np.array([r.rank._value_ for r in requests], np.int64)  # an enum converts slowly
        prompts = rank == PREFILL
        return cls(
            rank,
            prompts,
            bool(prompts.any()),
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
        prompts = self.prompts[rows]
        return Table(
            self.rank[rows],
            prompts,
            bool(prompts.any()),
            self.tokens[rows],
            self.context[rows],
            self.since[rows],
            self.weight[rows],
            self.most[rows],
            self.reach[rows],
        )

    def of_drafts(self, most: Counts) -> Table:
        """The same with so many guesses a row."""
        if most is self.most:
            return self
        reach = self.reach * (np.arange(self.reach.shape[1]) < most[:, None])
        return replace(self, most=most, reach=reach)

    def verified(self) -> Table:
        """Without the rows that read a prompt."""
        return self.of_rows(np.flatnonzero(~self.prompts)) if self.reads else self

    def seconds(self, drafts: int, times: StepTime) -> float:
        """How long a step of all the rows takes, with so many guesses in all."""
        if not len(self):
            return 0.0
        longest = int(self.context.max()) if times.padded else 0
        return times.of(int(self.tokens.sum()) + drafts, len(self), longest)

    def worth(self, drafts: Counts, rest: Table, times: StepTime) -> float:
        """As :func:`batch.worth` where tokens have no price and no cap is exceeded.

        All rows are in the step, with so many of their guesses, and none of the ``rest``.
        """
        took = self.seconds(int(drafts.sum()), times) + rest.seconds(0, times)
        chances = self.reach[np.arange(self.reach.shape[1]) < drafts[:, None]]
        gain = self.weight.sum() + np.repeat(self.weight, drafts) @ chances
        return took / float(gain + LATER * rest.weight.sum())
