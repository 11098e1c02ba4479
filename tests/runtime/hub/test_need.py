"""The estimate of memory, from headers alone, and the refusal with its numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outrider.protocol.errors import BackendError
from outrider.runtime.hub import need
from outrider.runtime.hub.need import check_memory, estimate
from outrider.runtime.lm import factory
from outrider.runtime.lm.memory import MIB

MODELS = Path(__file__).parents[3] / "models"
DRAFTER = MODELS / "drafter"
GGUF = DRAFTER / "drafter-q8_0.gguf"


def bytes_an_id() -> int:
    """Keys and values in float32, by the pack's own account."""
    facts = json.loads((DRAFTER / "outrider_onnx.json").read_text("utf-8"))
    return int(2 * 4 * facts["layers"] * facts["kv_heads"] * facts["head_dim"])


def test_the_cache_grows_with_context_type_and_sequences() -> None:
    assert estimate(GGUF, 1024).cache == 1024 * bytes_an_id()
    assert estimate(GGUF, 1024, kv="f16").cache == 512 * bytes_an_id()
    assert estimate(GGUF, 1024, n_seq=3).cache == 3072 * bytes_an_id()


def test_no_context_is_the_models_own_and_more_than_that_is_never_used() -> None:
    assert estimate(GGUF).n_ctx == estimate(GGUF, 10**6).n_ctx == 2048


def test_an_onnx_pack() -> None:
    found = estimate(DRAFTER / "model.onnx", 1024)
    assert found.weights == (DRAFTER / "model.onnx").stat().st_size
    assert found.cache == 1024 * bytes_an_id()


@pytest.mark.parametrize("file", ["drafter-q8_0.gguf", "model.onnx"])
def test_what_does_not_fit_is_refused_with_numbers(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(need, "available", lambda: 20 * MIB)
    with pytest.raises(BackendError, match=r"needs about \d+ MiB \(weights .* 20 MiB are avail"):
        check_memory(DRAFTER / file)


def test_a_context_that_would_fit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = estimate(GGUF)
    free = whole.total - int(whole.per_id * 512) + 1
    monkeypatch.setattr(need, "available", lambda: free)
    with pytest.raises(BackendError, match=r"use a context of at most 1536 \(--ctx-size 1536\)"):
        check_memory(GGUF)
    assert check_memory(GGUF, 1536).total <= free


def test_unknown_memory_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(need, "available", lambda: None)
    check_memory(DRAFTER)


def test_without_a_wish_a_gguf_model_holds_the_default_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("llama_cpp")
    monkeypatch.setattr(need, "DEFAULT_CTX", 256)
    monkeypatch.setattr(factory, "DEFAULT_CTX", 256)
    loaded = factory.load_lm(GGUF)
    assert loaded.lm.n_ctx == estimate(GGUF).n_ctx == 256
    assert "context 256" in loaded.note
    loaded.lm.close()
    assert estimate(GGUF, 512).n_ctx == 512


def test_a_hugging_face_folder() -> None:
    found = need.estimate_folder(MODELS / "target", 1024, n_seq=2)
    weights = sum(file.stat().st_size for file in (MODELS / "target").glob("*.safetensors"))
    assert found.weights == 2 * weights  # stored in float16, computed in float32
    assert found.cache == 2 * 1024 * (2 * 4 * 2 * 64 * 4)
    half = need.estimate_folder(MODELS / "target", 1024, n_seq=2, dtype="bfloat16")
    assert (half.weights, half.cache) == (weights, found.cache // 2)
    assert need.estimate_folder(MODELS / "target").n_ctx == 2048


@pytest.mark.parametrize(("free", "fits"), [(10_000, 64), (100, 1)])
def test_how_many_fit(free: int, fits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    one = need.estimate_folder(MODELS / "target")
    monkeypatch.setattr(need, "available", lambda: free * MIB)
    assert need.fitting(one, 64) == fits


def test_as_many_as_fit_do_fit_and_one_more_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    one = need.estimate_folder(MODELS / "target")
    free = one.total + 10 * one.cache
    monkeypatch.setattr(need, "available", lambda: free)
    count = need.fitting(one, 64)
    assert count < 11
    most = need.estimate_folder(MODELS / "target", n_seq=count)
    more = need.estimate_folder(MODELS / "target", n_seq=count + 1)
    assert most.total <= need.SHARE * free < more.total
