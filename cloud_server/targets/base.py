"""What a target model must do for the engine: hold rows of ids, evaluate, answer decisions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from outrider.protocol.decoding import trees
from outrider.protocol.decoding.processors import F32
from outrider.protocol.decoding.row import SparseRow
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.errors import BackendError
from outrider.protocol.logprobs import TokenLogprob


@dataclass(frozen=True, slots=True)
class TargetInfo:
    """Facts about a loaded target. ``usable`` ids are real tokens; rows may be wider (padding).

    ``leaves``: how many ends the tree of a row may have; 1: it judges chains only.
    ``collaborators``: further models that can take part in a text, by name.
    """

    name: str
    usable: int
    n_ctx: int
    slots: int
    eos: frozenset[int]
    dtype: str
    device: str
    leaves: int = 1
    collaborators: tuple[str, ...] = ()


class Constraint(Protocol):
    """What an answer's text must be. ``error``: why that can't be told any more."""

    error: str | None

    def allowed(self, output: Sequence[int]) -> NDArray[np.bool_] | None:
        """Which ids may follow these tokens of the answer; None: nothing, they break it."""


class Row(msgspec.Struct, frozen=True):
    """One session's share of a forward pass.

    Slot ``slot`` keeps its first ``cut`` cached ids and is fed ``ids[cut:]``; ``ids`` is the whole
    sequence (committed ids, then the chain of drafts to judge), so that penalties see each
    position's own past. Decisions are wanted for the last ``want`` positions: the choice made
    after ``ids[:len(ids) - want + 1]``, ..., after ``ids``. ``want`` 0 is prefill only.
    ``source``: the ids to keep are those of that slot, and are copied from there first. ``rows``:
    under the ratio rule, what the first drafts of the chain were drawn from; those ``scored`` are
    the cloud's own proposals, with the edge's rows.

    ``parents``: the last ids are not a chain but a tree, one a node (``protocol/decoding/trees``);
    then ``want`` is one more, and decisions are wanted after the text and after every node.

    ``constraint``: only what it allows may be chosen; it is asked on the target's thread.
    ``logprobs``: tell each decision's log-probability and those of so many of the likeliest ids.
    """

    slot: int
    cut: int
    ids: Sequence[int]
    want: int
    sampling: Sampling
    prompt_len: int
    source: int | None = None
    rows: tuple[SparseRow, ...] = ()
    parents: tuple[int, ...] = ()
    logprobs: int | None = None
    constraint: Constraint | None = None
    scored: tuple[bool, ...] = ()

    @property
    def text(self) -> Sequence[int]:
        """The ids before the nodes of a tree; of a chain all of them."""
        return self.ids[: len(self.ids) - len(self.parents)]

    @property
    def nodes(self) -> Sequence[int]:
        """The tokens of the tree."""
        return self.ids[len(self.ids) - len(self.parents) :]

    def passed(self, decided: Decided) -> list[int]:
        """The nodes of the tree that the target's choices took."""
        return trees.follow(self.nodes, self.parents, decided.ids)

    def kept(self, decided: Decided) -> Sequence[int]:
        """What the slot holds after the pass: of a tree only the path that was taken."""
        if not self.parents:
            return self.ids
        return [*self.text, *decided.ids[:-1]]


@dataclass(frozen=True, slots=True)
class Decided:
    """``ids[i]`` is the target's choice at the i-th wanted position of the row.

    Under the ratio rule: the drafts that are accepted, then the target's own tokens; nothing after
    the first draft that was refused. Of a tree: the nodes that were taken, then one more token.

    ``margins[i]`` is by how much that choice beat the runner-up in score (natural-log units, at
    temperature 0 plain logits; infinity if nothing else survived): small margins are near-ties.
    ``behind``: where models are combined and all drafts were right, the logits after the last of
    them, float32 ``[usable]``, for which the edge's row has not come yet; of several models
    ``[models, usable]``. ``logprobs[i]`` belongs to ``ids[i]``, where the row asks for them.
    """

    ids: tuple[int, ...]
    margins: tuple[float, ...] = field(default=())
    behind: F32 | None = field(default=None, compare=False)
    logprobs: tuple[TokenLogprob, ...] = ()


class Target(ABC):
    """A target model with a fixed number of slots, each holding one sequence in its cache.

    Not thread-safe: the engine's owner thread calls everything but ``info``.
    """

    info: TargetInfo

    @abstractmethod
    def forward(self, rows: Sequence[Row]) -> list[Decided]:
        """Evaluate all rows (of distinct slots) and decide. One pass where the backend can.

        A slot then holds its row's ids; of a tree only the path that the decisions took.

        Raises:
            BackendError: a row does not fit its slot or the backend failed; the caches of the
            rows are then unspecified, and the caller must feed them again from ``cut`` 0.
        """

    def logits(self, rows: Sequence[Row]) -> list[F32]:
        """As :meth:`forward`, but what the positions' logits are; of chains only.

        Returns:
            Of each row float32 ``[want, width]``, for texts that other models have a part in.

        Raises:
            BackendError: as :meth:`forward`, or this target gives no logits away.
        """
        del rows
        raise BackendError(f"{self.info.name} does not give its logits away")

    @abstractmethod
    def score(self, row: Row, candidates: Sequence[int]) -> list[tuple[float, float]]:
        """For each wanted position: (best score, score of ``candidates[i]``), in float64.

        Scores are those that the rule compares: processed logits, divided by the temperature and
        with the coupled noise added when sampling. Minus infinity where a processor removed the
        candidate. For audits.
        """

    @abstractmethod
    def close(self) -> None:
        """Free the model. Calling it twice is harmless."""
