"""One draft of a group: what it was asked for, its steps and the tree that they make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from outrider.edge_client.group.members import Member
from outrider.protocol.decoding.rules import Proposal
from outrider.protocol.decoding.trees import ROOT
from outrider.runtime.lm.drafter import Guess, Standing


@dataclass(slots=True)
class Step:
    """One step of a draft: what was proposed, by whom, and what became of it."""

    proposals: dict[int, list[Proposal]]
    chain: int
    sides: list[tuple[int, float]]
    confidence: float


@dataclass(frozen=True, slots=True)
class Ask:
    """What a draft was asked for."""

    ids: tuple[int, ...]
    count: int
    propose: Callable[[Member, list[int]], list[Proposal]]
    standing: Standing
    floor: float
    stop: Callable[[], bool]


@dataclass(slots=True)
class Draft:
    """A draft that was not judged yet: where it began, its tree and its steps."""

    start: int
    guess: Guess
    steps: list[Step]
    size: int
    judged: int = 0


@dataclass(slots=True)
class Tree:
    """A tree under construction."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)

    def add(self, token: int, parent: int, confidence: float) -> int:
        """The node of this guess, joined with an equal one."""
        for node, key in enumerate(zip(self.parents, self.tokens, strict=True)):
            if key == (parent, token):
                return node
        self.tokens.append(token)
        self.parents.append(parent)
        self.confidences.append(confidence)
        return len(self.tokens) - 1

    def guess(self) -> Guess:
        """A chain has no parents."""
        chain = self.parents == list(range(ROOT, len(self.tokens) - 1))
        parents = () if chain else tuple(self.parents)
        return Guess(tuple(self.tokens), tuple(self.confidences), parents=parents)


def comb(steps: Sequence[Step], sides: Sequence[tuple[int, int, float]]) -> Guess:
    """The chain with guesses beside it: (depth, token, confidence). Of siblings it stands first."""
    tree, node = Tree(), ROOT
    for depth, step in enumerate(steps):
        above = node
        node = tree.add(step.chain, above, step.confidence)
        for at, token, confidence in sides:
            if at == depth:
                tree.add(token, above, confidence)
    return tree.guess()
