"""``run --offline local``: verified and unverified text are never mixed, on any kind of output."""

from __future__ import annotations

import io
import os
import re
import socket

import pytest

from outrider.cli import exits
from outrider.cli.unverified import OfflineScreen, place
from outrider.edge_client.answer import Piece
from outrider.edge_client.offline import Unverified

COLUMNS, LINES = 20, 8


class Terminal:
    """What is on a screen of that size after everything that was written; dim text in brackets."""

    def __init__(self) -> None:
        self.out = io.StringIO()

    def lines(self) -> list[str]:
        cells: dict[tuple[int, int], str] = {}
        row = column = 0
        dim = False
        for up, right, other, char in re.findall(
            r"\x1b\[(\d+)A|\x1b\[(\d+)C|\x1b\[(0m|2m|J)|([\s\S])", self.out.getvalue()
        ):
            if up:
                row -= int(up)
            elif right:
                column += int(right)
            elif other == "J":
                cells = {at: c for at, c in cells.items() if at < (row, column)}
            elif other:
                dim = other == "2m"
            elif char == "\r":
                column = 0
            elif char == "\n":
                row, column = row + 1, 0
            else:
                if column == COLUMNS:
                    row, column = row + 1, 0
                cells[row, column] = f"[{char}]" if dim else char
                column += 1
        last = max((at[0] for at in cells), default=0)
        found = ["".join(cells.get((r, c), "") for c in range(COLUMNS)) for r in range(last + 1)]
        return [line.replace("][", "") for line in found]


@pytest.fixture
def terminal() -> Terminal:
    return Terminal()


@pytest.fixture
def screen(terminal: Terminal, capsys: pytest.CaptureFixture[str]) -> OfflineScreen:
    size = os.terminal_size((COLUMNS, LINES))
    return OfflineScreen(terminal.out, terminal=True, size=size)


def piece(text: str) -> Piece:
    return Piece(text, (), 0, ())


def alone(text: str) -> Unverified:
    return Unverified(text, max(1, len(text)), False, False)


def back(text: str, corrected: int = 0) -> Unverified:
    return Unverified(text, len(text), True, False, corrected)


def test_dim_text_gives_way_to_verified_text(screen, terminal, capsys) -> None:
    screen.piece(piece("verified "))
    screen.unverified(alone("and"))
    screen.unverified(alone("and then it wraps over lines"))
    assert terminal.lines() == ["verified ", "[and then it wraps ov]", "[er lines]"]
    screen.unverified(back("and then it wraps over lines"))
    screen.piece(piece("and then "))
    screen.unverified(back("it wraps over lines"))
    assert terminal.lines()[-2:] == ["and then [it wraps ov]", "[er lines]"]
    screen.piece(piece("she left"))
    screen.unverified(back("", corrected=19))
    assert terminal.lines() == ["verified ", "and then she left"]
    err = capsys.readouterr().err
    assert "NOT verified" in err
    assert "corrected: 19 of the 28 unverified tokens were wrong" in err


def test_text_that_was_right(screen, terminal, capsys) -> None:
    screen.unverified(alone("right"))
    screen.unverified(back("right"))
    screen.piece(piece("right"))
    screen.unverified(back(""))
    screen.piece(piece(" on"))
    screen.end(None)
    assert terminal.lines() == ["right", " on"]
    assert "all 5 unverified tokens were right" in capsys.readouterr().err


@pytest.mark.parametrize("start", ["", "x", "x" * (COLUMNS - 1), "x" * COLUMNS, "x\ny"])
@pytest.mark.parametrize("tail", ["a", "b" * COLUMNS, "c\n\nd", "e" * (2 * COLUMNS + 3)])
def test_nothing_else_is_taken_away(screen, terminal, start: str, tail: str) -> None:
    screen.piece(piece(start))
    screen.note("once")  # so that the tail begins on a line of its own
    screen.piece(piece(start))
    before = terminal.lines()
    screen._draw(tail)
    screen._take_away()
    assert terminal.lines() == before
    screen.piece(piece("z"))
    assert terminal.lines()[-1].endswith("z")
    assert sum(line.count("x") for line in terminal.lines()) == 2 * start.count("x")


def test_a_tail_out_of_reach_is_called_void(screen, terminal) -> None:
    screen.unverified(alone("long " * COLUMNS * 2))
    screen.piece(piece("verified"))
    assert "verified, the dim one above is void" in terminal.out.getvalue()
    assert terminal.lines()[-1] == "verified"


def test_place() -> None:
    assert place(0, "abc", 20) == (0, 3)
    assert place(18, "abc", 20) == (1, 1)
    assert place(0, "a" * 20, 20) == (0, 20)
    assert place(20, "b", 20) == (1, 1)
    assert place(3, "a\nb", 20) == (1, 1)
    assert place(0, "\u200d", 20) is None


def test_elsewhere_only_verified_text(capsys) -> None:
    out = io.StringIO()
    screen = OfflineScreen(out, terminal=False, size=None)
    screen.piece(piece("verified"))
    screen.unverified(alone("not"))
    screen.unverified(back("not"))
    screen.piece(piece(" more"))
    assert out.getvalue() == "verified more"


@pytest.fixture
def nowhere() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


def test_a_cloud_that_is_never_reached(invoke, nowhere: str) -> None:
    common = ["run", "And it came to pass", "--cloud", nowhere, "-n", "8", "--reconnect", "0.2"]
    result = invoke(*common, "--offline", "local", "--json")
    assert result.status == exits.FAILED
    found = result.json
    assert (found["finish_reason"], found["text"], found["token_ids"]) == ("unverified", "", [])
    assert (found["verified_tokens"], found["unverified_tokens"]) == (0, 8)
    assert found["unverified_text"]
    assert found["target"] is None
    piped = invoke(*common, "--offline", "local")
    assert (piped.status, piped.out) == (exits.FAILED, "")
    assert "NOT verified" in piped.err
    assert found["unverified_text"] in piped.err
    assert invoke(*common).status == exits.UNREACHABLE


def test_it_needs_a_drafter(invoke, nowhere: str) -> None:
    result = invoke("run", "x", "--cloud", nowhere, "--offline", "local", "--draft", "off")
    assert result.status == exits.USAGE
    assert "needs a drafter" in result.err
