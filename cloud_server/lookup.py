"""The verifier's own guesses at no cost: what followed the last few ids earlier in this text.

Prompt look-up: exact like any other guess, since the target judges it. Good on code, quotations and
chats that repeat themselves, silent elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST, SHORTEST = 4, 2
"""How many ids must repeat: longer repeats are tried first."""


class Lookup:
    """Index of one session's text. It follows the text wherever that goes."""

    def __init__(self) -> None:
        self._after: dict[tuple[int, ...], int] = {}
        self._seen: list[int] = []

    def propose(self, ids: Sequence[int], chain: Sequence[int], limit: int) -> list[int]:
        """Up to ``limit`` guesses at what follows ``ids`` and the guesses ``chain``."""
        self._follow(ids)
        tail = [*ids[-LONGEST:], *chain][-LONGEST:]
        for length in range(min(LONGEST, len(tail)), SHORTEST - 1, -1):
            start = self._after.get(tuple(tail[-length:]))
            if start is not None:
                return list(ids[start : start + limit])
        return []

    def _follow(self, ids: Sequence[int]) -> None:
        """Index every run of ids whose continuation is known."""
        if ids[: len(self._seen)] != self._seen:  # cut, or another text
            self._after.clear()
            self._seen.clear()
        for end in range(len(self._seen), len(ids)):
            for length in range(SHORTEST, LONGEST + 1):
                if end >= length:
                    self._after[tuple(ids[end - length : end])] = end
        self._seen.extend(ids[len(self._seen) :])
