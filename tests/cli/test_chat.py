"""The chat: what it draws, what it keeps, and how it lives with keys, pipes and lost links."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
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
    assert second["bytes_up_per_token"] < 20
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


# --- at a terminal --------------------------------------------------------------------------


class Person:
    """Somebody at a pseudo-terminal."""

    def __init__(self, args: list[str], env: dict[str, str], columns: int = 80) -> None:
        self.process, self._fd = pty.fork()
        if self.process == 0:
            os.execve(sys.executable, [sys.executable, "-m", "outrider.cli.main", *args], env)
        self.resize(columns)
        self.seen = ""

    def resize(self, columns: int) -> None:
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def until(self, *words: str, seconds: float = 40) -> str:
        """What appears up to all the words; it is taken away."""
        end = time.monotonic() + seconds
        while any(word not in self.seen for word in words):
            if time.monotonic() > end or not self._more(0.2):
                raise AssertionError(f"no {words} in {self.seen!r}")
        found, self.seen = self.seen, ""
        return found

    def ask(self, text: str) -> str:
        """Type a line; everything up to the next prompt."""
        self.type(text + "\r")
        self.until(text)
        return self.until(chat_input.PROMPT)

    def leaves(self) -> int:
        """The exit status."""
        end = time.monotonic() + 20
        while time.monotonic() < end and self._more(0.2):
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])

    def _more(self, seconds: float) -> bool:
        if select.select([self._fd], [], [], seconds)[0]:
            try:
                data = os.read(self._fd, 65536)
            except OSError:  # the other side is gone
                return False
            self.seen += data.decode("utf-8", "replace")
            return bool(data)
        return True

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.kill(self.process, signal.SIGKILL)
            os.waitpid(self.process, 0)
        os.close(self._fd)


@pytest.fixture
def person(home: Path, tmp_path: Path):
    """``person(url, *args, **env)`` starts a chat at a terminal and waits for its prompt."""
    people = []

    def start(url: str, *args: str, **env: str) -> Person:
        base = {k: v for k, v in os.environ.items() if not k.startswith(("OUTRIDER_", "NO_COLOR"))}
        mine = {"XDG_CONFIG_HOME": str(home), "XDG_STATE_HOME": str(tmp_path), "TERM": "xterm",
                "OMP_NUM_THREADS": "1", "INPUTRC": "/dev/null"}  # fmt: skip
        people.append(Person(["chat", "--cloud", url, *args], base | mine | env))
        people[-1].until(chat_input.PROMPT)
        return people[-1]

    yield start
    for one in people:
        one.close()


@pytest.fixture(scope="module")
def slow(models: Path, tmp_path_factory: pytest.TempPathFactory):
    """A cloud whose passes last 0.15 s: (its address, the file that gets a line for each)."""
    pytest.importorskip("llama_cpp")
    report = tmp_path_factory.mktemp("slow") / "passes"
    found = subprocess.Popen(
        [sys.executable, "-m", "outrider.benchmarks.paced_cloud", "--model",
         str(models / "target" / "target-f16.gguf"), "--step-ms", "150", "--lookup", "0",
         "--report", str(report)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert found.stdout is not None
    yield found.stdout.readline().decode().strip(), report
    found.kill()
    found.communicate()


def test_keys_at_a_terminal(person, slow, tmp_path: Path) -> None:
    url, report = slow
    one = person(url, "-n", "200", "--draft-p-min", "0", "--ignore-eos")
    one.type(ASK + "\r")
    seen = one.until(DIM, ERASE)
    one.resize(50)
    time.sleep(0.5)
    one.type("\x03")
    one.until("cancelled; what there was is kept", chat_input.PROMPT)
    passes = report.read_text().count("\n")
    one.type("not sent")
    one.until("not sent")
    one.type("\x03")  # clears the line
    one.until("\r\n" + chat_input.PROMPT)
    stats = one.ask("/stats")
    assert "%" in stats
    assert "round trip" in stats
    assert report.read_text().count("\n") <= passes + 2, "the cloud works on"
    assert "error: there is no command /nothing" in one.ask("/nothing")
    one.type("and so\r")
    one.until(DIM)
    one.type("\x03")
    one.until("cancelled", chat_input.PROMPT)
    assert re.search(r"cached +[1-9]\d* of the last", one.ask("/stats"))
    one.type("\x04")
    assert one.leaves() == exits.DONE
    history = tmp_path / "outrider" / "chat_history"
    assert history.stat().st_mode & 0o777 == 0o600
    assert history.read_text().splitlines() == [ASK, "/stats", "/nothing", "and so", "/stats"]
    assert "error" not in seen


def test_without_colour_and_history(person, llama_cloud, tmp_path: Path) -> None:
    one = person(
        llama_cloud.url, "-n", "8", "--no-history", "--draft-p-min", "0", "--verbose", NO_COLOR="1"
    )
    one.type(f"{ASK}\r/stats\r")  # the second line while the answer comes
    seen = one.until("round trip", chat_input.PROMPT)
    assert seen.index("8 tokens |") < seen.index("/stats\r")
    one.type("more\\\r")
    one.until(chat_input.MORE)
    seen = seen.partition("/stats")[0] + one.ask("and more")
    assert DIM not in seen
    assert ERASE not in seen
    one.type("/quit\r")
    assert one.leaves() == exits.DONE
    assert list(tmp_path.iterdir()) == []


def test_a_cloud_that_comes_back(person, start_cloud, process) -> None:
    pytest.importorskip("llama_cpp")
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    serve = ("--target-backend", "llama", "--port", str(port))
    cloud = start_cloud(*serve)
    sampled = ("--cloud", cloud.url, "-n", "300", "--draft", "off", "--temp", "1", "--seed", "5")
    whole = process("run", *sampled, "--ignore-eos", ASK).out
    one = person(*sampled[1:], "--ignore-eos", "--reconnect", "20")
    one.type(ASK + "\r")
    said = one.until(whole[:30].partition("\n")[0])
    cloud.process.kill()
    said += one.until("the link was lost, connecting again")
    cloud = start_cloud(*serve)
    said += one.until(chat_input.PROMPT)
    said = re.sub(r"\n?warning: the link was lost.*\n", "", said.replace("\r\n", "\n"))
    assert visible(whole).strip() in said
    cloud.process.kill()
    cloud.process.wait()
    one.type("more\r")
    one.until("no link to the cloud, trying again")
    one.type("\x03")
    assert "taken back" in one.until("cancelled", chat_input.PROMPT)
    cloud = start_cloud(*serve)
    assert "error" not in one.ask("/retry")
    one.type("\x04")
    assert one.leaves() == exits.DONE
