"""A long benchmark in pieces: what is measured is written down at once and never measured again."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.protocol.errors import SettingError


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows that are measured together. ``name`` says what they are, and stays the same."""

    name: str
    measure: Callable[[], Awaitable[list[dict[str, Any]]]]


class Journal:
    """The rows of the pieces that are done: in memory, and on a file's lines if there is one."""

    def __init__(self, file: Path | None = None) -> None:
        """Take up what the file has.

        Raises:
            SettingError: it is not such a file.
        """
        self._file = file
        self.done: dict[str, list[dict[str, Any]]] = {}
        if file is None or not file.exists():
            return
        for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
            try:
                entry = json.loads(line)
                self.done[entry["piece"]] = entry["rows"]
            except (ValueError, KeyError, TypeError):
                raise SettingError(
                    f"{file}, line {number}: not a line of a measurement that can be continued; "
                    "name another file, or remove it to begin anew"
                ) from None

    def add(self, name: str, rows: list[dict[str, Any]]) -> None:
        """One more piece is done."""
        self.done[name] = rows
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as out:
                out.write(json.dumps({"piece": name, "rows": rows}) + "\n")


async def work_off(
    pieces: Sequence[Piece], journal: Journal, minutes: float, say: Callable[[str], None]
) -> list[str]:
    """Measure what is not done yet, in order; none is begun after so many minutes (0: no bound).

    Returns the names of those that are left.
    """
    until = time.monotonic() + 60 * minutes if minutes else float("inf")
    left = [piece for piece in pieces if piece.name not in journal.done]
    for number, piece in enumerate(left):
        if time.monotonic() >= until:
            return [each.name for each in left[number:]]
        say(f"[{len(pieces) - len(left) + number + 1}/{len(pieces)}] {piece.name}")
        journal.add(piece.name, await piece.measure())
    return []
