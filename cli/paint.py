"""How the demonstration shows an answer: who wrote which part of it, and what it cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from outrider.cli.chat_screen import visible
from outrider.edge_client.answer import Answer, Piece
from outrider.runtime.text.utf8 import Utf8Stream

ACCEPTED = "green"
OWN = "bold"
REFUSED = "dim red strike"
PROMPT = "cyan"

MAX_REFUSED = 2
"""Guesses shown at one place: the wrong one, and one that hung from it."""


def legend() -> Text:
    """What the colours mean."""
    return Text.assemble(
        ("prompt", PROMPT), "  ",
        ("drafted here, accepted", ACCEPTED), "  ",
        ("the target's own", OWN), "  ",
        ("drafted here, refused", REFUSED),
    )  # fmt: skip


class Painter:
    """Prints one answer, token by token. Without a terminal: the text and nothing else."""

    def __init__(self, console: Console, token_bytes: Callable[[int], bytes]) -> None:
        self._console = console
        self._token_bytes = token_bytes
        self._utf8 = Utf8Stream()

    def show(self, piece: Piece) -> None:
        """Paint what was verified. Bytes of one character may come from tokens of both sides."""
        line = Text()
        for index, token in enumerate(piece.tokens):
            if index == piece.accepted:
                self._refused(line, piece.refused)
            style = ACCEPTED if index < piece.accepted else OWN
            line.append(self._safe(self._utf8.feed(self._token_bytes(token))), style)
        self._print(line)

    def finish(self) -> None:
        """The end of the answer."""
        self._print(Text(self._utf8.flush() + "\n"))

    def _refused(self, line: Text, guesses: Sequence[int]) -> None:
        """Beside the place where they were wrong; a struck line break must not break the line."""
        if not guesses or not self._console.is_terminal:
            return
        shown = b"".join(map(self._token_bytes, guesses[:MAX_REFUSED])).decode("utf-8", "replace")
        more = "…" if len(guesses) > MAX_REFUSED else ""
        line.append(visible(shown.replace("\n", "⏎")) + more, REFUSED)

    def _safe(self, text: str) -> str:
        """What a model says is shown on a terminal, never obeyed."""
        return visible(text) if self._console.is_terminal else text

    def _print(self, line: Text) -> None:
        self._console.print(line, end="", soft_wrap=True)


def table(rows: Sequence[tuple[str, dict[str, Any]]]) -> Table:
    """The figures of some answers, one row each; fits 80 columns."""
    found = Table.grid(padding=(0, 2), pad_edge=False)
    found.show_header, found.header_style = True, "dim"
    found.add_column("")
    for name in _COLUMNS:
        found.add_column(name, justify="right", no_wrap=True)
    for label, figures in rows:
        found.add_row(label, *(_shown(figures[key], form) for key, form in _COLUMNS.values()))
    return found


_COLUMNS = {
    "drafted": ("drafted", "{:d}"),
    "accepted": ("accepted", "{:d}"),
    "rate": ("acceptance_rate", "{:.0%}"),
    "length": ("mean_acceptance_length", "{:.2f}"),
    "tok/s": ("tokens_per_second", "{:.0f}"),
    "B up": ("bytes_up_per_token", "{:.1f}"),
    "B down": ("bytes_down_per_token", "{:.1f}"),
    "passes": ("target_passes_per_token", "{:.2f}"),
    "RTT": ("rtt_ms", "{:.1f}"),
}
"""Head of the column: the figure and how to write it."""

UNITS = (
    "length: tokens a frame of guesses brought, the target's own included;\n"
    "B: bytes a token with WebSocket framing; passes: the target's, a token; RTT: ms"
)
"""What the columns are in."""


def _shown(value: Any, form: str) -> str:
    return "-" if value is None else form.format(value)


def totals(answers: Sequence[Answer]) -> dict[str, Any]:
    """The figures of several answers taken together."""
    tokens = sum(len(answer.ids) for answer in answers)
    frames = sum(answer.frames for answer in answers)
    drafted = sum(answer.drafted for answer in answers)
    accepted = sum(answer.accepted for answer in answers)
    seconds = sum(answer.seconds for answer in answers)
    passes = [answer.passes for answer in answers]
    times = [answer.rtt for answer in answers if answer.rtt is not None]
    return {
        "tokens": tokens,
        "drafted": drafted,
        "accepted": accepted,
        "refused": drafted - accepted,
        "frames": frames,
        "acceptance_rate": accepted / drafted if drafted else None,
        "mean_acceptance_length": 1 + accepted / frames if frames else None,
        "tokens_per_second": tokens / seconds if seconds else 0.0,
        "bytes_up_per_token": _per(sum(answer.bytes_up for answer in answers), tokens),
        "bytes_down_per_token": _per(sum(answer.bytes_down for answer in answers), tokens),
        "target_passes_per_token": _per(sum(p or 0 for p in passes), tokens)
        if None not in passes
        else None,
        "rtt_ms": 1000 * sum(times) / len(times) if times else None,
    }


def _per(total: float, count: int) -> float | None:
    return total / count if count else None
