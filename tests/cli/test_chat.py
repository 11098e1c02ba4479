"""The chat: what it draws, what it keeps, and how it works in scripts."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from outrider.cli import chat_input, exits
from outrider.cli.chat_screen import ERASE, Screen, advance, cells, clipped, visible
from outrider.cli.chat_talk import Conversation
from outrider.protocol.errors import SettingError

ASK = "And it came to pass"
DIM = "\x1b[2m"

# --- the screen -----------------------------------------------------------------------------


class Terminal:
    """As much of a terminal as a chat needs: cells, wrapping at the edge, erasing, going back."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.rows: list[list[tuple[str, bool]]] = [[]]
        self.column = 0
        self.dim = False

    def feed(self, data: str) -> None:
        for code, char in re.findall(r"\x1b\[([\d;]*[A-Za-z])|(.)", data, re.DOTALL):
            if code in ("2m", "0m"):
                self.dim = code == "2m"
            elif code == "J":
                assert self.column < self.width, "erasing here would take a written cell"
                del self.rows[-1][self.column :]
            elif code.endswith("D"):
                assert self.column < self.width
                self.column -= int(code[:-1])
            elif code:
                raise AssertionError(code)
            else:
                self._put(char)

    def _put(self, char: str) -> None:
        size = cells(char)
        if char == "\n" or (size and self.column + size > self.width):
            self.rows.append([])
            self.column = 0
        if char != "\n":
            assert size
            row = self.rows[-1]
            row[self.column :] = [(char, self.dim), *[("", self.dim)] * (size - 1)]
            self.column += size

    def text(self, *, dim: bool) -> list[str]:
        return ["".join(char for char, faint in row if faint == dim) for row in self.rows]


WORDS = st.text("ab 漢🙂é\n", max_size=9)


@given(st.lists(st.tuples(st.booleans(), WORDS), max_size=30), st.integers(20, 24))
@examples(max_examples=150)
def test_the_tail_never_touches_the_text(events: list[tuple[bool, str]], width: int) -> None:
    out, terminal, plain = io.StringIO(), Terminal(width), Terminal(width)
    screen = Screen(out, terminal=True, tails=True)
    screen._columns = lambda: width  # type: ignore[method-assign]
    for is_text, text in events:
        (screen.text if is_text else screen.ahead)(text)
        terminal.feed(out.getvalue())
        out.seek(0)
        out.truncate()
        if is_text:
            plain.feed(text)
        assert terminal.text(dim=False) == plain.text(dim=False)
        assert all(not row for row in terminal.text(dim=True)[:-1])
    screen.end()
    terminal.feed(out.getvalue())
    assert not "".join(terminal.text(dim=True))


def make(width: int = 40, **more: bool) -> tuple[Screen, io.StringIO]:
    out = io.StringIO()
    screen = Screen(out, **({"terminal": True, "tails": True} | more))
    screen._columns = lambda: width  # type: ignore[method-assign]
    screen._width = width
    return screen, out


def test_what_was_guessed_right_stays_and_what_was_wrong_goes() -> None:
    screen, out = make()
    screen.text("The ")
    screen.ahead("cat sat")
    screen.text("cat")
    assert out.getvalue() == (
        f"The {DIM}cat sat\x1b[0m\x1b[7D" + f"{ERASE}cat{DIM} sat\x1b[0m\x1b[4D"
    )
    screen.text(" ran")
    assert out.getvalue().endswith(f"{ERASE} ran")


def test_no_tail_after_a_resize_until_the_next_line() -> None:
    screen, out = make()
    screen.text("The ")
    screen._columns = lambda: 30  # type: ignore[method-assign]
    screen.ahead("cat")
    assert DIM not in out.getvalue()
    screen.text("dog\n")
    screen.ahead("cat")
    assert DIM in out.getvalue()


@pytest.mark.parametrize("odd", ["🇩🇪", "👍🏽", "a\u200db", "\ufffd"])
def test_no_tail_behind_characters_of_doubtful_width(odd: str) -> None:
    screen, out = make()
    screen.text(odd)
    screen.ahead("tail")
    assert DIM not in out.getvalue()
    assert clipped("ab" + odd, 20)[0] in ("ab", "aba", "ab👍")


def test_control_characters_are_written_out_on_a_terminal() -> None:
    screen, out = make()
    for piece in ("a\x1b[31mb\r", "\nc\rd\x9b2J\x07 é\u202e\t|", "\r"):
        screen.text(piece)
    screen.end()
    assert out.getvalue() == "a\\x1b[31mb\nc\\rd\\x9b2J\\x07 é\\u202e\t|\n"
    screen, out = make(terminal=False)
    screen.text("a\x1b[31m\r")
    assert out.getvalue() == "a\x1b[31m\r"
    assert visible("plain") == "plain"


def test_columns() -> None:
    assert advance(0, "漢" * 3, 5) == 2  # the third does not fit into one cell
    assert advance(0, "ab\tc", 40) == 9
    assert advance(3, "\u0301", 40) == 3
    assert advance(None, "abc\nd", 40) == 1


# --- the words ------------------------------------------------------------------------------


def read_all(*lines: str) -> list[chat_input.Said]:
    source = iter(lines)
    found = []
    while (said := chat_input.read_message(lambda _prompt: next(source, None))) is not None:
        found.append(said)
    return found


def test_messages_of_several_lines() -> None:
    assert read_all("one\\", "two", "three") == [("one\ntwo", False), ("three", False)]
    assert read_all('"""', "a", "", '/b"""', '"""c"""') == [("a\n\n/b", True), ("c", True)]
    assert read_all("cut\\") == [("cut", False)]
    assert read_all('"""cut', "off") == [("cut\noff", True)]


def test_the_history_is_bounded_and_private(tmp_path: Path) -> None:
    file = tmp_path / "new" / "history"
    assert chat_input.load_history(file) == []
    file.write_text("".join(f"{i}\n" for i in range(1500)))
    file.chmod(0o644)
    kept = chat_input.load_history(file)
    assert kept == [str(i) for i in range(500, 1500)]
    assert file.read_text().splitlines() == kept
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_a_conversation(tmp_path: Path) -> None:
    talk = Conversation(plain=False, system="Be brief.")
    talk.say("Hi")
    talk.answered("Ho")
    talk.say("never answered")
    talk.answered("")
    assert [m["content"] for m in talk.messages] == ["Be brief.", "Hi", "Ho"]
    talk.save(tmp_path / "a.json", "m")
    assert json.loads((tmp_path / "a.json").read_text())["messages"] == talk.messages
    talk.save(tmp_path / "a.txt", "m")
    assert (tmp_path / "a.txt").read_text() == (
        "[system]\nBe brief.\n\n[user]\nHi\n\n[assistant]\nHo\n"
    )
    with pytest.raises(SettingError, match="exists already"):
        talk.save(tmp_path / "a.txt", "m")
    with pytest.raises(SettingError, match="cannot write"):
        talk.save(tmp_path / "no" / "b", "m")
    assert talk.take_back() == "Hi"
    plain = Conversation(plain=True)
    for text in ("a", "b\n"):
        plain.say(text)
        plain.answered(" c")
    assert plain.text == "a c\nb\n c"


# --- scripts --------------------------------------------------------------------------------


def script(process, cloud, lines: str, *args: str, **env: str):
    return process("chat", "--cloud", cloud.url, *args, stdin=lines.encode(), **env)


def test_a_script_reuses_what_both_ends_know(process, llama_cloud, tmp_path: Path) -> None:
    saved = tmp_path / "saved.txt"
    lines = f"{ASK}\n\nthat the king\n/stats\n/save {saved}\n/retry\n//x\n/draft off\n/draft on\n"
    result = script(process, llama_cloud, lines, "-n", "8", "--json")
    assert result.status == exits.DONE, result.err
    turns = [json.loads(line) for line in result.out.splitlines()]
    assert [turn["turn"] for turn in turns] == [1, 2, 3, 4]
    first, second, again, _ = turns
    assert (first["cached_tokens"], first["error"], first["finish_reason"]) == (0, None, "length")
    # All but the last token of the answer, which the next turn may join with what follows it.
    assert second["cached_tokens"] >= first["prompt_tokens"] + 8 - 2
    assert again["text"] == second["text"]
    assert again["cached_tokens"] == again["prompt_tokens"] - 1
    assert saved.read_text() == f"{ASK}{first['text']}\nthat the king{second['text']}\n"
    assert "cached" in result.err
    assert "continued as it is" in result.err
    assert "drafting is off (/draft on)" in result.err
    alone = process("run", "--cloud", llama_cloud.url, "-n", "8", "--json",
                    f"{ASK}{first['text']}\nthat the king")  # fmt: skip
    assert alone.json["text"] == second["text"]


def test_a_script_gives_the_text_only(process, llama_cloud, read, popen) -> None:
    result = script(process, llama_cloud, f"{ASK}\n", "-n", "6", "--system", "Be brief.")
    assert result.status == exits.DONE, result.err
    assert result.out.endswith("\n")
    assert not {">>>", "\x1b"} & set(result.out.split())
    assert result.err == ""


def test_a_cloud_with_another_template_writes_the_messages_out(
    process, llama_cloud, models: Path, tmp_path: Path
) -> None:
    place, same = tmp_path / "pack", tmp_path / "same"  # the embedded one itself would chat plainly
    for folder, mine in ((place, "{# mine #}"), (same, "")):
        folder.mkdir()
        for name in ("tokenizer.json", "tokenizer_config.json"):
            content = json.loads((models / "drafter" / name).read_text("utf-8"))
            if "chat_template" in content:
                content["chat_template"] = mine + content["chat_template"]
            (folder / name).write_text(json.dumps(content))
    lines, flags = "Who?\nAnd where?\n", ("-n", "8", "--draft", "off", "--json")
    theirs = script(process, llama_cloud, lines, *flags, "-md", place)
    ours = script(process, llama_cloud, lines, *flags, "-md", same)
    both = [[json.loads(line) for line in found.out.splitlines()] for found in (theirs, ours)]
    assert [len(turns) for turns in both] == [2, 2], (theirs.err, ours.err)
    for key in ("text", "prompt_tokens", "cached_tokens"):
        assert both[0][1][key] == both[1][1][key], key
    assert both[0][1]["cached_tokens"] > 0


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("/etc/passwd\n", "no command /etc/passwd"),
        ("/quit now\n", "takes nothing"),
        ("/objective speed\n", "latency, balanced or cost"),
        ("/save\n", "name of a file"),
        ("/retry\n", "nothing to answer again"),
        ("/system x\n", "no system message"),
    ],
)
def test_bad_commands_end_a_script(invoke, monkeypatch, llama_cloud, lines, words) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    result = invoke("chat", "--cloud", llama_cloud.url, "--draft", "off")
    assert result.status == exits.USAGE
    assert words in result.err.replace(
        "one of latency, balanced, cost", "latency, balanced or cost"
    )


def test_bad_input(process, popen, llama_cloud) -> None:
    result = process("chat", "--cloud", llama_cloud.url, "--draft", "off", stdin=b"/help\n\xff\n")
    assert result.status == exits.USAGE
    assert "line 2: not valid UTF-8 at byte 0" in result.err
    assert "/objective" in result.err
    command = f'exec "$0" -m outrider.cli.main chat --draft off --cloud {llama_cloud.url} <&-'
    closed = subprocess.run(
        ["sh", "-c", command, sys.executable], capture_output=True, timeout=60, check=False
    )
    assert (closed.returncode, closed.stdout) == (exits.DONE, b""), closed.stderr


def test_a_full_context_says_what_to_do(process, llama_cloud) -> None:
    long = "the king of Israel " * 600
    result = script(process, llama_cloud, f"{long}\n", "--draft", "off")
    assert result.status == exits.USAGE
    assert "2047 fit in the target's context. /clear begins a new one" in result.err


def test_the_reader_of_the_output_leaves(popen, llama_cloud, read) -> None:
    chat = popen("chat", "--cloud", llama_cloud.url, "-n", "400", stdin=subprocess.PIPE)
    chat.stdin.write(f"{ASK}\n{ASK}\n{ASK}\n".encode())
    chat.stdin.close()
    read(chat, 10)
    chat.stdout.close()
    assert chat.wait(30) == exits.PIPE_CLOSED
    said = chat.stderr.read().decode()
    assert "error" not in said
    assert "Traceback" not in said
