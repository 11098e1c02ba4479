"""A tree of guesses under construction: where members propose next, and which guesses it keeps.

A guess is worth the chance that it and all above it are right, so the sum over a tree is the number
of right guesses expected of it. The tree of most worth with so many nodes is made of the best ones,
and the best place to go on is the best guess that nobody went on from (as OPT-Tree, arXiv
2406.17276, and EAGLE-2, arXiv 2406.16858, do with one drafter). A chain is one of these trees:
where its next guess is worth more than any beside it, that is what is made.

Several members work at once, each where it is of most use. A place where one was already has
something left for others, who may know better: the share ``again`` of its worth for each that was
there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from outrider.edge_client.group.draft import Step, Tree
from outrider.edge_client.group.pool import Candidate
from outrider.protocol.decoding.rules import Proposal
from outrider.protocol.decoding.trees import ROOT
from outrider.runtime.lm.drafter import Guess

Path = tuple[int, ...]
"""Guesses in a row below the text."""

Named = Mapping[int, Sequence[Proposal]]


@dataclass(slots=True)
class Growth:
    """``rank`` makes one ranking of what members named after a path; ``chance`` says how likely one
    of its candidates is to be right, if all above it are.

    The likeliest after the likeliest are always wanted, others from a worth of ``price`` on.
    Nothing follows one of ``eos``, nor a place whose first choice has less confidence than
    ``floor``. ``worth``: of each guess, by its path.
    """

    rank: Callable[[Path, Named], list[Candidate]]
    chance: Callable[[Candidate], float]
    price: float = 0.0
    floor: float = 0.0
    eos: frozenset[int] = frozenset()
    again: float = 1.0
    worth: dict[Path, float] = field(default_factory=lambda: {(): 1.0})
    _named: dict[Path, dict[int, list[Proposal]]] = field(default_factory=dict)
    _ranked: dict[Path, list[Candidate]] = field(default_factory=dict)

    def places(self, members: Sequence[int]) -> dict[int, Path]:
        """Where each of these members is of most use next, the first one choosing first."""
        found: dict[int, Path] = {}
        crowd = {path: len(named) for path, named in self._named.items()}
        ends = {path for path in self.worth if path and path[-1] in self.eos}
        for member in members:
            free = [p for p in self.worth if p not in ends and member not in self._named.get(p, ())]
            if free:
                place = min(
                    free,
                    key=lambda p: (-self.worth[p] * self.again ** crowd.get(p, 0), len(p), p),
                )
                found[member] = place
                crowd[place] = crowd.get(place, 0) + 1
        return found

    def take(self, path: Path, member: int, proposals: list[Proposal]) -> None:
        """A member proposed this after ``path``, best first."""
        self._named.setdefault(path, {})[member] = proposals

    def weigh(self, paths: Sequence[Path]) -> None:
        """Rank what was taken at these paths anew, and find what everything is worth now."""
        for path in paths:
            self._ranked[path] = self.rank(path, self._named[path])
        self.worth = {(): 1.0}
        left: list[tuple[Path, bool]] = [((), True)]
        while left:
            path, main = left.pop()
            ranked = self._ranked.get(path, [])
            if not ranked or ranked[0].confidence < self.floor:
                continue
            chances = [self.chance(candidate) for candidate in ranked]
            likeliest = chances.index(max(chances))
            for i, (candidate, chance) in enumerate(zip(ranked, chances, strict=True)):
                below, worth = (*path, candidate.id), self.worth[path] * chance
                onward = main and i == likeliest
                if onward or worth >= self.price:
                    self.worth[below] = worth
                    left.append((below, onward))

    def best(self, nodes: int) -> tuple[Guess, dict[int, Step]]:
        """The tree of the best guesses, ``nodes`` at most, best first; its steps by their node."""
        tree = Tree()
        at: dict[Path, int] = {(): ROOT}
        order = sorted((p for p in self.worth if p), key=lambda p: (-self.worth[p], len(p), p))
        for path in order[:nodes]:
            above = path[:-1]
            said = next(c.confidence for c in self._ranked[above] if c.id == path[-1])
            at[path] = tree.add(path[-1], at[above], said)
        steps = {
            at[path]: Step(named, self._ranked.get(path, []))
            for path, named in self._named.items()
            if path in at
        }
        return tree.guess(), steps
