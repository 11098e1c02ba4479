"""Models that replay a record: the target's text is made up, what the drafter gets right is not.

For speed in virtual time. A record says for each position whether the drafter's guess was the
target's choice there and how sure it was; recorded on a real pair, or drawn independently to
compare with theory. The text itself is an unpredictable function of the position: nothing repeats,
so that the verifier's look-up finds nothing.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from outrider.cloud_server.targets.base import Decided, Row, Target, TargetInfo
from outrider.edge_client.drafter import Guess
from outrider.protocol.decoding.sampling import Sampling

VOCABULARY = 32_768


@dataclass(frozen=True, slots=True)
class Record:
    """``right[i]``: the guess at position i would be accepted; ``confidence[i]``: how sure, 0 to 1.

    Positions beyond the end wrap round.
    """

    name: str
    right: tuple[bool, ...]
    confidence: tuple[float, ...]

    @property
    def acceptance(self) -> float:
        """Share of positions where the guess is right."""
        return sum(self.right) / len(self.right)


def independent(alpha: float, length: int = 4096, seed: int = 1) -> Record:
    """Each guess right with probability ``alpha``, whatever the others: the theory's drafter."""
    rng = random.Random(seed)
    right = tuple(rng.random() < alpha for _ in range(length))
    return Record(f"independent {alpha:g}", right, (alpha,) * length)


def choice(position: int, seed: int) -> int:
    """The target's token at a position."""
    return (position * 2_654_435_761 + seed * 97_531 + (position * position) % 7919) % VOCABULARY


class TracedTarget(Target):
    """Chooses by position. Its cost is the world's business."""

    def __init__(self, seed: int, n_ctx: int, slots: int) -> None:
        self.seed = seed
        self.info = TargetInfo("traced", VOCABULARY, n_ctx, slots, frozenset(), "none", "none")

    def forward(self, rows: Sequence[Row]) -> list[Decided]:
        """One choice a wanted position."""
        return [self._decide(row) for row in rows]

    def _decide(self, row: Row) -> Decided:
        first = len(row.ids) - row.want + 1
        return Decided(tuple(choice(first + i, self.seed) for i in range(row.want)))

    def score(self, row: Row, candidates: Sequence[int]) -> list[tuple[float, float]]:
        """Its choice scores 0, everything else nothing."""
        chosen = self._decide(row).ids
        return [
            (0.0, 0.0 if a == b else float("-inf")) for a, b in zip(chosen, candidates, strict=True)
        ]

    def close(self) -> None:
        """Nothing to free."""


class TracedDrafter:
    """Guesses the target's choice where the record says so, something else elsewhere."""

    def __init__(self, record: Record, seed: int, n_ctx: int) -> None:
        self.record, self.seed, self.n_ctx = record, seed, n_ctx
        self._held: Sequence[int] = ()

    def behind(self, ids: Sequence[int]) -> int:
        """Ids beyond the common prefix with what it was last given."""
        held = self._held
        n = min(len(held), len(ids))
        while n and held[n - 1] != ids[n - 1]:
            n -= 1  # texts differ at their ends only
        return len(ids) - n

    def prefill(self, ids: Sequence[int], count: int) -> None:
        """Take up to ``count`` more of ``ids``."""
        self._held = ids[: len(ids) - self.behind(ids) + count]

    def draft(
        self,
        ids: Sequence[int],
        prompt_len: int,  # noqa: ARG002 - a record needs no context
        sampling: Sampling,  # noqa: ARG002
        count: int,
        *,
        never: frozenset[int] = frozenset(),  # noqa: ARG002
        floor: float = 0.0,
    ) -> Guess:
        """Guesses for the next ``count`` positions."""
        tokens: list[int] = []
        confidences: list[float] = []
        for position in range(len(ids), len(ids) + count):
            i = position % len(self.record.right)
            if self.record.confidence[i] < floor:
                break
            token = choice(position, self.seed)
            tokens.append(token if self.record.right[i] else (token + 1) % VOCABULARY)
            confidences.append(self.record.confidence[i])
        self._held = (*ids, *tokens[:-1])
        return Guess(tuple(tokens), tuple(confidences))
