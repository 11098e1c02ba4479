"""A chat that goes on while there is no link (``--offline local``): its screen.

Tails of ordinary guesses, a line at most, are not shown here. What the drafter writes alone may be
many lines long, and is shown and taken back as ``outrider run`` does it.
"""

from __future__ import annotations

import os
from typing import TextIO

from outrider.cli.chat_screen import Screen
from outrider.cli.unverified import OfflineScreen
from outrider.edge_client.answer import Answer, Piece
from outrider.edge_client.offline import Unverified


class OfflineChatScreen(Screen):
    """Writes one answer after another, each on an :class:`OfflineScreen` of its own."""

    def __init__(self, out: TextIO, *, terminal: bool, silent: bool = False) -> None:
        super().__init__(out, terminal=terminal, tails=False, silent=silent)
        self._answer = self._fresh()

    def _fresh(self) -> OfflineScreen:
        try:
            size = os.get_terminal_size(self._out.fileno()) if self._terminal else None
        except (OSError, ValueError):
            size = None
        return OfflineScreen(self._out, terminal=self._terminal, silent=self._silent, size=size)

    def text(self, text: str) -> None:
        """Verified text. It stands where the unverified began."""
        self._answer.piece(Piece(text, (), 0, ()))

    def unverified(self, event: Unverified) -> None:
        """What the drafter wrote alone, or what became of it."""
        self._answer.unverified(event)

    def aside(self, text: str) -> None:
        """A line that is not the model's, in the middle of the text."""
        self._answer.note(text)

    def end(self, answer: Answer | None = None) -> None:
        """The answer is over, whatever is left of it unverified."""
        self._answer.end(answer)
        self._answer = self._fresh()
