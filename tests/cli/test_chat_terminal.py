"""The chat at a pseudo-terminal: keys, resizing, and a link that is lost."""

from __future__ import annotations

import fcntl
import os
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

sys.path.insert(0, str(Path(__file__).parent))
import terminal

from outrider.benchmarks import embedded
from outrider.cli import chat_input, exits
from outrider.cli.chat_screen import ERASE, visible

ASK = "And it came to pass"
DIM = "\x1b[2m"


class Person:
    """Somebody at a pseudo-terminal."""

    def __init__(self, args: list[str], env: dict[str, str], columns: int = 80) -> None:
        self.process, self._fd = terminal.start(["-m", "outrider.cli.main", *args], env)
        self.resize(columns)
        self.seen = ""

    def resize(self, columns: int) -> None:
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def until(self, *words: str, seconds: float = 40) -> str:
        """What appears up to and including the words, in this order; it is taken away."""
        end, at = time.monotonic() + seconds, 0
        for word in words:
            while (place := self.seen.find(word, at)) < 0:
                if time.monotonic() > end or not self._more(0.2):
                    raise AssertionError(f"no {word!r} in {self.seen!r}")
            at = place + len(word)
        found, self.seen = self.seen[:at], self.seen[at:]
        return found

    def ask(self, text: str) -> str:
        """Type a line; everything up to the next prompt."""
        self.type(text + "\r")
        self.until(text)
        return self.until(chat_input.PROMPT)

    def echoes(self) -> bool:
        """Whether the terminal shows what is typed."""
        return bool(termios.tcgetattr(self._fd)[3] & termios.ECHO)

    def leaves(self) -> int:
        """The exit status. One that does not end is made to say where it stands."""
        end = time.monotonic() + 20
        while (found := self.process.poll()) is None:
            if time.monotonic() > end:
                self.process.send_signal(signal.SIGABRT)
                while self._more(1) and time.monotonic() < end + 5:
                    pass
                raise AssertionError(self.seen)
            self._more(0.05)
        return found

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
        self.process.kill()
        self.process.wait()
        os.close(self._fd)


@pytest.fixture
def person(home: Path, tmp_path: Path):
    """``person(url, *args, **env)`` starts a chat at a terminal and waits for its prompt."""
    people = []

    def start(url: str, *args: str, **env: str) -> Person:
        base = {k: v for k, v in os.environ.items() if not k.startswith(("OUTRIDER_", "NO_COLOR"))}
        mine = {"XDG_CONFIG_HOME": str(home), "XDG_STATE_HOME": str(tmp_path), "TERM": "xterm",
                "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1",
                "INPUTRC": "/dev/null"}  # fmt: skip
        people.append(Person(["chat", "--cloud", url, *args], base | mine | env))
        people[-1].until(chat_input.PROMPT)
        return people[-1]

    yield start
    for one in people:
        one.close()


@pytest.fixture(scope="module")
def slow(models: Path):
    """A cloud whose passes last 0.15 s: (its address, what says how many there were)."""
    pytest.importorskip("llama_cpp")
    found = subprocess.Popen(
        [sys.executable, "-m", "outrider.benchmarks.paced_cloud", "--model",
         str(models / "target" / "target-f16.gguf"), "--step-ms", "150", "--lookup", "0"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert found.stdin is not None
    assert found.stdout is not None
    cloud = embedded.Cloud(found.stdout.readline().strip(), "llama", found)
    yield cloud.url, lambda: len(cloud.passes())
    found.kill()
    found.communicate()


def test_keys_at_a_terminal(person, slow, tmp_path: Path) -> None:
    url, passes = slow
    one = person(url, "-n", "200", "--draft-p-min", "0", "--ignore-eos")
    one.type(ASK + "\r")
    seen = one.until(DIM, ERASE)
    one.resize(50)
    time.sleep(0.5)
    one.type("\x03")
    one.until("cancelled; what there was is kept", chat_input.PROMPT)
    before = passes()
    one.type("not sent")
    one.until("not sent")
    one.type("\x03")  # clears the line
    one.until("\r\n" + chat_input.PROMPT)
    stats = one.ask("/stats")
    assert "%" in stats
    assert "round trip" in stats
    assert passes() <= before + 2, "the cloud works on"
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


@pytest.fixture
def serve() -> tuple[str, ...]:
    """Flags for a cloud that comes back at the same place."""
    pytest.importorskip("llama_cpp")
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    return "--target-backend", "llama", "--port", str(port)


def test_a_cloud_that_comes_back(person, start_cloud, process, serve) -> None:
    cloud = start_cloud(*serve)
    sampled = ("--cloud", cloud.url, "-n", "200", "--draft", "off", "--temp", "1", "--seed", "5")
    whole = process("run", *sampled, "--ignore-eos", ASK).out
    one = person(*sampled[1:], "--ignore-eos", "--reconnect", "20")
    one.type(ASK + "\r")
    said = one.until(whole[:30].partition("\n")[0])
    cloud.process.kill()
    said += one.until("the link was lost, connecting again")
    cloud = start_cloud(*serve)
    said += one.until("note: cut after", chat_input.PROMPT)  # the text may look like a prompt
    said = re.sub(r"\n?warning: the link was lost.*\n(  .*\n)*", "", said.replace("\r\n", "\n"))
    assert visible(whole).strip() in said
    cloud.process.kill()
    cloud.process.wait()
    one.type("more\r")
    one.until("no link to the cloud, trying again")
    one.type("\x03")
    assert "taken back" in one.until("cancelled", chat_input.PROMPT)
    one.type("\x04")
    assert one.leaves() == exits.DONE


def test_a_cloud_that_stays_away(person, start_cloud, serve, tmp_path: Path) -> None:
    cloud = start_cloud(*serve)
    one = person(cloud.url, "-n", "900", "--ignore-eos", "--draft", "off", "--reconnect", "0.2")
    one.type(ASK + "\r")
    said = one.until(ASK, "king", "the")
    cloud.process.kill()
    cloud.process.wait()
    said += one.until("error: ", chat_input.PROMPT)
    one.ask(f"/save {tmp_path}/kept.txt")
    kept = (tmp_path / "kept.txt").read_text().strip()
    assert kept.partition(ASK)[2][:40] in said
    assert len(kept) > len(ASK) + 10
    assert "error: " in one.ask("still away")
    start_cloud(*serve)
    one.type("and now\r")
    one.until("and now", "\r\n", "the")
    one.type("\x03")
    one.until("cancelled", chat_input.PROMPT)
    one.ask(f"/save {tmp_path}/more.txt")
    more = (tmp_path / "more.txt").read_text()
    assert more.startswith(f"{kept}\nand now")


def test_a_terminated_chat_gives_the_terminal_back(person, slow) -> None:
    one = person(slow[0], "-n", "200", "--ignore-eos")
    one.type(ASK + "\r")
    one.until("king")
    assert not one.echoes()
    one.process.terminate()
    assert one.leaves() == 128 + signal.SIGTERM
    assert one.echoes()


def test_a_chat_goes_on_without_a_link(person, start_cloud, process, serve, tmp_path: Path) -> None:
    cloud = start_cloud(*serve)
    whole = process("run", ASK, "--cloud", cloud.url, "-n", "300", "--ignore-eos").out
    one = person(cloud.url, "-n", "300", "--ignore-eos", "--offline", "local")
    one.type(ASK + "\r")
    one.until(ASK, "king")
    cloud.process.kill()
    cloud.process.wait()
    one.until("the link is down: what follows is the", "NOT verified", DIM)
    start_cloud(*serve)
    one.until("the link is back: verifying", "unverified tokens were", chat_input.PROMPT)
    one.ask(f"/save {tmp_path}/kept.txt")
    kept = (tmp_path / "kept.txt").read_text()
    assert kept.strip() == (ASK + whole).strip()


def test_what_stays_unverified_is_no_part_of_the_chat(
    person, start_cloud, serve, tmp_path: Path
) -> None:
    cloud = start_cloud(*serve)
    one = person(cloud.url, "-n", "300", "--ignore-eos", "--offline", "local", "--reconnect", "0.5")
    one.type(ASK + "\r")
    said = one.until(ASK, "king")
    cloud.process.kill()
    cloud.process.wait()
    said += one.until("the link is down")
    one.until("NOT verified: the dim text above", "error: the link did not", chat_input.PROMPT)
    one.ask(f"/save {tmp_path}/kept.txt")
    kept = (tmp_path / "kept.txt").read_text().strip()
    assert visible(kept.partition(ASK)[2])[:40].strip() in said.replace("\r\n", "\n")
    start_cloud(*serve)
    one.type("and now\r")
    one.until("and now", "note: cut after", chat_input.PROMPT)
    one.ask(f"/save {tmp_path}/more.txt")
    assert (tmp_path / "more.txt").read_text().startswith(f"{kept}\nand now")


def test_a_chat_begins_with_a_cloud(invoke) -> None:
    result = invoke("chat", "--cloud", "ws://127.0.0.1:9", "--offline", "local")
    assert result.status == exits.UNREACHABLE
    assert "a chat begins with one" in result.err
