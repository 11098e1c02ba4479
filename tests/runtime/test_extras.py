"""What to install: no text names a package that is on no registry."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from outrider.cloud_server.targets.factory import load_target
from outrider.protocol.errors import BackendError
from outrider.quantize.checkpoint import read_checkpoint
from outrider.quantize.gguf_file import write_gguf
from outrider.quantize.onnx_torch import export_with_torch
from outrider.runtime.extras import hint

ROOT = Path(__file__).parents[2]


def test_every_hint_goes_through_the_one_place() -> None:
    folders = ("benchmarks", "cli", "cloud_server", "edge_client", "quantize", "runtime")
    for file in (file for folder in folders for file in (ROOT / folder).rglob("*.py")):
        text = file.read_text("utf-8")
        assert not re.search(r"""pip install '?"?outrider""", text), file
        assert not re.search(r"outrider\[", text), file


def test_every_extra_that_is_named_exists() -> None:
    extras = (ROOT / "pyproject.toml").read_text("utf-8")
    for folder in ("benchmarks", "cli", "cloud_server", "quantize", "runtime"):
        for file in (ROOT / folder).rglob("*.py"):
            for name in re.findall(r"hint\(['\"]([a-z-]+)['\"]\)", file.read_text("utf-8")):
                assert re.search(rf"^{name} = \[", extras, re.MULTILINE), (file, name)
    assert hint("cloud") == "pip install '.[cloud]' in Outrider's folder"


def test_a_target_without_llama_cpp_names_what_a_cloud_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(BackendError, match=r"'\.\[cloud-llama\]'.*transformers") as refused:
        load_target("some.gguf")
    assert "ONNX" not in str(refused.value)


def test_a_conversion_without_its_packages_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checkpoint = read_checkpoint(ROOT / "models" / "drafter")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(BackendError, match=r"gguf.*'\.\[quantize\]'"):
        write_gguf(checkpoint, tmp_path / "f32.gguf", "F32")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(BackendError, match=r"onnxscript.*'\.\[quantize\]'"):
        export_with_torch(checkpoint, tmp_path / "model.onnx", "f32")
