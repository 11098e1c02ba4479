"""The cloud's own proposals for what follows a text that several models write (CoS).

The cloud has its models' row at the end of the text before the edge's comes, and takes from it what
it would say: the token opens a chain that the edge may score in its next frame instead of guessing
there itself. Both ends keep that chain; of it counts what the committed text has not left.
"""

from __future__ import annotations

from collections.abc import Sequence

from outrider.protocol.errors import RemoteProtocolError

MAX_OFFERED = 64
"""Proposals in one verdict."""


class Offers:
    """A chain of proposals from sequence index ``start`` on; ``told`` of it the edge knows.

    ``committed`` is the session's own list of ids, which this reads.
    """

    def __init__(self, committed: list[int]) -> None:
        self.committed = committed
        self.start = 0
        self.ids: list[int] = []
        self.told = 0

    def clear(self) -> None:
        """Nothing is proposed."""
        self.start, self.ids, self.told = 0, [], 0

    def ahead(self, length: int) -> tuple[int, ...]:
        """The proposals from index ``length`` on, if the text up to there took those before."""
        passed = length - self.start
        if not 0 <= passed <= len(self.ids):
            return ()
        if self.committed[self.start : length] != self.ids[:passed]:
            return ()
        return tuple(self.ids[passed:])

    def beyond(self, guesses: Sequence[int]) -> tuple[int, ...]:
        """The proposals behind these guesses after the text, as long as those are what it has."""
        chain, count = self.ahead(len(self.committed)), len(guesses)
        return chain[count:] if chain[:count] == tuple(guesses) else ()

    def at(self, index: int) -> int | None:
        """What the edge was told is proposed at a sequence index, if anything."""
        place = index - self.start
        return self.ids[place] if 0 <= place < min(self.told, len(self.ids)) else None

    # --- at the cloud -----------------------------------------------------------------------

    def propose(self, start: int, ids: Sequence[int]) -> None:
        """What the cloud's models would say from the end of the text on: all of the chain."""
        known = self.ahead(start)
        if not known or known != tuple(ids[: len(known)]):
            self.start, self.ids, self.told = start, [], 0
        self.ids[start - self.start :] = ids

    def news(self) -> tuple[int, tuple[int, ...]]:
        """(how many that the edge knows, the further ones), from the end of the text on."""
        length = len(self.committed)
        ahead = self.ahead(length)
        known = max(0, min(self.told - (length - self.start), len(ahead))) if ahead else 0
        new = ahead[known : known + MAX_OFFERED]
        if new:
            self.told = length - self.start + known + len(new)
        return known, new

    def check(self, guesses: Sequence[int], scored: Sequence[bool]) -> None:
        """Live guesses behind the text that are said to be proposals of this cloud must be.

        Raises:
            RemoteProtocolError: one is not.
        """
        for index, (token, mine) in enumerate(zip(guesses, scored, strict=True)):
            place = len(self.committed) + index
            if mine and self.at(place) != token:
                raise RemoteProtocolError(f"token {token} at {place} was not proposed here")

    # --- at the edge ------------------------------------------------------------------------

    def learn(self, known: int, ids: Sequence[int]) -> None:
        """The cloud told of ``ids`` behind ``known`` proposals from the end of the text on.

        Raises:
            RemoteProtocolError: it never told of those.
        """
        length = len(self.committed)
        ahead = self.ahead(length)
        if known > len(ahead):
            raise RemoteProtocolError(f"proposals behind {known}, of which {len(ahead)} are known")
        self.start, self.ids = length, [*ahead[:known], *ids]
        self.told = len(self.ids)
