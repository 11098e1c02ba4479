"""What to install: no text names a package that is on no registry."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from outrider.cloud_server.targets.factory import load_target
from outrider.protocol.errors import BackendError
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
    for folder in ("benchmarks", "cli", "cloud_server", "runtime"):
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
