"""Who proposed each token of a text that several models write, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from outrider.protocol.guesses import Guesses

FORGETTING = 0.9
"""Weight of the past with each proposal of the cloud's that was judged."""

Proposer = Literal["edge", "cloud"]


class Origin(NamedTuple):
    """Of one token. ``accepted``: it is the ``proposal`` that the ``proposer`` made from its own
    distribution; otherwise the combination chose another in its place.

    ``edge_mass`` is what the edge's row, as it was sent, gave the token. All are None for a token
    that was committed while the link was down.
    """

    token: int
    proposer: Proposer | None
    proposal: int | None
    accepted: bool | None
    edge_mass: float | None


UNKNOWN = (None, None, None, None)


class Origins:
    """Of one answer so far. Of the cloud's proposals ``right`` of ``judged`` stood, recent ones
    counting most."""

    def __init__(self) -> None:
        self.tokens: list[Origin] = []
        self.right = self.judged = 0.0

    def clear(self) -> None:
        """Another answer begins. How good the cloud's proposals were is remembered."""
        self.tokens.clear()

    def note(
        self, guesses: Guesses, node: int, tokens: Sequence[int], accepted: int
    ) -> tuple[int, int]:
        """These tokens were committed; the guess that was judged first is ``node``.

        Returns:
            How many guesses of the edge's own stood, and how many were judged.
        """
        own_right = own_judged = 0
        for i, token in enumerate(tokens):
            if node + i >= len(guesses.tokens) or i > accepted:
                self.tokens.append(Origin(token, *UNKNOWN))
                continue
            stood, cloud = guesses.tokens[node + i] == token, node + i in guesses.scored
            mass = guesses.rows[node + i].mass(token)
            who: Proposer = "cloud" if cloud else "edge"
            self.tokens.append(Origin(token, who, guesses.tokens[node + i], stood, mass))
            if cloud:
                self.right = FORGETTING * self.right + stood
                self.judged = FORGETTING * self.judged + 1
            else:
                own_right, own_judged = own_right + stood, own_judged + 1
        return own_right, own_judged
