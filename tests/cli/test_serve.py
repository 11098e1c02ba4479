"""``cloud serve`` before it serves: signals while a model loads, memory, names that are none."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from outrider.cli import exits
from outrider.cli.targets import check_gguf

LOADING = """
import time
from outrider.cli.serving import ends_at_once
with ends_at_once():
    print("loading", flush=True)
    time.sleep(30)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_a_model_loads_ends_the_process(number: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LOADING],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "loading\n"
        child.send_signal(number)
        _, err = child.communicate(timeout=20)
    assert child.returncode == 128 + number
    assert err == "\nstopped while loading\n"


def test_what_a_target_will_take_is_said_and_refused_before_it_is_loaded(
    invoke, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = models / "target" / "target-f16.gguf"
    about = check_gguf(target, 1024, 4)
    assert re.fullmatch(
        r"loading target-f16.gguf: about \d+ MiB \(weights \d+ MiB, "
        r"cache of 4 x 1024 ids \d+ MiB\)",
        about,
    )
    monkeypatch.setattr("outrider.runtime.hub.need.available", lambda: 200 << 20)
    result = invoke("cloud", "serve", "--model", target, "--port", "0", "--max-sessions", "64")
    assert result.status == exits.FAILED
    assert "cache of 64 x 2048 ids" in result.err
    assert "200 MiB are available: " in result.err
    assert "--max-sessions" in result.err


def test_more_than_the_default_context_must_be_asked_for(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.runtime.hub.need.DEFAULT_CTX", 512)
    about = check_gguf(models / "target" / "target-f16.gguf", 0, 2)
    assert "cache of 2 x 512 ids" in about
    assert about.endswith("the model would allow 2048 ids: --ctx-size")


def test_a_name_that_is_none_is_told_at_once(invoke) -> None:
    result = invoke("cloud", "serve", "--model", "nowhere", "--port", "0")
    assert result.status == exits.USAGE
    assert "'nowhere' is no name on the hub: give owner/repo" in result.err
    assert result.err.count("\n") == 1


def test_a_collaborator_of_another_vocabulary_is_refused_by_entry(
    invoke, models: Path, altered_pack
) -> None:
    pytest.importorskip("llama_cpp")
    pytest.importorskip("torch")  # runs the pack's weights

    def swap(content) -> None:
        vocabulary = content["model"]["vocab"]
        vocabulary["!"], vocabulary["&"] = vocabulary["&"], vocabulary["!"]

    pack = altered_pack(swap)
    for file in (models / "drafter").glob("*.safetensors"):
        (pack / file.name).write_bytes(file.read_bytes())
    args = ("cloud", "serve", "--port", "0", "--target-backend", "llama")
    result = invoke(*args, "--collaborator", f"law={pack}")
    assert (result.status, result.out) == (exits.USAGE, "")
    said = " ".join(result.err.split())
    assert f"--collaborator law={pack}: 'law' has another tokenizer than the target" in said
    assert "id 4: '!' here, '&' there; id 9: '&' here, '!' there" in said
