"""A target without a model, for pure logic and pacing: its text means nothing.

The logits after a text are a fixed random function of its last few ids, so every schedule of
drafts, cuts and batches must give the same text, and a test that gets another has found a bug in
whatever drives the target. Slots remember the ids they were fed and check each row against them,
which a real cache cannot.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from outrider.cloud_server.targets.base import Decided, Row, Target, TargetInfo
from outrider.cloud_server.targets.rows import check_rows, constrained, decide_rows, positions
from outrider.protocol.decoding.rules import judge
from outrider.protocol.errors import BackendError, SettingError

PASSES_KEPT = 4096
"""How many of the latest passes are remembered for tests to look at."""


LEAVES = 64
"""Ends of a tree: as many as anyone sends."""


class ScriptedTarget(Target):
    """Deterministic rows over a small vocabulary; for tests and simulations, never for text.

    ``peak`` is by how much the favourite of every row leads on average, in natural-log units: 0 is
    close to uniform noise, 8 close to certain. ``order`` is how many last ids a row depends on.
    ``eos`` ids get no special logits; they come up as any other.
    """

    def __init__(
        self,
        *,
        vocabulary: int = 64,
        seed: int = 0,
        order: int = 3,
        peak: float = 3.0,
        n_ctx: int = 4096,
        slots: int = 8,
        eos: frozenset[int] = frozenset(),
        padding: int = 0,
        name: str = "scripted",
    ) -> None:
        for setting, value, least in (
            ("vocabulary", vocabulary, 1),
            ("order", order, 1),
            ("n_ctx", n_ctx, 2),
            ("slots", slots, 1),
            ("padding", padding, 0),
        ):
            if value < least:
                raise SettingError(f"{setting} is {value}; it must be at least {least}")
        self.seed, self.order, self.peak = seed, order, peak
        self.cached: list[list[int]] = [[] for _ in range(slots)]
        self.passes: deque[tuple[tuple[int, int, int], ...]] = deque(maxlen=PASSES_KEPT)
        """The latest passes, each as (slot, fed ids, decisions) of its rows."""
        self.closed = False
        self._width = vocabulary + padding
        self.info = TargetInfo(
            name=name,
            usable=vocabulary,
            n_ctx=n_ctx,
            slots=slots,
            eos=eos,
            dtype="float32",
            device="none",
            leaves=LEAVES,
        )

    def row(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """The logits after ``ids``, float32 ``[vocabulary + padding]``: anyone may ask."""
        data = ",".join(map(str, ids[-self.order :])).encode()
        key = self.seed.to_bytes(8, "little", signed=True)
        digest = hashlib.blake2b(data, digest_size=16, key=key).digest()
        random = np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))
        logits = random.standard_normal(self._width, np.float32)
        logits[random.integers(self.info.usable)] += np.float32(self.peak)
        logits[self.info.usable :] = 100.0  # padding must never win: a bug there is to be seen
        return logits

    def forward(self, rows: Sequence[Row]) -> list[Decided]:
        self._feed(rows)
        logits = [[self.row(ids) for ids in positions(row)] for row in rows]
        result = decide_rows(rows, logits, self.info.usable)
        for row, decided in zip(rows, result, strict=True):
            self.cached[row.slot] = list(row.kept(decided))
        return result

    def logits(self, rows: Sequence[Row]) -> list[NDArray[np.float32]]:
        self._feed(rows)
        return [
            np.array([self.row(ids) for ids in positions(row)], np.float32).reshape(row.want, -1)
            for row in rows
        ]

    def score(self, row: Row, candidates: Sequence[int]) -> list[tuple[float, float]]:
        self._feed([row])
        usable = self.info.usable
        logits = constrained(row, [self.row(ids) for ids in positions(row)], usable)
        return [
            judge(z, row.sampling, ids, row.prompt_len, usable, candidate=candidate)
            for z, ids, candidate in zip(logits, positions(row), candidates, strict=True)
        ]

    def close(self) -> None:
        self.closed = True

    def lengths(self) -> list[int]:
        """How many ids each slot has cached."""
        return [len(ids) for ids in self.cached]

    def _feed(self, rows: Sequence[Row]) -> None:
        """Check every row against what its slot holds, then let the slots hold the rows."""
        if self.closed:
            raise BackendError(f"{self.info.name} has been closed")
        check_rows(rows, self.lengths(), self.info, self._width)
        for row in rows:
            held = self.cached[row.slot if row.source is None else row.source][: row.cut]
            if held != list(row.ids[: row.cut]):
                at = next(i for i, pair in enumerate(zip(held, row.ids)) if pair[0] != pair[1])  # noqa: B905
                raise BackendError(
                    f"{self.info.name}: the row of slot {row.slot} keeps {row.cut} ids, but the "
                    f"slot holds {held[at]} at position {at} where the row has {row.ids[at]}"
                )
        for row in rows:
            self.cached[row.slot] = list(row.ids)
        self.passes.append(tuple((r.slot, len(r.ids) - r.cut, r.want) for r in rows))
