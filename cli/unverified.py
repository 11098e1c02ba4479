"""Shows an answer of which some may be unverified: never mixed, and corrected where it was wrong.

On a terminal, what the drafter wrote alone stands dim behind the verified text and is taken away
again when more is verified. Elsewhere standard output gets verified text only; what is still
unverified at the end goes to standard error, and says so.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from outrider.cli import logs
from outrider.cli.chat_screen import DIM, ERASE, PLAIN, cells, visible
from outrider.edge_client.answer import Answer, Piece
from outrider.edge_client.offline import Unverified


def place(column: int, text: str, width: int) -> tuple[int, int] | None:
    """Rows down and column of the cursor after ``text``; None where terminals disagree.

    Column ``width`` is the end of a full line: the next character begins another.
    """
    rows = 0
    for char in text:
        size = 0 if char == "\n" else cells(char)
        if size is None:
            return None
        if char == "\n" or column + size > width:
            rows, column = rows + 1, 0
        column += size
    return rows, column


class OfflineScreen:
    """Takes an answer's events. ``terminal``: dim text may be shown and taken away on ``out``."""

    def __init__(
        self, out: TextIO, *, terminal: bool, silent: bool = False, size: os.terminal_size | None
    ) -> None:
        self._out, self._terminal, self._silent, self._size = out, terminal, silent, size
        self._column: int | None = 0
        self._tail = ""
        self._alone = self._linked = False
        self._most = self._wrong = 0

    def piece(self, piece: Piece) -> None:
        """Verified text. It stands where the unverified began."""
        if piece.text and not self._silent:
            self._take_away()
            self._write(piece.text)

    def unverified(self, event: Unverified) -> None:
        """The drafter wrote alone, or what it wrote was verified, or was wrong."""
        if not event.linked and not self._alone:
            self._alone, self._linked, self._most, self._wrong = True, False, 0, 0
            self.note(
                "the link is down: what follows is the drafter's own, NOT verified"
                if self._terminal
                else "the link is down: the drafter goes on alone, unseen until it is verified"
            )
        if event.linked and not self._linked:
            self._linked = True
            self.note(f"the link is back: verifying {event.tokens} tokens written without it")
        self._most = max(self._most, event.tokens)
        self._wrong += event.corrected
        self._draw(event.text)
        if event.linked and not event.tokens:
            self._settled()

    def end(self, answer: Answer | None) -> None:
        """The answer is over, whatever is left of it unverified."""
        left = answer.unverified if answer is not None else ""
        if self._silent:
            return
        if not left:
            self._take_away()
        if self._terminal and (self._column != 0 or self._tail):
            self._out.write("\n")
            self._out.flush()
            self._tail, self._column = "", 0
        if left:
            where = "the dim text above" if self._terminal else f"the following text:\n{left}\n"
            logs.note(f"the link did not come back; NOT verified: {where}")

    def note(self, text: str) -> None:
        """A line that is not the model's, on a line of its own."""
        tail = self._tail
        self._take_away()
        if self._terminal and not self._silent and self._column != 0:
            self._write("\n")
        if not self._silent:
            logs.note(text)
        self._draw(tail)

    def _settled(self) -> None:
        if self._alone:
            self._alone = False
            wrong = f"corrected: {self._wrong} of the {self._most} unverified tokens were wrong"
            right = f"all {self._most} unverified tokens were right"
            self.note(f"{wrong}, and are replaced" if self._wrong else right)

    def _write(self, text: str) -> None:
        if self._terminal:
            text = visible(text)  # what a model says is shown, never obeyed
        self._out.write(text)
        self._out.flush()
        _, broken, line = text.rpartition("\n")  # a new line makes the column certain again
        start = 0 if broken else self._column
        if not line:
            self._column = start
        elif self._size is None or start is None:
            self._column = None
        else:
            found = place(start, line, self._size.columns)
            self._column = found[1] if found else None

    def _draw(self, text: str) -> None:
        if not self._terminal or self._silent or text == self._tail:
            return
        if self._tail and text.startswith(self._tail):
            fresh = text[len(self._tail) :]  # it grows: nothing has to be taken away
        else:
            self._take_away()
            fresh = text
        self._out.write(f"{DIM}{visible(fresh)}{PLAIN}" if fresh else "")
        self._out.flush()
        self._tail = text

    def _take_away(self) -> None:
        """Back to where the verified text ends; below it where that is out of reach."""
        if not self._tail:
            return
        tail, self._tail = visible(self._tail), ""
        found = None
        if self._size is not None and self._column is not None:
            found = place(self._column, tail, self._size.columns)
        if found is None or self._size is None or found[0] >= self._size.lines - 1:
            self._out.write("\n[the text from here on is verified, the dim one above is void]\n")
            self._column = 0
            return
        rows, column = found[0], self._column or 0
        if column == self._size.columns:  # the tail began on the line below
            rows, column, self._column = rows - 1, 0, 0
        up = f"\x1b[{rows}A" if rows else ""
        right = f"\x1b[{column}C" if column else ""
        self._out.write(f"{up}\r{right}{ERASE}")


class _Notes(logging.Handler):
    """Log lines must not run into the text."""

    def __init__(self, screen: OfflineScreen) -> None:
        super().__init__()
        self._screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        self._screen.note(record.getMessage())


@contextmanager
def offline_screen(*, as_json: bool, offline: bool) -> Iterator[OfflineScreen]:
    """A screen on standard output; ``offline``, what is logged does not run into its text."""
    terminal = sys.stdout.isatty()
    try:
        size = os.get_terminal_size(sys.stdout.fileno()) if terminal else None
    except (OSError, ValueError):
        size = None
    screen = OfflineScreen(sys.stdout, terminal=terminal, silent=as_json, size=size)
    logger = logging.getLogger("outrider")
    before = logger.handlers[:]
    if terminal and offline and not as_json:
        logger.handlers[:] = [_Notes(screen)]
    try:
        yield screen
    finally:
        logger.handlers[:] = before
