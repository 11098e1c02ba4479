"""The guesses of one epoch: a tree, often a chain, that hangs from one committed length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.protocol.decoding.row import SparseRow
from outrider.protocol.errors import RemoteProtocolError

ROOT = -1
"""The base itself, counted as the node before node 0."""


def judge(guesses: Sequence[int], decided: Sequence[int]) -> list[int]:
    """The tokens that a pass commits: the target's choices for as long as the guesses equal them.

    ``decided[i]`` is the target's choice after ``guesses[:i]``. The last token is the recovered one
    (the guess there was wrong) or the bonus (all were right). Exact for any guesses, because each
    token kept *is* the target's choice after the tokens before it.
    """
    last = len(decided) - 1
    if guesses[:last] == decided[:last]:  # one comparison for the usual case
        return list(decided)
    for i, token in enumerate(decided):
        if i == len(guesses) or guesses[i] != token:
            return list(decided[: i + 1])
    return list(decided)


@dataclass(slots=True)
class Guesses:
    """The nodes of one epoch, as both ends keep them.

    ``parents[i]`` is a node sent before i, or ``ROOT``; ``tokens[i]`` stands at sequence index
    ``positions[i]``, the base being the index of the first guess. ``children`` maps a node to the
    nodes under it by token: a second equal guess under one parent is the peer's mistake. Under the
    ratio rule ``rows[i]`` is what node i was drawn from; otherwise there are none. The nodes that
    are ``scored`` are the cloud's proposals, and their rows the edge's opinion of those.
    """

    number: int
    base: int
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    children: dict[int, dict[int, int]] = field(default_factory=dict)
    rows: list[SparseRow] = field(default_factory=list)
    scored: set[int] = field(default_factory=set)
    branched: bool = False
    """Some node hangs from another than the one sent before it: else all is one chain."""

    def append(self, token: int, delta: int = 1) -> int:
        """Add a node whose parent was sent ``delta`` before it; the new node's number.

        Raises:
            RemoteProtocolError: the parent would lie before the base, or the guess is a repeat.
        """
        node = len(self.tokens)
        parent = node - delta
        if delta < 1 or parent < ROOT:
            raise RemoteProtocolError(f"node {node} of epoch {self.number} has no such parent")
        under = self.children.setdefault(parent, {})
        if token in under:
            raise RemoteProtocolError(
                f"node {node} of epoch {self.number} repeats node {under[token]}"
            )
        under[token] = node
        self.tokens.append(token)
        self.parents.append(parent)
        self.branched = self.branched or delta != 1
        self.positions.append(self.position(parent) + 1)
        return node

    def position(self, node: int) -> int:
        """Sequence index of a node; of the root, that of the last committed id before the base."""
        return self.base - 1 if node == ROOT else self.positions[node]

    def path(self, node: int, start: int) -> list[int]:
        """Tokens on the way to ``node`` at indices from ``start`` (at least the base) on."""
        tokens = []
        while node != ROOT and self.positions[node] >= start:
            tokens.append(self.tokens[node])
            node = self.parents[node]
        return tokens[::-1]

    def first(self, node: int) -> tuple[list[int], int]:
        """The first-sent guess below ``node``, below that, and so on; and the last of them."""
        return self._walk(node, len(self.tokens))

    def under(self, node: int, limit: int) -> list[int]:
        """The same, ``limit`` at most, without the last of them."""
        return self._walk(node, max(0, limit))[0]

    def _walk(self, node: int, limit: int) -> tuple[list[int], int]:
        if not self.branched:
            tokens = self.tokens[node + 1 : node + 1 + limit]
            return tokens, node + len(tokens)
        tokens = []
        while len(tokens) < limit and (below := self.children.get(node)):
            node = next(iter(below.values()))
            tokens.append(self.tokens[node])
        return tokens, node

    def follow(self, node: int, tokens: Sequence[int]) -> tuple[int, int]:
        """Walk down from ``node`` along ``tokens``; (deepest node reached, tokens matched)."""
        if not self.branched:
            sent = self.tokens[node + 1 : node + 1 + len(tokens)]
            if sent == tokens:  # one comparison for the usual case
                return node + len(tokens), len(tokens)
        for count, token in enumerate(tokens):
            below = self.children.get(node, {}).get(token)
            if below is None:
                return node, count
            node = below
        return node, len(tokens)
