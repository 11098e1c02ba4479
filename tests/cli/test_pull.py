"""``outrider pull``: what it prints, and how it fails. The download has tests of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from outrider.cli import exits
from outrider.protocol.errors import BackendError
from outrider.runtime.hub import pull as hub
from outrider.runtime.hub.names import Wanted
from outrider.runtime.hub.remote import RemoteFile

MIB = 1 << 20


@pytest.fixture
def pulled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Wanted, str | None]]:
    """Every pull succeeds at once; gives what was asked for."""
    asked: list[tuple[Wanted, str | None]] = []

    def pull(model: Wanted, file: str | None, report: Any) -> hub.Pulled:
        asked.append((model, file))
        report("m-q4_k_m.gguf", 3 * MIB, 3 * MIB)
        remote = RemoteFile(model.repo, "abc", "m-q4_k_m.gguf", 3 * MIB, "e", "5" * 64)
        return hub.Pulled(model, Path("/cache/m-q4_k_m.gguf"), (remote,), True)

    monkeypatch.setattr(hub, "pull", pull)
    return asked


def test_one_model(invoke: Any, pulled: Any) -> None:
    result = invoke("pull", "a/b:Q4_0")
    assert result.status == exits.DONE
    assert result.out == "/cache/m-q4_k_m.gguf  (3 MiB, checksum right)\n"
    assert result.err == ""  # no bars where there is no terminal
    assert pulled == [(Wanted("a/b", "Q4_0"), None)]


def test_a_pair_says_how_to_use_it(invoke: Any, pulled: Any) -> None:
    result = invoke("pull", "qwen2.5-coder")
    assert [model.role for model, _ in pulled] == ["drafter", "target"]
    assert "drafter: /cache" in result.out
    assert "outrider cloud serve --model qwen2.5-coder" in result.out


def test_json_is_one_object(invoke: Any, pulled: Any) -> None:
    (model,) = invoke("pull", "a/b", "--file", "m-q4_k_m.gguf", "--json").json["models"]
    assert model["path"] == "/cache/m-q4_k_m.gguf"
    assert model["files"][0] == {
        "name": "m-q4_k_m.gguf",
        "bytes": 3 * MIB,
        "sha256": "5" * 64,
        "revision": "abc",
    }
    assert pulled[0][1] == "m-q4_k_m.gguf"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["nope"], "is no name on the hub"),
        (["a/b:"], "after the colon comes a quantization"),
        (["qwen2.5-coder", "--file", "x"], "--file needs one repository"),
        ([], "Missing argument"),
    ],
)
def test_bad_names(args: list[str], words: str, invoke: Any) -> None:
    result = invoke("pull", *args)
    assert result.status == exits.USAGE
    assert words in result.err
    assert result.out == ""


def test_what_cannot_be_had(invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def pull(*_: Any) -> None:
        raise BackendError("a/b has no Q9; it has Q4_0 (3 MiB)")

    monkeypatch.setattr(hub, "pull", pull)
    result = invoke("pull", "a/b:Q9")
    assert result.status == exits.FAILED
    assert result.err == "error: a/b has no Q9; it has Q4_0 (3 MiB)\n"


def test_offline_and_nothing_in_the_cache(process: Any, tmp_path: Path) -> None:
    result = process("pull", "a/b", HF_HOME=str(tmp_path), XDG_CACHE_HOME=str(tmp_path))
    assert result.status == exits.FAILED
    assert "HF_HUB_OFFLINE is set" in result.err
    assert "Traceback" not in result.err


def test_a_hub_that_cannot_be_reached_fails_fast(process: Any, tmp_path: Path) -> None:
    place = {"HF_HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
    result = process("pull", "a/b", HF_ENDPOINT="http://127.0.0.1:9", **place)
    assert result.status == exits.FAILED
    assert "the hub at http://127.0.0.1:9 cannot be reached" in result.err
    assert len(result.err.splitlines()) == 1


def test_an_interrupted_pull(invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def pull(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(hub, "pull", pull)
    assert invoke("pull", "a/b").status == exits.INTERRUPTED


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    import io
    import sys

    from outrider.cli.bars import Bars

    screen = io.StringIO()
    screen.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    bars = Bars()
    with bars:
        bars.report("model.gguf", 1 * MIB, 2 * MIB)
        bars.report("model.gguf", 2 * MIB, 2 * MIB)
    assert "model.gguf" in screen.getvalue()
    json.dumps(screen.getvalue())
