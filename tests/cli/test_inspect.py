"""``outrider inspect``: the facts as text and as JSON, and what is no model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outrider.cli import exits


def test_a_gguf_file(invoke: Any, models: Path) -> None:
    result = invoke("inspect", models / "drafter" / "drafter-q8_0.gguf", "--ctx-size", 1024)
    assert result.status == exits.DONE
    for words in ("llama, outrider-drafter", "Q8_0", "2,048 tokens", "pre-tokenizer gpt-2"):
        assert words in result.out
    assert "at 1,024 tokens: weights" in result.out
    assert "\x1b" not in result.out


def test_a_draft_pack(invoke: Any, models: Path) -> None:
    result = invoke("inspect", models / "drafter")
    assert "folder with 3 model files" in result.out
    assert "drafts with" in result.out


def test_json_is_one_object(invoke: Any, models: Path) -> None:
    found = invoke("inspect", models / "drafter", "--json").json
    assert [part["kind"] for part in found["models"]] == ["gguf", "onnx", "hugging face"]


def test_a_pair_shows_both(
    invoke: Any, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "outrider" / "models" / "qwen2.5-coder"
    folder.mkdir(parents=True)
    for size in ("0.5b", "1.5b"):
        place = folder / f"qwen2.5-coder-{size}-instruct-q4_k_m.gguf"
        place.write_bytes((models / "drafter" / "drafter-q8_0.gguf").read_bytes())
    result = invoke("inspect", "qwen2.5-coder")
    assert result.status == exits.DONE
    assert "a pair: drafter and target" in result.out
    assert "0.5b" in result.out
    assert "1.5b" in result.out


def test_warnings_are_shown(invoke: Any, models: Path, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes((models / "drafter" / "model.onnx").read_bytes())
    result = invoke("inspect", tmp_path / "model.onnx")
    assert "warning     outrider_onnx.json is missing" in result.out


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda f: f.write_bytes(b"PK\x03\x04"), "is not a GGUF file"),
        (lambda f: f.write_bytes(b""), "is empty"),
        (lambda f: f.mkdir(), "is no model: it has no .gguf"),
        (lambda _: None, "no such file or folder"),
    ],
)
def test_what_is_no_model(make: Any, words: str, invoke: Any, tmp_path: Path) -> None:
    place = tmp_path / "thing.gguf"
    make(place)
    result = invoke("inspect", place)
    assert result.status == exits.FAILED
    assert words in result.err
    assert result.out == ""


def test_a_file_cut_short(invoke: Any, models: Path, tmp_path: Path) -> None:
    whole = (models / "target" / "target-f16.gguf").read_bytes()
    (tmp_path / "m.gguf").write_bytes(whole[: len(whole) // 2])
    result = invoke("inspect", tmp_path / "m.gguf")
    assert result.status == exits.FAILED
    assert "cut short" in result.err


def test_a_name_that_was_not_pulled(invoke: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    result = invoke("inspect", "nobody/Nothing-GGUF:Q4_0")
    assert result.status == exits.FAILED
    assert "outrider pull nobody/Nothing-GGUF:Q4_0" in result.err
