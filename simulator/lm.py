"""Scripted models for virtual time: a target whose rows are remembered, and drafters beside it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from outrider.cloud_server.targets.scripted import ScriptedTarget
from outrider.edge_client.policy import Plan, Policy, Steady
from outrider.protocol.errors import BackendError
from outrider.runtime.lm.base import ListedLM, Rows, check_feed
from outrider.runtime.lm.drafter import Drafter
from outrider.simulator.settings import DrafterSettings, WorldSettings

ORDER = 2
"""How many last ids a row depends on: few, so that rows repeat and can be remembered."""


class RememberedTarget(ScriptedTarget):
    """A scripted target that makes each of its rows only once."""

    def __init__(self, settings: WorldSettings) -> None:
        super().__init__(
            vocabulary=settings.vocabulary,
            seed=settings.target_seed,
            order=ORDER,
            n_ctx=settings.n_ctx,
            slots=settings.slots,
        )
        self._rows: dict[tuple[int, ...], NDArray[np.float32]] = {}

    def row(self, ids: Sequence[int]) -> NDArray[np.float32]:
        key = tuple(ids[-ORDER:])
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = super().row(key)
            row.flags.writeable = False
        return row


class DrafterLM(ListedLM):
    """A drafter's model: the target's rows, bent for the share of contexts where it is wrong."""

    def __init__(self, target: ScriptedTarget, settings: DrafterSettings) -> None:
        super().__init__(f"drafter-{settings.kind}", target.info.usable, settings.n_ctx)
        self._target = target
        self._settings = settings
        self._works = 0

    def feed(self, ids: Sequence[int], rows: int = 1) -> Rows:
        self._works += 1
        dies_after = self._settings.dies_after
        if dies_after is not None and self._works > dies_after:
            raise BackendError("the drafter died")
        check_feed(self, ids, rows, len(self._ids))
        self._ids.extend(ids)
        end = len(self._ids)
        return np.array(
            [self._row(self._ids[:i]) for i in range(end - rows + 1, end + 1)], np.float32
        ).reshape(rows, self.row_width)

    def _row(self, ids: Sequence[int]) -> NDArray[np.float32]:
        row = self._target.row(ids)
        kind = self._settings.kind
        if kind == "good":
            return row
        # A cheap fixed hash of the context: the same context is always right or always wrong.
        mixed = (ids[-1] * 2654435761 + (ids[-2] if len(ids) > 1 else 7) * 40503) % 1009 / 1009
        if kind == "bad" or (kind == "mixed" and mixed >= self._settings.agreement):
            return np.roll(row, 1)
        return np.roll(row, int(mixed * self.row_width)) if kind == "random" else row

    def fork(self) -> DrafterLM:
        twin = DrafterLM(self._target, self._settings)
        twin._ids = list(self._ids)
        return twin


class ScriptedModels:
    """The models of a world that is about logic: scripts that remember their rows."""

    def target(self, settings: WorldSettings) -> ScriptedTarget:
        """A target for a verifier that boots."""
        return RememberedTarget(settings)

    def drafter(self, world: WorldSettings, settings: DrafterSettings) -> Drafter:
        """A drafter as right as its settings say."""
        lm = DrafterLM(RememberedTarget(world), settings)
        return Drafter(lm, world.vocabulary, world.eos)

    def policy(self, settings: DrafterSettings) -> Policy:
        """One plan, always."""
        return Steady(Plan(settings.frame, settings.window, settings.floor, branch=settings.branch))
