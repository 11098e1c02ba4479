"""What a drafter is asked to do next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from outrider.edge_client.branches import Side
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.decoding.sparse import Budget
from outrider.protocol.edge_session import EdgeSession
from outrider.protocol.errors import BackendError
from outrider.runtime.lm.drafter import Collaborator, Guess, Standing


class Drafts(Protocol):
    """Whatever guesses, see :class:`outrider.runtime.lm.drafter.DraftSource`."""

    def draft(self, *arguments: Any, **settings: Any) -> Guess:
        """Guess what follows."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """Evaluate up to ``count`` more of ``ids``."""

    session: EdgeSession
    ids: tuple[int, ...]
    count: int
    started: float


@dataclass(frozen=True, slots=True)
class DraftWork:
    """Guess up to ``count`` tokens after ``ids``, in answer ``answer``, for the epoch that was the
    ``epoch``-th to be begun.

    ``budget``: under the ratio rule, how much of the drafter's distributions is sent along.
    ``side``: beside the chain, ``ids`` ending with the runner-up there. ``given``: first of all,
    rows for these tokens of the cloud's, which follow ``ids``.
    """

    session: EdgeSession
    answer: int
    epoch: int
    ids: tuple[int, ...]
    prompt_len: int
    sampling: Sampling
    count: int
    window: int
    never: frozenset[int]
    floor: float
    started: float
    gather: int = 1
    budget: Budget | None = None
    standing: Standing = Standing()  # noqa: RUF009 - frozen
    behind: int = 1
    side: Side | None = None
    given: tuple[int, ...] = ()

    def run(self, drafter: Drafts, **how: Any) -> Guess:
        """On the drafter's thread; ``how`` are further arguments of its.

        Raises:
            BackendError: the drafter failed.
        """
        how |= {"never": self.never, "budget": self.budget}
        if self.sampling.collaborate is None:
            how |= {"floor": self.floor, "standing": self.standing}
            return drafter.draft(self.ids, self.prompt_len, self.sampling, self.count, **how)
        if not isinstance(drafter, Collaborator):
            raise BackendError("this drafter has no distribution that a text could be made of")
        return drafter.collaborate(
            self.ids, self.prompt_len, self.sampling, self.count, given=self.given, **how
        )


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing to do until something arrives."""


Work = Prefill | DraftWork | Idle
