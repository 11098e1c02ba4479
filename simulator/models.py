"""What a world asks of its models and policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from outrider.cloud_server.targets.base import Target
from outrider.edge_client.policy import Policy
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.decoding.sparse import Budget
from outrider.runtime.lm.drafter import Guess, Standing
from outrider.simulator.settings import DrafterSettings, WorldSettings


class DraftSource(Protocol):
    """What a simulated end needs of a drafter; :class:`Drafter` is one."""

    @property
    def n_ctx(self) -> int:
        """Ids that its context holds."""

    def behind(self, ids: Sequence[int]) -> int:
        """How many of ``ids`` it has not evaluated."""

    def prefill(self, ids: Sequence[int], count: int) -> None:
        """Evaluate some more."""

    def draft(
        self,
        ids: Sequence[int],
        prompt_len: int,
        sampling: Sampling,
        count: int,
        *,
        never: frozenset[int] = frozenset(),
        floor: float = 0.0,
        budget: Budget | None = None,
        standing: Standing | None = None,
    ) -> Guess:
        """Guess what follows."""


class Models(Protocol):
    """Where a world takes its models and policies from."""

    def target(self, settings: WorldSettings) -> Target:
        """A target for a verifier that boots."""

    def drafter(self, world: WorldSettings, settings: DrafterSettings) -> DraftSource:
        """A drafter for an edge, or for the verifier itself."""

    def policy(self, settings: DrafterSettings) -> Policy:
        """How far an edge drafts ahead."""
