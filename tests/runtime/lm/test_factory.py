"""Which backend a path and the settings lead to, and what is said about it."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from outrider.protocol.errors import BackendError, SettingError
from outrider.runtime.lm.base import Rows
from outrider.runtime.lm.factory import choose, load_lm
from outrider.runtime.lm.scripted import ScriptedLM
from outrider.runtime.lm.selfcheck import check_rewind


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    for name in ("model.onnx", "drafter.gguf"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.fixture
def no_llama(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "llama_cpp" else real(name)
    )


def test_auto_prefers_llama_cpp_where_it_can(pack: Path) -> None:
    pytest.importorskip("llama_cpp")
    file, kind, note = choose(pack)
    assert (file.name, kind) == ("drafter.gguf", "llama")
    assert "drafter.gguf" in note


@pytest.mark.usefixtures("no_llama")
def test_auto_falls_back_to_onnx(pack: Path) -> None:
    assert choose(pack) == (pack / "model.onnx", "onnx", "onnx: llama.cpp is not installed")
    (pack / "model.onnx").unlink()
    assert choose(pack)[1] == "llama"  # the only file there: loading it names the extra


def test_a_folder_with_one_kind(pack: Path) -> None:
    (pack / "drafter.gguf").unlink()
    assert choose(pack)[1:] == ("onnx", "onnx: the folder has no .gguf file")
    with pytest.raises(SettingError, match=r"no \.gguf"):
        choose(pack, "llama")
    (pack / "model.onnx").unlink()
    with pytest.raises(BackendError, match=r"neither model\.onnx nor"):
        choose(pack)


def test_the_backend_that_was_asked_for(pack: Path) -> None:
    assert choose(pack, "onnx")[0].name == "model.onnx"
    assert choose(pack, "llama")[0].name == "drafter.gguf"
    assert choose(pack / "drafter.gguf", "llama")[1] == "llama"
    assert choose(pack / "model.onnx")[1] == "onnx"


@pytest.mark.parametrize(
    ("name", "backend", "complaint"),
    [
        ("drafter.gguf", "onnx", "a file for 'llama'"),
        ("model.onnx", "llama", "a file for 'onnx'"),
        ("", "tpu", "one of auto, onnx, llama"),
    ],
)
def test_contradictions(pack: Path, name: str, backend: str, complaint: str) -> None:
    with pytest.raises(SettingError, match=complaint):
        choose(pack / name, backend)


def test_several_ggufs_are_not_guessed_among(pack: Path) -> None:
    (pack / "target.gguf").touch()
    with pytest.raises(SettingError, match=r"drafter\.gguf, target\.gguf"):
        choose(pack, "llama")


def test_other_paths(pack: Path) -> None:
    (pack / "model.bin").touch()
    with pytest.raises(BackendError, match="neither a"):
        choose(pack / "model.bin")
    with pytest.raises(BackendError, match="no such file or folder"):
        choose(pack / "absent")


@pytest.mark.parametrize("backend", ["onnx", "llama"])
def test_the_embedded_drafter_loads_on_both(drafter_folder: Path, backend: str) -> None:
    pytest.importorskip({"onnx": "onnxruntime", "llama": "llama_cpp"}[backend])
    loaded = load_lm(drafter_folder, backend, n_ctx=64)
    assert loaded.backend == backend
    assert (loaded.lm.n_ctx, loaded.lm.row_width) == (64, 4096)
    assert loaded.note == f"{backend}: it was asked for"
    assert list(loaded.lm.ids) == []
    loaded.lm.close()


def test_both_backends_of_the_embedded_drafter_agree(drafter_folder: Path) -> None:
    for module in ("onnxruntime", "llama_cpp"):
        pytest.importorskip(module)
    ids = [int(i) for i in np.random.default_rng(0).integers(4, 4000, 40)]
    rows = []
    for backend in ("onnx", "llama"):
        lm = load_lm(drafter_folder, backend).lm
        rows.append(lm.feed(ids, 40))
        lm.close()
    p, q = (np.exp(row) / np.exp(row).sum(axis=1, keepdims=True) for row in rows)
    assert np.minimum(p, q).sum(axis=1).mean() > 0.97  # int8 here, Q8_0 there


def test_settings_of_the_other_backend_are_refused(drafter_folder: Path) -> None:
    for setting in ({"kv": "f16"}, {"gpu_layers": 3}):
        with pytest.raises(SettingError, match=next(iter(setting))):
            load_lm(drafter_folder, "onnx", **setting)  # type: ignore[arg-type]


class Forgetful(ScriptedLM):
    """Says that it has rewound and goes on from where it was."""

    def cut(self, length: int) -> None:
        self.lost = len(self.ids) > length > 0
        super().cut(length)

    def feed(self, ids: Sequence[int], rows: int = 1) -> Rows:
        return super().feed(ids, rows) + np.float32(getattr(self, "lost", False))


class Broken(ScriptedLM):
    """Weights that came out of a damaged file."""

    def feed(self, ids: Sequence[int], rows: int = 1) -> Rows:
        return super().feed(ids, rows) * np.float32(np.nan)


def test_a_cache_that_does_not_rewind_is_found_out() -> None:
    check_rewind(ScriptedLM())
    with pytest.raises(BackendError, match="does not rewind"):
        check_rewind(Forgetful())


def test_broken_weights_are_found_out() -> None:
    with pytest.raises(BackendError, match="not finite"):
        check_rewind(Broken())
