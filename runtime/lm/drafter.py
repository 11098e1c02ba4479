"""The draft model as the engine sees it: prefill a text, or guess how it goes on.

A drafter may be wrong, slow or dead; it can never change the text. It owns the ids in its cache
(:func:`outrider.runtime.lm.base.follow`), so any session's text can be asked for at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from outrider.protocol.decoding.rules import propose
from outrider.protocol.decoding.sampling import Sampling
from outrider.runtime.lm.base import CausalLM, common_prefix, follow


@dataclass(frozen=True, slots=True)
class Guess:
    """What the drafter guessed: tokens and its own probability of each, 0 to 1."""

    tokens: tuple[int, ...]
    confidences: tuple[float, ...]


class Drafter:
    """Guesses with one causal language model. One thread at a time may use it.

    ``usable`` ids are real tokens of the shared vocabulary; ``eos`` ends a guess, since nothing
    follows it.
    """

    def __init__(self, lm: CausalLM, usable: int, eos: frozenset[int] = frozenset()) -> None:
        self.lm = lm
        self.name = lm.name
        self.n_ctx = lm.n_ctx
        self._usable = min(usable, lm.row_width)
        self._eos = eos

    def behind(self, ids: Sequence[int]) -> int:
        """How many of ``ids`` the cache does not hold yet."""
        return len(ids) - common_prefix(self.lm.ids, ids)

    def prefill(self, ids: Sequence[int], count: int) -> None:
        """Evaluate up to ``count`` more of ``ids``, whose last id is left for the first guess.

        Raises:
            BackendError: the backend failed.
        """
        keep = common_prefix(self.lm.ids, ids)
        follow(self.lm, ids[: min(len(ids), keep + count)], rows=0)

    def draft(
        self,
        ids: Sequence[int],
        prompt_len: int,
        sampling: Sampling,
        count: int,
        *,
        never: frozenset[int] = frozenset(),
        floor: float = 0.0,
        stop: Callable[[], bool] = lambda: False,
    ) -> Guess:
        """Up to ``count`` guesses at what follows ``ids``.

        Stops early after an end token, before a token of less than ``floor`` probability, or when
        ``stop()`` says that the guesses are not wanted any more.

        Raises:
            BackendError: the backend failed or the context is full.
        """
        text = list(ids)
        tokens: list[int] = []
        confidences: list[float] = []
        row = follow(self.lm, text, rows=1)[-1]
        while True:
            if self._usable < row.shape[0]:
                row = np.ascontiguousarray(row[: self._usable])
            guess = propose(row, sampling, text, prompt_len, self._usable, never=never)
            if guess.confidence < floor:
                break
            tokens.append(guess.id)
            confidences.append(guess.confidence)
            text.append(guess.id)
            if len(tokens) == count or guess.id in self._eos or stop():
                break
            row = self.lm.feed([guess.id])[-1]
        return Guess(tuple(tokens), tuple(confidences))

    def close(self) -> None:
        """Free the model."""
        self.lm.close()
