"""``outrider doctor``: every line says how it is and what to do; the status says if all is well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outrider.cli import exits
from outrider.runtime.doctor import child, libraries, models


@pytest.fixture
def no_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries and models are well, without trying them."""
    facts = {"load_seconds": 0.1, "step_seconds": 0.005}
    monkeypatch.setattr(child, "run", lambda *_: child.Outcome(facts=facts))


def test_all_is_well(process: Any) -> None:
    result = process("doctor")
    assert result.status == exits.DONE
    assert result.err == ""
    names = [line.partition(":")[0].split(maxsplit=1)[1] for line in result.out.splitlines()]
    assert {"processor", "cores", "memory", "draft model", "tokenizer"} <= set(names)
    assert "\x1b" not in result.out


@pytest.mark.usefixtures("no_children")
def test_json_is_one_object(invoke: Any) -> None:
    found = invoke("doctor", "--json").json
    assert found["problems"] == 0
    assert {check["state"] for check in found["checks"]} <= {"ok", "warning"}
    assert set(found["checks"][0]) == {"name", "state", "says", "do", "facts"}


@pytest.mark.usefixtures("no_children")
def test_a_problem_says_what_to_do(invoke: Any, tmp_path: Path) -> None:
    result = invoke("doctor", "--draft-model", tmp_path / "none.gguf")
    assert result.status == exits.FAILED
    (line,) = [line for line in result.out.splitlines() if line.startswith("PROBLEM")]
    assert "no such file" in line
    assert "->" in line
    assert "error: 1 problem: see above" in result.err


@pytest.mark.usefixtures("no_children")
def test_json_and_a_problem(invoke: Any, tmp_path: Path) -> None:
    result = invoke("doctor", "--json", "--draft-model", tmp_path / "none.gguf")
    assert result.status == exits.FAILED
    assert result.json["problems"] == 1


def test_a_library_that_kills_its_process(
    invoke: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "onnxruntime.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(libraries, "DRAFTING", libraries.DRAFTING[:1])
    monkeypatch.setattr(libraries, "OTHERS", ())
    monkeypatch.setattr(libraries, "version_of", lambda _package: "1.23.0")
    monkeypatch.setattr(models, "check_model", lambda *_: iter(()))
    result = invoke("doctor")
    assert result.status == exits.FAILED
    assert "onnxruntime: 1.23.0 uses instructions that this CPU lacks" in result.out
    assert "no library here can run a drafter" in result.out


@pytest.mark.usefixtures("no_children")
def test_the_link(process: Any, llama_cloud: Any) -> None:
    result = process("doctor", "--cloud", llama_cloud.url, "--json")
    found = {check["name"]: check for check in result.json["checks"]}
    assert result.status == exits.DONE
    assert "its tokenizer equals the draft model's" in found["handshake"]["says"]
    assert found["round trip"]["facts"]["rtt_seconds"] > 0


@pytest.mark.usefixtures("no_children")
def test_no_cloud_there(invoke: Any) -> None:
    result = invoke("doctor", "--cloud", "ws://127.0.0.1:9")
    assert result.status == exits.FAILED
    assert "nothing listens on 127.0.0.1:9" in result.out
    assert "outrider cloud serve" in result.out


@pytest.mark.usefixtures("no_children")
def test_a_pair_that_does_not_fit(invoke: Any, llama_cloud: Any, altered_pack: Any) -> None:
    def change(content: dict[str, Any]) -> None:
        vocabulary = content["model"]["vocab"]
        one, two = list(vocabulary)[1500:1502]
        vocabulary[one], vocabulary[two] = vocabulary[two], vocabulary[one]

    pack = altered_pack(change)
    result = invoke("doctor", "--draft-model", pack, "--cloud", llama_cloud.url)
    assert result.status == exits.FAILED
    (line,) = [line for line in result.out.splitlines() if "different tokenizers" in line]
    assert "first differences: id " in line


@pytest.mark.usefixtures("no_children")
def test_a_bad_address_is_a_setting(invoke: Any) -> None:
    assert invoke("doctor", "--cloud", "http://x").status == exits.USAGE


def test_colours_and_width_of_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    from rich.console import Console

    from outrider.cli.doctor import _print
    from outrider.runtime.doctor.check import problem

    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80, color_system="standard")
    _print(
        console, problem("draft model's memory", "it needs far more than there is " * 4, "end it")
    )
    lines = screen.getvalue().splitlines()
    assert len(lines) > 2
    assert "PROBLEM" in lines[0]
    assert "-> end it" in lines[-1]
