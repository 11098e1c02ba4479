"""Several models at one edge, in whose common distribution a text has its part."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.protocol.errors import SettingError
from outrider.runtime.lm.base import CausalLM, common_prefix, follow
from outrider.runtime.lm.drafter import Drafter


class Together(Drafter):
    """All of ``lms`` collaborate, in the order of the weights; any other text the first drafts
    for. One thread at a time may use it."""

    def __init__(
        self, lms: Sequence[CausalLM], usable: int, eos: frozenset[int] = frozenset()
    ) -> None:
        """Raises SettingError for no models."""
        if not lms:
            raise SettingError("no model to collaborate with")
        super().__init__(lms[0], min(usable, *(lm.row_width for lm in lms)), eos)
        self._lms = tuple(lms)
        self.models = len(lms)
        self.name = " + ".join(lm.name for lm in lms)
        self.n_ctx = min(lm.n_ctx for lm in lms)

    def behind(self, ids: Sequence[int]) -> int:
        """How many of ``ids`` the model that has fewest of them does not hold yet."""
        return max(len(ids) - common_prefix(lm.ids, ids) for lm in self._lms)

    def prefill(self, ids: Sequence[int], count: int) -> None:
        """Evaluate up to ``count`` more of ``ids`` with the models that are furthest behind.

        Raises:
            BackendError: a backend failed.
        """
        keep = len(ids) - self.behind(ids)
        for lm in self._lms:
            if common_prefix(lm.ids, ids) < min(len(ids), keep + count):
                follow(lm, ids[: min(len(ids), keep + count)], rows=0)

    def close(self) -> None:
        """Free the models."""
        for lm in self._lms:
            lm.close()
