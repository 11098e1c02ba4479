"""The demonstration: what it counts, how it looks, and that it leaves nothing behind."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from rich.console import Console

from outrider.cli import exits
from outrider.cli.check import check, together
from outrider.cli.child import CloudChild
from outrider.cli.paint import UNITS, Painter, legend, table, totals
from outrider.cloud_server.replay import plain
from outrider.cloud_server.targets.scripted import ScriptedTarget
from outrider.edge_client.answer import Answer, Piece
from outrider.protocol.decoding.sampling import Sampling

KEYS = {
    "text", "tokens", "exact", "identical", "near_ties", "acceptance_rate",
    "mean_acceptance_length", "tokens_per_second", "bytes_up_per_token", "bytes_down_per_token",
    "target_passes_per_token", "answers",
}  # fmt: skip


def answer(ids: tuple[int, ...], prompt: tuple[int, ...] = (1,), **more) -> Answer:
    figures = {
        "text": "", "reason": "length", "seed": None, "rule": "greedy", "frames": 2, "drafted": 8,
        "accepted": 6,
        "bytes_up": 40, "bytes_down": 30, "passes": 4, "first_token": 0.1, "seconds": 2.0,
        "rtt": 0.001, "degraded": None,
    }  # fmt: skip
    return Answer(ids=ids, prompt_ids=prompt, **(figures | more))


# --- as a process ---------------------------------------------------------------------------


def test_it_shows_the_exact_text(process) -> None:
    """The backends that come from wheels, and greedy."""
    pytest.importorskip("torch")
    result = process("demo", "--target-backend", "transformers", "--drafter-backend", "onnx",
                     "--prompt", "Blessed is the man", "-n", "12", "--draft-p-min", "0",
                     "--json")  # fmt: skip
    assert result.status == exits.DONE, result.err
    found = result.json
    assert set(found) >= KEYS
    assert (found["exact"], found["identical"], found["near_ties"]) == (True, True, 0)
    assert (found["tokens"], found["target_backend"]) == (12, "transformers")
    assert "onnx" in found["drafter"]
    assert found["drafted"] > 0


def test_all_domains_sampled(process) -> None:
    pytest.importorskip("llama_cpp")
    result = process("demo", "--target-backend", "llama", "--drafter-backend", "llama",
                     "--temp", "1", "-n", "16", "--json")  # fmt: skip
    assert result.status == exits.DONE, result.err
    found = result.json
    assert (found["exact"], found["identical"], found["near_ties"]) == (True, True, 0)
    assert [a["domain"] for a in found["answers"]] == ["scripture", "docs", "source"]
    assert found["tokens"] == sum(a["tokens"] for a in found["answers"])
    assert found["text"] == "\n\n".join(a["text"] for a in found["answers"])


def test_more_prompts_than_the_cloud_has_sessions(process) -> None:
    """Six of them, one after the other: each leaves its place to the next."""
    pytest.importorskip("llama_cpp")
    result = process("demo", "--target-backend", "llama", "--domain", "docs", "-n", "4", "--json")
    assert result.status == exits.DONE, result.err
    assert len(result.json["answers"]) >= 6
    assert result.json["identical"] is True


def test_for_people(process) -> None:
    pytest.importorskip("llama_cpp")
    result = process("demo", "--target-backend", "llama", "--prompt", "In [bold]the[/] beginning",
                     "-n", "8", OUTRIDER_HOST="0.0.0.0", OUTRIDER_MODEL="/nonexistent")  # fmt: skip
    assert result.status == exits.DONE, result.err
    assert "In [bold]the[/] beginning" in result.out
    assert "identical to the target alone: yes (8 tokens)" in result.out
    assert "cloud: embedded-target, llama, " in result.out
    assert any(line.startswith("at:    ws://127.0.0.1:") for line in result.out.splitlines())
    assert UNITS in result.out
    assert all(len(line) <= 80 for line in result.out.splitlines())
    assert "\x1b" not in result.out


def test_llama_on_both_ends_needs_no_torch() -> None:
    pytest.importorskip("llama_cpp")
    code = (
        "import sys\nsys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from outrider.cli.main import main\n"
        "main('demo --target-backend llama --drafter-backend llama -n 4 --json'.split())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == exits.DONE, done.stderr
    assert json.loads(done.stdout)["identical"] is True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_behind(popen, number: int) -> None:
    pytest.importorskip("llama_cpp")
    demo = popen("demo", "--target-backend", "llama", "-n", "2000", "--domain", "docs")
    while b"process " not in (line := demo.stdout.readline()):
        assert line
    child = int(line.split(b"process ")[1])
    assert psutil.pid_exists(child)
    demo.send_signal(number)
    assert demo.wait(30) == (exits.INTERRUPTED if number == signal.SIGINT else
                             128 + number if number == signal.SIGTERM else -number)  # fmt: skip
    deadline = time.monotonic() + 20
    while psutil.pid_exists(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not psutil.pid_exists(child)
    assert b"Traceback" not in demo.stderr.read()


def test_a_child_that_dies_says_why() -> None:
    with (
        pytest.raises(exits.WorkFailedError, match=r"no-such-model\.gguf") as raised,
        CloudChild(["--model", "no-such-model.gguf"]),
    ):
        pass
    assert "error: " not in str(raised.value)


def test_a_child_that_ignores_the_request_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("llama_cpp")
    monkeypatch.setattr("outrider.cli.child.STOP_SECONDS", 0.2)
    with CloudChild(["--target-backend", "llama"]) as child:
        pid = child.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
    assert not psutil.pid_exists(pid)
    assert child.pid is None


def test_a_cloud_that_dies_in_mid_answer_is_an_error(popen) -> None:
    pytest.importorskip("llama_cpp")
    demo = popen("demo", "--target-backend", "llama", "-n", "2000", "--prompt", "x")
    while b"process " not in (line := demo.stdout.readline()):
        assert line
    child = int(line.split(b"process ")[1])
    time.sleep(0.5)
    os.kill(child, signal.SIGKILL)
    _, err = demo.communicate(timeout=30)
    assert demo.returncode == exits.FAILED
    assert b"\nerror: " in err


# --- what is counted ------------------------------------------------------------------------


def test_what_identical_and_exact_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    sampling, target = Sampling(temperature=1.0, seed=3), ScriptedTarget()
    alone = tuple(plain(target, (1,), sampling, 6))
    same = check(target, frozenset(), answer(alone), sampling, 6)
    assert (same.identical, same.exact, same.tokens) == (True, True, 6)
    other = (*alone[:2], (alone[2] + 1) % 64, *alone[3:])
    wrong = check(target, frozenset(), answer(other), sampling, 6)
    assert not wrong.identical
    assert not wrong.exact
    # An answer that ends too early is not the target's, although each of its tokens is.
    short = check(target, frozenset(), answer(alone[:3]), sampling, 6)
    assert not short.identical
    assert not short.exact
    ended = check(target, frozenset({alone[2]}), answer(alone[:3]), sampling, 6)
    assert ended.identical or alone[2] in alone[:2]
    monkeypatch.setattr("outrider.cloud_server.replay.TOLERANCE", 1e9)
    near = check(target, frozenset(), answer(other), sampling, 6)
    assert (near.identical, near.exact) == (False, True)
    assert near.near_ties > 0
    both = together([same, near])
    assert (both.identical, both.exact, both.tokens) == (False, True, 12)


def test_totals() -> None:
    first = answer((1, 2, 3, 4))
    second = answer((1, 2, 3, 4, 5, 6), frames=1, drafted=2, accepted=0, rtt=None, seconds=3.0)
    found = totals([first, second])
    assert (found["tokens"], found["drafted"], found["accepted"], found["refused"]) == (
        10,
        10,
        6,
        4,
    )
    assert found["acceptance_rate"] == 0.6
    assert found["mean_acceptance_length"] == 3.0
    assert found["tokens_per_second"] == 2.0
    assert found["bytes_up_per_token"] == 8.0
    assert found["target_passes_per_token"] == 0.8
    assert found["rtt_ms"] == 1.0
    nothing = totals([answer((), frames=0, drafted=0, accepted=0, passes=None, rtt=None)])
    assert nothing["acceptance_rate"] is nothing["target_passes_per_token"] is None


# --- how it looks ---------------------------------------------------------------------------


def console(**more) -> Console:
    return Console(file=io.StringIO(), width=80, **more)


def painted(screen: Console, *pieces: Piece) -> str:
    tokens = {1: b"one ", 2: b"two ", 3: b"thr\nee ", 4: "é".encode()[:1], 5: "é".encode()[1:]}
    painter = Painter(screen, lambda token: tokens[token])
    for piece in pieces:
        painter.show(piece)
    painter.finish()
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def test_refused_guesses_stand_beside_the_place() -> None:
    screen = console(force_terminal=True, color_system="standard")
    text = painted(screen, Piece("", (1, 2), 1, (3, 1, 1)))
    green, struck, own = (text.index(word) for word in ("one ", "thr⏎ee one …", "two "))
    assert green < struck < own
    assert "\x1b[32mone " in text
    assert "\x1b[2;9;31mthr" in text
    assert "\x1b[1mtwo " in text


def test_without_a_terminal_there_is_the_text_alone() -> None:
    assert painted(console(), Piece("", (1, 2), 1, (3, 1)), Piece("", (4,), 1, ()),
                   Piece("", (5,), 0, ())) == "one two é\n"  # fmt: skip


def test_no_color_leaves_no_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    screen = console(force_terminal=True)
    text = painted(screen, Piece("", (1, 2), 1, (3,)))
    screen.print(legend())
    assert "[32m" not in text
    assert "31" not in text


def test_the_table_fits_a_narrow_terminal() -> None:
    screen = console()
    screen.print(table([("scripture", totals([answer(tuple(range(2000)), drafted=99999)]))]))
    assert isinstance(screen.file, io.StringIO)
    lines = screen.file.getvalue().splitlines()
    assert len(lines) == 2
    assert "…" not in screen.file.getvalue()
