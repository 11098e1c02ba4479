"""A GGUF model as a target, on llama.cpp: one ragged decode for all rows, decisions in numpy.

With the default cache type (f32, flash attention off) logits are those of the float32 reference to
about 3e-5, and a cache that was cut back is bit for bit the one that never had the draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from outrider.cloud_server.targets.base import Decided, Row, Target, TargetInfo
from outrider.cloud_server.targets.rows import check_rows, decide_rows, feeds, positions
from outrider.protocol.decoding.rules import judge
from outrider.protocol.errors import BackendError
from outrider.runtime.lm.base import Rows
from outrider.runtime.lm.llama_cpp import LlamaModel


class LlamaTarget(Target):
    """A GGUF model; slot i is sequence i of one llama.cpp context."""

    def __init__(self, model: LlamaModel, *, kv: str, verify_width: int = 0) -> None:
        """Wrap a loaded model, all of whose sequences this target owns from now on."""
        self._model = model
        self._width = verify_width
        self.info = TargetInfo(
            name=model.name,
            usable=min(model.usable, model.row_width),
            n_ctx=model.n_ctx - verify_width,
            slots=model.n_seq,
            eos=frozenset(model.eos),
            dtype=f"gguf, {kv} cache",
            device="cpu",
        )

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        n_ctx: int = 0,
        slots: int = 8,
        threads: int = 1,
        kv: str = "f32",
        n_batch: int = 512,
        name: str | None = None,
        verify_width: int = 0,
    ) -> LlamaTarget:
        """Load a GGUF file.

        Args:
            n_ctx: most ids a slot holds; 0 is what the model was trained for.
            threads: CPU threads of this model. Two spinning models on two cores ruin each other.
            kv: type of the cache: f32, f16 or q8_0.
            n_batch: most tokens in one decode; a longer pass is cut into several.
            name: what to call the model; None is the file's name.
            verify_width: judge drafts in passes of exactly that many positions a row, so that
                their number cannot change a result by rounding; 0 is as many as there are.

        Raises:
            SettingError: a number out of range or an unknown ``kv``.
            BackendError: the file cannot be loaded or its cache cannot be rewound.
        """
        room = n_ctx + verify_width if n_ctx else 0
        model = LlamaModel.load(path, room, slots, threads=threads, kv=kv, n_batch=n_batch)
        target = cls(model, kv=kv, verify_width=verify_width)
        if name is not None:
            target.info = replace(target.info, name=name)
        return target

    def forward(self, rows: Sequence[Row]) -> list[Decided]:
        return decide_rows(rows, [list(z) for z in self._logits(rows)], self.info.usable)

    def score(self, row: Row, candidates: Sequence[int]) -> list[tuple[float, float]]:
        usable = self.info.usable
        logits = self._logits([row])[0]
        return [
            judge(z, row.sampling, ids, row.prompt_len, usable, candidate=candidate)
            for z, ids, candidate in zip(logits, positions(row), candidates, strict=True)
        ]

    def close(self) -> None:
        self._model.close()

    def lengths(self) -> list[int]:
        """How many ids each slot has cached."""
        return [self._model.length(slot) for slot in range(self.info.slots)]

    def _logits(self, rows: Sequence[Row]) -> list[Rows]:
        """Cut every row's slot and feed them all; float32 ``[want, width]`` of each."""
        if self._model.closed:
            raise BackendError(f"{self.info.name} has been closed")
        if not rows:
            return []
        check_rows(rows, self.lengths(), self.info, self._model.row_width)
        for row in rows:
            if row.source is not None:
                self._model.copy(row.source, row.slot)
        for row in rows:
            self._model.cut(row.slot, row.cut)
        found: dict[int, list[Rows]] = {row.slot: [] for row in rows}
        for part in feeds(rows, self._width):
            items = [(feed.slot, feed.tokens, len(feed.tokens) - feed.first) for feed in part]
            for feed, logits in zip(part, self._model.forward(items), strict=True):
                found[feed.slot].append(logits[: feed.want])
                self._model.cut(feed.slot, feed.length)
        return [np.concatenate(found[row.slot]) for row in rows]
