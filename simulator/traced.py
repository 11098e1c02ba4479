"""Models that replay a record: what the drafter gets right is not made up, only its cost is.

For speed in virtual time. A record says for each position of some answers whether the drafter's
guess was the target's choice there and how sure it was; recorded on a real pair, or drawn
independently to compare with theory. Recorded answers keep the target's own text, so that the
verifier's look-up finds in it what it would find; drawn ones repeat nothing.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from outrider.cloud_server.targets.base import Decided, Row, Target, TargetInfo
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.decoding.sparse import Budget
from outrider.runtime.lm.drafter import Guess, Standing

VOCABULARY = 32_768

KEY = 32
"""By how many last ids of its prompt an answer is known."""


@dataclass(frozen=True, slots=True)
class Line:
    """One answer of the target alone, and what a drafter guessed at each position of it.

    ``right[i]``: the guess of token i would be accepted; ``second[i]``: if not, its runner-up
    would. ``confidence[i]``: how sure the drafter was, 0 to 1; ``lead[i]``: by how much the guess's
    score beat the runner-up's. ``tokens`` empty: any text. Positions beyond the end wrap round,
    with other tokens.
    """

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    right: tuple[bool, ...]
    confidence: tuple[float, ...]
    second: tuple[bool, ...]
    lead: tuple[float, ...]

    def token(self, index: int, seed: int) -> int:
        """The target's token ``index`` places after the prompt; ``seed`` makes up a text."""
        if not self.tokens:
            return choice(index, seed)
        turn, at = divmod(index, len(self.tokens))
        return (self.tokens[at] + 7919 * turn) % VOCABULARY


@dataclass(frozen=True, slots=True)
class Record:
    """Some answers of one pair of models on one kind of text."""

    name: str
    lines: tuple[Line, ...]

    @property
    def acceptance(self) -> float:
        """Share of positions where the guess is right."""
        judged = sum(len(line.right) for line in self.lines)
        return sum(sum(line.right) for line in self.lines) / judged

    def find(self, ids: Sequence[int], prompt_len: int) -> Line:
        """The answer to this prompt; to one that was not recorded, always the same other one."""
        tail = tuple(ids[max(0, prompt_len - KEY) : prompt_len])
        known = [line for line in self.lines if line.prompt[-KEY:] == tail]
        return known[0] if known else self.lines[(sum(tail) + prompt_len) % len(self.lines)]


SECOND = 0.6
"""Share of wrong guesses whose runner-up is right, where it is drawn: about as in the records."""


def independent(alpha: float, lines: int = 31, length: int = 512, seed: int = 1) -> Record:
    """Each guess right with probability ``alpha``, whatever the others: the theory's drafter.

    It is equally sure of all of them, and its runner-ups are right with probability ``SECOND``.
    """
    rng = random.Random(seed)
    drawn = [tuple(rng.random() < alpha for _ in range(length)) for _ in range(lines)]
    sure, lead = (alpha,) * length, (1.0,) * length
    return Record(
        f"independent {alpha:g}",
        tuple(
            Line((), (), right, sure, tuple(rng.random() < SECOND for _ in range(length)), lead)
            for right in drawn
        ),
    )


def choice(position: int, seed: int) -> int:
    """A token for a position: a text in which nothing repeats."""
    return (position * 2_654_435_761 + seed * 97_531 + (position * position) % 7919) % VOCABULARY


class TracedTarget(Target):
    """Chooses what the record says. Its cost is the world's business."""

    def __init__(self, record: Record, seed: int, n_ctx: int, slots: int) -> None:
        self.record, self.seed = record, seed
        self.info = TargetInfo("traced", VOCABULARY, n_ctx, slots, frozenset(), "none", "none")

    def forward(self, rows: Sequence[Row]) -> list[Decided]:
        """One choice a wanted position."""
        return [self._decide(row) for row in rows]

    def _decide(self, row: Row) -> Decided:
        if not row.want:
            return Decided(())
        line = self.record.find(row.ids, row.prompt_len)
        first = len(row.ids) - row.want + 1 - row.prompt_len
        seed = self.seed + row.prompt_len  # another text for each turn of a chat
        return Decided(tuple(line.token(first + i, seed) for i in range(row.want)))

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
        if held[:n] != ids[:n]:
            n = next(i for i in range(n) if held[i] != ids[i])
        return len(ids) - n

    def prefill(self, ids: Sequence[int], count: int) -> None:
        """Take up to ``count`` more of ``ids``."""
        self._held = ids[: len(ids) - self.behind(ids) + count]

    def draft(
        self,
        ids: Sequence[int],
        prompt_len: int,
        sampling: Sampling,  # noqa: ARG002 - a record was made with its own
        count: int,
        *,
        never: frozenset[int] = frozenset(),  # noqa: ARG002
        floor: float = 0.0,
        budget: Budget | None = None,  # noqa: ARG002 - records are of the other rules
        standing: Standing | None = None,  # noqa: ARG002
    ) -> Guess:
        """Guesses for the next ``count`` positions."""
        line = self.record.find(ids, prompt_len)
        tokens: list[int] = []
        runners_up: list[int] = []
        places: list[int] = []
        for index in range(len(ids) - prompt_len, len(ids) - prompt_len + count):
            i = index % len(line.right)
            if line.confidence[i] < floor:
                break
            token = line.token(index, self.seed + prompt_len)
            other, third = (token + 1) % VOCABULARY, (token + 2) % VOCABULARY
            tokens.append(token if line.right[i] else other)
            runners_up.append(token if line.second[i] and not line.right[i] else third)
            places.append(i)
        self._held = (*ids, *tokens[:-1])
        return Guess(
            tuple(tokens),
            tuple(line.confidence[i] for i in places),
            runners_up=tuple(runners_up),
            leads=tuple(line.lead[i] for i in places),
        )
