"""``outrider cloud serve --draft-model``: a drafter beside the target."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from outrider.cli import exits

PROMPT = "In the beginning God created the heaven and the earth."


def ask(process, cloud) -> dict:
    """An answer of the cloud alone: this edge does not draft."""
    return process(
        "run", PROMPT, "--cloud", cloud.url, "-n", "60", "--ignore-eos", "--draft", "off", "--json"
    ).json


def test_the_same_text(start_cloud, process, llama_cloud, models: Path) -> None:
    beside = start_cloud(
        "--target-backend", "llama", "-md", models / "drafter" / "drafter-q8_0.gguf",
        "--draft-max", "8", "--lookup", "0", "--objective", "balanced",
    )  # fmt: skip
    assert beside.ready["draft_model"]
    assert beside.ready["objective"] == "balanced"
    deadline = time.monotonic() + 10
    while "ready: " not in (said := "".join(beside.errors)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "up to 8 at a time; objective up to balanced" in said
    alone, helped = ask(process, llama_cloud), ask(process, beside)
    assert helped["text"] == alone["text"]
    # How much it is used depends on how quick both happen to be on this machine.
    assert helped["target_passes_per_token"] < 1
    assert helped["drafted"] == 0  # that counts the edge's


def test_without_one_nothing_is_said_of_it(llama_cloud) -> None:
    assert llama_cloud.ready["draft_model"] is None
    assert llama_cloud.ready["objective"] == "latency"


def test_another_tokenizer_is_refused(invoke, altered_pack) -> None:
    pytest.importorskip("llama_cpp")

    def swap(content: dict) -> None:
        vocabulary = content["model"]["vocab"]
        first, second = [t for t, i in vocabulary.items() if i in (300, 301)]
        vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]

    pack = altered_pack(swap)
    result = invoke("cloud", "serve", "--port", "0", "--target-backend", "llama", "-md", pack)
    assert result.status == exits.USAGE
    assert "another tokenizer" in result.err
    assert "id 300: " in result.err
    assert "Traceback" not in result.err


def test_a_draft_model_that_is_not_there(invoke) -> None:
    pytest.importorskip("llama_cpp")
    result = invoke(
        "cloud", "serve", "--port", "0", "--target-backend", "llama", "-md", "/nonexistent"
    )
    assert result.status in (exits.FAILED, exits.USAGE)
    assert "no such file or folder" in result.err
