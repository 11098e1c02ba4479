"""Trees of guesses: which of them a target's own choices take.

A tree hangs below the text: ``tokens[i]`` is a guess at what follows node ``parents[i]``, which is
listed before it, or what follows the text itself (:data:`ROOT`). The target's choice after a node,
by whatever rule, picks the child that holds that token; where no child does, it is the token that
the pass adds. Every token that is kept *is* the target's choice after the tokens before it: exact
for any tree, however it was made (match-based verification, as SpecEdge does; under the coupled
rule the choice is a sample of the target with public noise, arXiv 2408.07978; greedy is its case at
temperature 0).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

ROOT = -1
"""The end of the text, above the nodes without a parent among the guesses."""


class HasId(Protocol):
    """A choice: the chosen id, and whatever else there is to say of it."""

    @property
    def id(self) -> int:
        """The token."""


C = TypeVar("C", bound=HasId)


def walk(
    tokens: Sequence[int], parents: Sequence[int], choose: Callable[[int], C]
) -> tuple[list[int], list[C]]:
    """Go down from the root along the target's choices; ``choose(node)`` is that after a node.

    It is asked for the nodes on the way only.

    Returns:
        The nodes passed, and the choices: one more, the last of them being no guess.
    """
    below = children(tokens, parents)
    nodes: list[int] = []
    node = ROOT
    choices = [choose(node)]
    while (found := below.get((node, choices[-1].id))) is not None:
        nodes.append(found)
        node = found
        choices.append(choose(node))
    return nodes, choices


def follow(tokens: Sequence[int], parents: Sequence[int], text: Sequence[int]) -> list[int]:
    """The nodes that a text passes from the root on, as far as it stays in the tree."""
    below = children(tokens, parents)
    nodes: list[int] = []
    for token in text:
        found = below.get((nodes[-1] if nodes else ROOT, token))
        if found is None:
            break
        nodes.append(found)
    return nodes


def children(tokens: Sequence[int], parents: Sequence[int]) -> dict[tuple[int, int], int]:
    """Nodes by (parent, token); of equal guesses at one place the first."""
    below: dict[tuple[int, int], int] = {}
    for node, key in enumerate(zip(parents, tokens, strict=True)):
        below.setdefault(key, node)
    return below


def path(parents: Sequence[int], node: int) -> list[int]:
    """The nodes from the top down to ``node``, itself included; none for the root."""
    nodes: list[int] = []
    while node != ROOT:
        nodes.append(node)
        node = parents[node]
    return nodes[::-1]


def depths(parents: Sequence[int]) -> list[int]:
    """How far below the text each node stands: 0 for what follows it."""
    found: list[int] = []
    for parent in parents:
        found.append(0 if parent == ROOT else found[parent] + 1)
    return found


def leaves(parents: Sequence[int]) -> list[int]:
    """Nodes under which there is none, in order."""
    inner = set(parents)
    return [node for node in range(len(parents)) if node not in inner]


def is_chain(parents: Sequence[int]) -> bool:
    """Every node hangs from the one before it."""
    return all(parent == node - 1 for node, parent in enumerate(parents))


def problem(parents: Sequence[int]) -> str | None:
    """What is wrong with a tree: a parent that is not listed before its child, so a cycle too."""
    for node, parent in enumerate(parents):
        if not ROOT <= parent < node:
            return f"has a node {node} under node {parent}, which does not stand before it"
    return None
