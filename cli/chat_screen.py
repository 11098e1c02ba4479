"""The answer on the terminal: verified text, and behind it a dim tail of guesses.

The tail stands behind the cursor, on the cursor's own line, and never reaches the last column: so
"erase from here on" always takes all of it away and nothing else, wherever the text has scrolled.
Where the cursor's column is not certain (the terminal was resized, or characters were written whose
width terminals disagree on) there is no tail until the next line begins.
"""

from __future__ import annotations

import contextlib
import os
import sys
import textwrap
import unicodedata
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:  # notes are written where nothing else of the edge is loaded
    from outrider.edge_client.answer import Answer
    from outrider.edge_client.offline import Unverified

ERASE = "\x1b[J"
"""To the end of the screen: a narrowed terminal may have wrapped the tail."""

DIM, PLAIN = "\x1b[2m", "\x1b[0m"
TAB = 8
NARROWEST = 20

_NO_WIDTH_AGREED = frozenset({"Mc", "Cf", "Cn", "Co", "Cs"})
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def visible(text: str) -> str:
    """The text with everything written out that a terminal would obey instead of showing it."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_shown, text))


def _shown(char: str) -> str:
    if char in "\n\t" or char.isprintable():
        return char
    if unicodedata.category(char) in ("Cc", "Zl", "Zp") or char in _BIDI:
        return ascii(char)[1:-1]
    return char


def note(text: str) -> None:
    """A line that is not the model's, on standard error, in whole words at a terminal."""
    text = visible(text)
    with contextlib.suppress(OSError, ValueError):
        width = os.get_terminal_size(sys.stderr.fileno()).columns
        if width >= NARROWEST and len(text) >= width:
            text = textwrap.fill(
                text,
                width - 1,
                subsequent_indent="  ",
                break_long_words=False,
                break_on_hyphens=False,
            )
    print(text, file=sys.stderr, flush=True)


def cells(char: str) -> int | None:
    """Columns that a character takes; None where terminals disagree."""
    if " " <= char <= "~":
        return 1
    if "\U0001f1e6" <= char <= "\U0001f1ff" or "\U0001f3fb" <= char <= "\U0001f3ff":
        return None  # flags and skin tones: one sign or two
    if char in "\ufe0e\ufe0f\ufffd" or unicodedata.category(char) in _NO_WIDTH_AGREED:
        return None
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def advance(column: int | None, text: str, width: int) -> int | None:
    """The column after writing ``text``; ``width`` itself: the next character begins a line."""
    for char in text:
        size = cells(char)
        if char == "\n":
            column = 0
        elif column is None:
            continue
        elif char == "\t":
            column = min((column // TAB + 1) * TAB, width - 1)
        elif size is None:
            column = None
        else:
            column = size if column + size > width else column + size
    return column


def clipped(text: str, room: int) -> tuple[str, int]:
    """As much of a tail as fits on the line, and its columns. It ends where a line would."""
    used = 0
    for at, char in enumerate(text):
        size = cells(char) if char.isprintable() else None
        if size is None or used + size > room:
            return text[:at], used
        used += size
    return text, used


class Screen:
    """Writes one answer after another. Without a terminal: the text as it is, and nothing else."""

    def __init__(self, out: TextIO, *, terminal: bool, tails: bool, silent: bool = False) -> None:
        self._out = out
        self._terminal = terminal
        self._silent = silent
        self.tails = terminal and tails
        self._tail = ""
        self._drawn = False
        self._column: int | None = 0
        self._width = self._columns()
        self._held = ""
        self._anything = False

    def text(self, text: str) -> None:
        """Verified text. What was guessed of it already stays; a wrong tail goes."""
        if not text or self._silent:
            return
        self._tail = self._tail[len(text) :] if self._tail.startswith(text) else ""
        if self._terminal:
            text = self._whole_breaks(text)
        self._write(text)

    def ahead(self, text: str) -> None:
        """What may follow, to be shown until it is confirmed or turns out wrong."""
        if self.tails and text != self._tail:
            self._tail = text
            self._write("")

    def unverified(self, event: Unverified) -> None:
        """What the drafter wrote alone; only a chat that asked for it gets any."""
        self.ahead(event.text)

    def aside(self, text: str) -> None:
        """A :func:`note` in the middle of the text."""
        self._tail = ""
        self._write("" if self._column == 0 or not self._terminal else "\n")
        note(text)

    def end(self, answer: Answer | None = None) -> None:  # noqa: ARG002 - all of it is verified
        """The answer is over: no tail, and whatever comes next begins a line."""
        self._tail = ""
        self._write("\n" if self._anything and self._column != 0 else "")
        self._held, self._column, self._anything = "", 0, False

    def _whole_breaks(self, text: str) -> str:
        """CR LF, even cut in two, is a line break; a lone CR would go back over the line."""
        text = (self._held + text).replace("\r\n", "\n")
        self._held = "\r" if text.endswith("\r") else ""
        return visible(text.removesuffix("\r"))

    def _write(self, text: str) -> None:
        """Everything in one go, so that no half-drawn line is seen."""
        width = self._columns()
        if width != self._width:
            self._width = width
            self._column = None if self._column else self._column
        erase = ERASE if self._drawn else ""
        self._column = advance(self._column, text, width)
        self._anything = self._anything or bool(text)
        tail = self._tail_here()
        self._drawn = bool(tail)
        if erase or text or tail:
            self._out.write(erase + text + tail)
            self._out.flush()

    def _tail_here(self) -> str:
        if not self.tails or not self._tail or self._column is None or self._width < NARROWEST:
            return ""
        shown, used = clipped(self._tail, self._width - 1 - self._column)
        return f"{DIM}{shown}{PLAIN}\x1b[{used}D" if used else ""

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._out.fileno()).columns
        except (OSError, ValueError):
            return 0
