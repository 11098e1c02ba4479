"""What the user says: edited lines with a history at a terminal, plain lines of a script else."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from outrider.cli import logs
from outrider.protocol.errors import SettingError

PROMPT, MORE = ">>> ", "... "
QUOTES = '"""'
MOST_LINES = 1000
"""Lines of history that are kept."""


class Said(NamedTuple):
    """One message or command. ``quoted``: it was written as a block, so it is no command."""

    text: str
    quoted: bool = False


class Reader:
    """Reads messages from standard input; ``interactive`` if a person types them."""

    def __init__(self, *, interactive: bool, history: Path | None, words: tuple[str, ...]) -> None:
        self.interactive = interactive
        self._line = 0
        self._history = history
        self._edits = interactive and sys.stdout.isatty()
        if self._edits:
            self._prepare(words)

    def read(self) -> Said | None:
        """The next message; None at the end. At a terminal Ctrl-C gives an empty one.

        Raises:
            SettingError: a script that is not UTF-8.
        """
        try:
            return read_message(self._read_line)
        except KeyboardInterrupt:
            if not self.interactive:
                raise
            print(file=sys.stdout if self._edits else sys.stderr)
            return Said("")
        except UnicodeDecodeError:
            logs.warn("that line is not valid UTF-8; it was left out")
            return Said("")

    def _read_line(self, prompt: str) -> str | None:
        if sys.stdin is None:  # closed before the start
            return None
        if not self.interactive:
            return self._script_line()
        if not self._edits:
            print(prompt, end="", file=sys.stderr, flush=True)
            line = sys.stdin.readline()
            return line.removesuffix("\n") if line else None
        try:
            line = input(prompt)
        except EOFError:
            print()
            return None
        self._remember(line)
        return line

    def _script_line(self) -> str | None:
        self._line += 1
        data = sys.stdin.buffer.readline()
        try:
            return data.decode().removesuffix("\n").removesuffix("\r") if data else None
        except UnicodeDecodeError as error:
            raise SettingError(
                f"standard input, line {self._line}: not valid UTF-8 at byte {error.start}"
            ) from None

    # --- editing and history ----------------------------------------------------------------

    def _prepare(self, words: tuple[str, ...]) -> None:
        readline = _readline()
        if readline is None:
            self._history = None
            return
        readline.set_completer_delims(" \t\n")
        readline.set_completer(completer(words))
        readline.parse_and_bind("tab: complete")
        if self._history is not None:
            try:
                for line in load_history(self._history):
                    readline.add_history(line)
            except OSError as error:
                logs.warn(f"no history: {self._history}: {error.strerror}")
                self._history = None

    def _remember(self, line: str) -> None:
        """At once, not at the end: a chat that is killed keeps its history."""
        if self._history is None or not line.strip():
            return
        with contextlib.suppress(OSError), _private(self._history, os.O_APPEND) as file:
            os.write(file, line.encode("utf-8", "replace") + b"\n")


def read_message(read_line: Callable[[str], str | None]) -> Said | None:
    """Lines joined to one message: by a backslash at the end, or all between triple quotes."""
    line = read_line(PROMPT)
    if line is None:
        return None
    if line.lstrip().startswith(QUOTES):
        return Said(_block(line.lstrip().removeprefix(QUOTES), read_line), quoted=True)
    lines = [line]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1].removesuffix("\\")
        more = read_line(MORE)
        if more is None:
            break
        lines.append(more)
    return Said("\n".join(lines))


def _block(line: str, read_line: Callable[[str], str | None]) -> str:
    lines = []
    while not line.rstrip().endswith(QUOTES):
        lines.append(line)
        more = read_line(MORE)
        if more is None:
            return "\n".join(lines).strip("\n")
        line = more
    return "\n".join([*lines, line.rstrip().removesuffix(QUOTES)]).strip("\n")


def completer(words: tuple[str, ...]) -> Callable[[str, int], str | None]:
    """Completes what begins with a slash."""

    def complete(text: str, state: int) -> str | None:
        found = [word for word in words if text.startswith("/") and word.startswith(text)]
        return found[state] if state < len(found) else None

    return complete


def history_file() -> Path:
    """``$XDG_STATE_HOME/outrider/chat_history``."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "outrider" / "chat_history"


def load_history(file: Path) -> list[str]:
    """The newest lines, and the file cut down to them. What people type is for their eyes only."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _private(file, os.O_APPEND):
        pass
    lines = file.read_text("utf-8", "replace").splitlines()
    kept = lines[-MOST_LINES:]
    if len(lines) > len(kept):
        with _private(file, os.O_TRUNC) as descriptor:
            os.write(descriptor, "".join(line + "\n" for line in kept).encode())
    return kept


@contextlib.contextmanager
def _private(file: Path, how: int) -> Iterator[int]:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | how, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
        yield descriptor
    finally:
        os.close(descriptor)


def _readline() -> ModuleType | None:
    """Not every Python has it; lines can be typed without."""
    try:
        import readline
    except ImportError:
        return None
    return readline
