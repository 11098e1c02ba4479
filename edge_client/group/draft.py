"""One draft of a group: what it was asked for, its steps and the tree that they make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from outrider.edge_client.group.members import Member
from outrider.edge_client.group.pool import Candidate
from outrider.protocol.decoding.rules import Proposal
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.decoding.trees import ROOT
from outrider.runtime.lm.drafter import Guess, Standing


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a draft: what was proposed after a node, by whom, and what that comes to."""

    proposals: dict[int, list[Proposal]]
    candidates: list[Candidate]


@dataclass(frozen=True, slots=True)
class Ask:
    """What a draft was asked for: ``count`` steps after ``ids``."""

    ids: tuple[int, ...]
    count: int
    propose: Callable[[Member, list[int]], list[Proposal]]
    standing: Standing
    floor: float
    stop: Callable[[], bool]
    sampling: Sampling


@dataclass(slots=True)
class Draft:
    """A draft that was not judged yet: where it began, its tree, and its steps by their node."""

    start: int
    guess: Guess
    steps: dict[int, Step]
    size: int
    sampling: Sampling
    judged: int = 0

    @property
    def parents(self) -> Sequence[int]:
        """Of its nodes, also where they are a chain."""
        return self.guess.parents or range(ROOT, len(self.guess.tokens) - 1)

    @property
    def end(self) -> int:
        """The node after which the next draft goes on: the first guess at each place."""
        first: dict[int, int] = {}
        for node, parent in enumerate(self.parents):
            first.setdefault(parent, node)
        node = ROOT
        while node in first:
            node = first[node]
        return node


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
