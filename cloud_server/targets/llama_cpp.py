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
from outrider.cloud_server.targets.rows import (
    check_rows,
    constrained,
    decide_rows,
    feeds,
    positions,
)
from outrider.protocol.decoding.rules import judge
from outrider.protocol.decoding.trees import leaves
from outrider.protocol.errors import BackendError, SettingError
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
            leaves=1 + model.forks,
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
        leaves: int = 1,
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
            leaves: ends that a tree of drafts may have; with more than 1 all slots share one
                buffer, which costs many sessions more than it gives.

        Raises:
            SettingError: a number out of range or an unknown ``kv``.
            BackendError: the file cannot be loaded or its cache cannot be rewound.
        """
        room = n_ctx + verify_width if n_ctx else 0
        if leaves > 1 and verify_width:
            raise SettingError("trees of drafts are not judged in passes of a fixed width")
        model = LlamaModel.load(
            path, room, slots, threads=threads, kv=kv, n_batch=n_batch, forks=leaves - 1
        )
        target = cls(model, kv=kv, verify_width=verify_width)
        if name is not None:
            target.info = replace(target.info, name=name)
        return target

    def forward(self, rows: Sequence[Row]) -> list[Decided]:
        check_rows(rows, self.lengths(), self.info, self._model.row_width)
        result: dict[int, Decided] = {}
        for part in self._parts(rows):
            logits = [list(z) for z in self._logits(part)]
            for row, decided in zip(part, decide_rows(part, logits, self.info.usable), strict=True):
                result[row.slot] = decided
                if row.parents:
                    self._model.settle(row.slot, row.passed(decided))
        return [result[row.slot] for row in rows]

    def _parts(self, rows: Sequence[Row]) -> list[list[Row]]:
        """Rows that may run together: their branches are as many as there are forks at most."""
        parts: list[list[Row]] = [[]] if rows else []
        taken = 0
        for row in rows:
            forks = len(leaves(row.parents)) - 1 if row.parents else 0
            if taken + forks > self._model.forks:
                parts.append([])
                taken = 0
            parts[-1].append(row)
            taken += forks
        return parts

    def logits(self, rows: Sequence[Row]) -> list[Rows]:
        return self._logits(rows)

    def score(self, row: Row, candidates: Sequence[int]) -> list[tuple[float, float]]:
        usable = self.info.usable
        logits = constrained(row, list(self._logits([row])[0]), usable)
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
            trees = {feed.slot: feed.parents for feed in part if feed.parents}
            for feed, logits in zip(part, self._model.forward(items, trees), strict=True):
                found[feed.slot].append(logits[: feed.want])
                if feed.pad:
                    self._model.cut(feed.slot, feed.length)
        return [np.concatenate(found[row.slot]) for row in rows]
