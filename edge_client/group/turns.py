"""The texts of all leads at one member, and the turns in which their steps are made.

Owned by the member's model thread. A turn takes one piece of work of as many texts as the model has
sequences; a long text is read in chunks, so that nobody waits for somebody's prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic

import numpy as np

from outrider.edge_client.group.sequences import Sequences
from outrider.protocol.decoding.rules import Proposal, propose_some
from outrider.protocol.drafting import Terms
from outrider.protocol.errors import BackendError, OutriderError
from outrider.runtime.lm.base import Rows, common_prefix

CHUNK = 64
"""Ids of one text that are read in one turn."""


@dataclass(eq=False, slots=True)
class Text:
    """One stream of a lead: its ids, and the sequence that holds some of them."""

    ids: list[int] = field(default_factory=list)
    terms: Terms | None = None
    seq: int | None = None
    used: int = 0


@dataclass(eq=False, slots=True)
class Job:
    """A step under way. ``worked`` seconds went into turns that it was part of."""

    lead: object
    text: Text
    number: int
    width: int
    asked: float
    others: int = 0
    worked: float = 0.0
    begun: float | None = None
    done: bool = False
    proposals: Sequence[Proposal] = ()
    error: OutriderError | None = None


class Turns:
    """Gives each text a sequence while it is needed: the one that was used longest ago."""

    def __init__(self, sequences: Sequences, usable: int) -> None:
        self.sequences = sequences
        self.usable = min(usable, sequences.row_width)
        self._holders: list[Text | None] = [None] * sequences.count
        self._turn = 0

    def take(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """One turn of these jobs, as many as there are sequences at most, each of its own text."""
        self._turn += 1
        began = monotonic()
        items = []
        for job in jobs:
            job.begun = began if job.begun is None else job.begun
            job.text.used = self._turn
        for job in jobs:
            seq, text = self._seat(job.text), job.text.ids
            keep = min(common_prefix(self.sequences.ids(seq), text), len(text) - min(1, job.width))
            self.sequences.cut(seq, keep)
            part = text[keep : keep + CHUNK]
            job.done = keep + len(part) == len(text)
            if part:
                items.append((job, (seq, part, int(job.done and job.width > 0))))
        rows = self.sequences.forward([item for _, item in items]) if items else []
        for (job, _), found in zip(items, rows, strict=True):
            self._finish(job, found)
        for job in jobs:
            job.worked += monotonic() - began
        return jobs

    def _finish(self, job: Job, found: Rows | BackendError) -> None:
        if isinstance(found, BackendError):
            job.error, job.done = found, True
        elif job.done and job.width:
            terms = job.text.terms
            assert terms is not None  # the service saw to it
            row = np.ascontiguousarray(found[-1][: self.usable])
            try:
                job.proposals = propose_some(
                    row,
                    terms.sampling,
                    job.text.ids,
                    terms.prompt_len,
                    self.usable,
                    count=job.width,
                    never=frozenset(terms.never),
                )
            except (OutriderError, ValueError, IndexError) as error:
                job.error = BackendError(f"no proposal could be made: {error}")

    def _seat(self, text: Text) -> int:
        if text.seq is not None:
            return text.seq
        idle = [i for i, h in enumerate(self._holders) if h is None or h.used < self._turn]
        seq = min(idle, key=lambda i: h.used if (h := self._holders[i]) else -1)
        if (before := self._holders[seq]) is not None:
            before.seq = None
        self.sequences.cut(seq, 0)  # how long a step takes must not tell what others wrote
        self._holders[seq], text.seq = text, seq
        return seq

    def forget(self, text: Text) -> None:
        """Nothing of it stays here."""
        if text.seq is not None:
            self.sequences.cut(text.seq, 0)
            self._holders[text.seq] = None
            text.seq = None

    @property
    def held(self) -> int:
        """Sequences that hold a text."""
        return sum(holder is not None for holder in self._holders)
