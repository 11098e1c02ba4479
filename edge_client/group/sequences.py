"""Several texts in one model's cache, evaluated together where the backend can.

llama.cpp decodes the steps of all texts in one ragged batch. The ONNX graph takes one text at a
time: there they take turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from outrider.protocol.errors import BackendError
from outrider.runtime.lm.base import CausalLM, Rows
from outrider.runtime.lm.llama_cpp import LlamaLM

Item = tuple[int, Sequence[int], int]
"""(sequence, ids to feed after its cached ones, logits rows wanted of the last positions)."""


class Sequences(Protocol):
    """``count`` sequences of at most ``n_ctx`` ids. One thread at a time may use them."""

    count: int
    n_ctx: int
    name: str
    row_width: int
    how: str

    def ids(self, seq: int) -> Sequence[int]:
        """The ids that a sequence holds."""

    def cut(self, seq: int, length: int) -> None:
        """Keep its first ``length`` ids."""

    def forward(self, items: Sequence[Item]) -> list[Rows | BackendError]:
        """Feed these sequences; the rows of each, or why there are none."""

    def close(self) -> None:
        """Free the model."""


class Batched:
    """The sequences of one llama.cpp context."""

    how = "in one batch"

    def __init__(self, lm: LlamaLM) -> None:
        """``lm`` was loaded with as many sequences as there are to be."""
        self._lm, self._model = lm, lm.model
        self.count, self.n_ctx = self._model.n_seq, lm.n_ctx
        self.name, self.row_width = lm.name, lm.row_width

    def ids(self, seq: int) -> Sequence[int]:
        """Of one sequence."""
        return self._model.ids(seq)

    def cut(self, seq: int, length: int) -> None:
        """Forget the rest."""
        self._model.cut(seq, length)

    def forward(self, items: Sequence[Item]) -> list[Rows | BackendError]:
        """All in one decode; what fails, fails for all of them."""
        try:
            return list(self._model.forward(list(items)))
        except BackendError as error:
            return [error] * len(items)

    def close(self) -> None:
        """Free context and weights."""
        self._lm.close()


class InTurns:
    """One model and its forks, which share the weights."""

    how = "in turns"

    def __init__(self, lm: CausalLM, count: int) -> None:
        self._lms = [lm, *(lm.fork() for _ in range(count - 1))]
        self.count, self.n_ctx = count, lm.n_ctx
        self.name, self.row_width = lm.name, lm.row_width

    def ids(self, seq: int) -> Sequence[int]:
        """Of one sequence."""
        return self._lms[seq].ids

    def cut(self, seq: int, length: int) -> None:
        """Forget the rest."""
        self._lms[seq].cut(length)

    def forward(self, items: Sequence[Item]) -> list[Rows | BackendError]:
        """One after the other."""
        found: list[Rows | BackendError] = []
        for seq, ids, rows in items:
            try:
                found.append(self._lms[seq].feed(ids, rows))
            except BackendError as error:
                found.append(error)
        return found

    def close(self) -> None:
        """Free the model."""
        for lm in self._lms:
            lm.close()


def sequences(lm: CausalLM, count: int) -> Sequences:
    """So many texts of a model, the way that its backend can."""
    return Batched(lm) if isinstance(lm, LlamaLM) else InTurns(lm, count)
