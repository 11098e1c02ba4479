"""What to install: no text names a package that is on no registry."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
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


@pytest.mark.parametrize("package", ["gguf", "onnxscript"])
def test_a_conversion_without_its_packages_names_the_extra(package: str, tmp_path: Path) -> None:
    """In a process of its own: one that has exported before holds what it needs already."""
    code = (
        "import sys\nfrom pathlib import Path\nsys.modules[sys.argv[1]] = None\n"
        "from outrider.quantize.checkpoint import read_checkpoint\n"
        "from outrider.quantize.gguf_file import write_gguf\n"
        "from outrider.quantize.onnx_torch import export_with_torch\n"
        "checkpoint, out = read_checkpoint(Path(sys.argv[2])), Path(sys.argv[3])\n"
        "if sys.argv[1] == 'gguf': write_gguf(checkpoint, out / 'f32.gguf', 'F32')\n"
        "else: export_with_torch(checkpoint, out / 'model.onnx', 'f32')\n"
    )
    command = [sys.executable, "-c", code, package, str(ROOT / "models" / "drafter"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert re.search(rf"BackendError: .*{package}.*'\.\[quantize\]'", last)
