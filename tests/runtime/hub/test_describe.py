"""What is said of a model file or folder, from headers alone."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from outrider.protocol.errors import BackendError
from outrider.runtime.hub.describe import describe

MODELS = Path(__file__).parents[3] / "models"
DRAFTER = MODELS / "drafter"


def test_a_gguf_file() -> None:
    found = describe(DRAFTER / "drafter-q8_0.gguf", 1024)
    assert found["kind"] == "gguf"
    assert found["architecture"] == "llama"
    assert found["quantization"] == "Q8_0"
    assert found["context"] == 2048
    assert found["vocabulary"] == 4096
    assert found["pre_tokenizer"] == "gpt-2"
    assert found["template"] is True
    assert found["end_tokens"] == [0]
    assert found["memory"]["n_ctx"] == 1024
    assert found["warnings"] == []


def test_a_draft_pack_lists_all_that_is_in_it() -> None:
    found = describe(DRAFTER)
    assert [part["kind"] for part in found["models"]] == ["gguf", "onnx", "hugging face"]
    assert found["tokenizer"]["vocabulary"] == 4096
    assert found["drafts_with"].startswith(("llama", "onnx"))
    hugging_face = found["models"][2]
    assert hugging_face["parameters"] == pytest.approx(found["models"][0]["parameters"], rel=0.01)
    json.dumps(found)


@pytest.fixture
def write(write_gguf: Any, tmp_path: Path) -> Any:
    """A GGUF file with these keys; the vocabulary has a proper pre-tokenizer unless told."""

    def go(**changes: Any) -> Path:
        return write_gguf(tmp_path / "m.gguf", **changes)

    return go


def test_doubts_about_the_tokenizer(write: Any) -> None:
    missing = describe(write(pre=None))["warnings"]
    assert any("does not name its pre-tokenizer" in text for text in missing)
    default = describe(write(pre="default"))["warnings"]
    assert any("names the pre-tokenizer 'default'" in text for text in default)


def test_other_doubts(write: Any) -> None:
    found = describe(write(eos=None, template=None))["warnings"]
    assert any("names no end token" in text for text in found)
    assert any("has no chat template" in text for text in found)
    recurrent = describe(write(arch="mamba", extra={"mamba.ssm.state_size": 16}))["warnings"]
    assert any("cannot be rewound" in text for text in recurrent)
    encoder = describe(write(arch="bert", extra={"bert.attention.causal": False}))["warnings"]
    assert any("is an encoder" in text for text in encoder)


def test_what_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(BackendError, match=r"no model: .* \(it holds notes.txt\)"):
        describe(tmp_path)
    with pytest.raises(BackendError, match="is not a GGUF file"):
        describe(tmp_path / "notes.txt")
    with pytest.raises(BackendError, match="no such file or folder"):
        describe(tmp_path / "missing")
    (tmp_path / "bad.onnx").write_bytes(b"not a graph at all")
    with pytest.raises(BackendError, match="is not an ONNX model"):
        describe(tmp_path / "bad.onnx")
    with pytest.raises(BackendError, match="give the folder"):
        describe(DRAFTER / "model.safetensors")


def test_an_onnx_file_without_its_facts(tmp_path: Path) -> None:
    shutil.copy(DRAFTER / "model.onnx", tmp_path)
    assert "cannot be loaded" in describe(tmp_path / "model.onnx")["warnings"][0]


def test_a_hugging_face_folder_with_a_part_missing_or_cut(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        shutil.copy(DRAFTER / name, tmp_path)
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "weights missing: model-2.safetensors" in describe(tmp_path)["models"][0]["warnings"]
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:-1])
    with pytest.raises(BackendError, match="cut short: .* get the file again"):
        describe(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 40))
    with pytest.raises(BackendError, match="is broken or cut short"):
        describe(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(BackendError, match=r"cannot read .*config.json"):
        describe(tmp_path)
