"""A drafter without weights that agrees with the scripted target exactly as often as it is told.

For tests of pure logic and of pacing; it models no language, and no figure obtained with it says
anything about a real drafter.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from outrider.protocol.errors import SettingError
from outrider.runtime.lm.base import ListedLM, Rows, check_feed
from outrider.runtime.lm.script import REACH, script_hash, script_rows

Mode = Literal["good", "bad", "random", "mixed"]
MODES: tuple[Mode, ...] = ("good", "bad", "random", "mixed")


class ScriptedLM(ListedLM):
    """Rows from :func:`script_rows`, bent on purpose.

    ``good``: the target's rows. ``bad``: never its choice. ``random``: an independent script, right
    by chance only. ``mixed``: its rows for a share ``agreement`` of all contexts, bad ones for the
    others, fixed by the context. In every mode, the row that predicts a position in ``wrong_at``
    (counted from 0 in the whole sequence) is bad.
    """

    def __init__(
        self,
        vocab: int = 64,
        n_ctx: int = 4096,
        *,
        seed: int = 0,
        mode: Mode = "good",
        agreement: float = 1.0,
        wrong_at: Collection[int] = (),
    ) -> None:
        if vocab < 2 or n_ctx < 1:
            raise SettingError(f"vocab is {vocab} and n_ctx {n_ctx}; at least 2 and 1 are needed")
        if mode not in MODES:
            raise SettingError(f"mode is {mode!r}; it must be one of {', '.join(MODES)}")
        if not 0.0 <= agreement <= 1.0:
            raise SettingError(f"agreement is {agreement}; it must be between 0 and 1")
        super().__init__(f"scripted-{mode}", vocab, n_ctx)
        self.seed = seed
        self.mode: Mode = mode
        self.agreement = agreement
        self.wrong_at = frozenset(wrong_at)

    def feed(self, ids: Sequence[int], rows: int = 1) -> Rows:
        self._check_open()
        check_feed(self, ids, rows, len(self._ids))
        self._ids.extend(map(int, ids))
        end = len(self._ids)
        out = np.empty((rows, self.row_width), np.float32)
        for i in range(rows):
            out[i] = self._row(end - rows + 1 + i)
        return out

    def _row(self, length: int) -> NDArray[np.float32]:
        """The row after the first ``length`` ids."""
        past = self._ids[max(0, length - REACH) : length]
        seed = self.seed + 1 if self.mode == "random" else self.seed
        row = script_rows(past, seed % 2**64, self.row_width)
        # Rolling moves the peak to the neighbour of the target's choice.
        return np.roll(row, 1) if self._bends(past, length) else row

    def _bends(self, past: Sequence[int], length: int) -> bool:
        if length in self.wrong_at or self.mode == "bad":
            return True
        if self.mode != "mixed":
            return False
        return script_hash(past, self.seed, b"agree") >= self.agreement * 2**64

    def fork(self) -> ScriptedLM:
        self._check_open()
        twin = ScriptedLM(
            self.row_width,
            self.n_ctx,
            seed=self.seed,
            mode=self.mode,
            agreement=self.agreement,
            wrong_at=self.wrong_at,
        )
        twin._ids = list(self._ids)
        return twin
