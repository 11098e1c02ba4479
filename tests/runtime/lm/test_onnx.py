"""ONNX Runtime: files that do not fit, forks that share, the probe in a child process."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.protocol.errors import BackendError, SettingError

pytest.importorskip("onnxruntime")

from outrider.runtime.lm import onnx as backend
from outrider.runtime.lm.factory import load_lm
from outrider.runtime.lm.onnx import OnnxLM, causal_bias, probe


@pytest.fixture
def folder(toy_onnx: Path, tmp_path: Path) -> Path:
    """A copy of the toy to damage."""
    return Path(shutil.copytree(toy_onnx, tmp_path / "pack"))


def change(folder: Path, **facts: object) -> None:
    file = folder / "outrider_onnx.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | facts))


def test_the_mask_hides_what_comes_later() -> None:
    bias = causal_bias(3, 2)
    assert bias.shape == (1, 1, 3, 5)
    assert ((bias[0, 0] == 0) == np.tri(3, 5, 2, dtype=bool)).all()
    assert (causal_bias(1, 4) == 0).all()


def test_context_and_providers_are_reported(folder: Path) -> None:
    assert OnnxLM.load(folder).n_ctx == 512
    assert OnnxLM.load(folder / "model.onnx", 10**6).n_ctx == 512
    lm = OnnxLM.load(folder, 32)
    assert lm.n_ctx == 32
    assert lm.providers == ["CPUExecutionProvider"]


def test_the_embedded_drafter_loads(drafter_folder: Path) -> None:
    lm = OnnxLM.load(drafter_folder)
    rows = lm.feed([3, 40, 50], 3)
    assert rows.shape == (3, 4096)
    assert np.isfinite(rows).all()


def test_a_long_feed_is_chunked_without_a_trace(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [int(i) for i in np.random.default_rng(0).integers(0, 64, 50)]
    whole = OnnxLM.load(folder).feed(ids, 50)
    monkeypatch.setattr(backend, "_CHUNK_IDS", 8)
    for rows in (0, 1, 2, 3, 9, 49, 50):
        part = OnnxLM.load(folder).feed(ids, rows)
        assert rows == 0 or np.abs(part - whole[-rows:]).max() < 1e-4


def test_a_failed_run_leaves_the_sequence_as_it_was(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "_CHUNK_IDS", 4)
    lm, fresh = OnnxLM.load(folder), OnnxLM.load(folder)
    for model in (lm, fresh):
        model.feed([1, 2, 3, 4, 5], 0)
    real, calls = lm.graph.run, []

    def failing(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:
            raise BackendError("the board is on fire")
        return real(*args)

    lm.cut(3)
    monkeypatch.setattr(lm.graph, "run", failing)
    with pytest.raises(BackendError, match="fire"):
        lm.feed([7] * 6)
    assert list(lm.ids) == [1, 2, 3]
    fresh.cut(3)
    assert np.abs(lm.feed([9], 1) - fresh.feed([9], 1)).max() < 1e-5


def test_a_missing_model_or_its_facts(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"no such file: .*nowhere"):
        OnnxLM.load(tmp_path / "nowhere")
    (folder / "outrider_onnx.json").unlink()
    with pytest.raises(BackendError, match=r"no such file: .*outrider_onnx\.json"):
        OnnxLM.load(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', '{"format": "one"}'])
def test_broken_facts(folder: Path, text: str) -> None:
    (folder / "outrider_onnx.json").write_text(text)
    with pytest.raises(BackendError, match=r"cannot read .*outrider_onnx\.json"):
        OnnxLM.load(folder)


def test_facts_of_another_version(folder: Path) -> None:
    change(folder, format=2)
    with pytest.raises(BackendError, match=r"format 2; .* reads format 1"):
        OnnxLM.load(folder)
    change(folder, format=1, layers=0)
    with pytest.raises(BackendError, match="less than 1"):
        OnnxLM.load(folder)


@pytest.mark.parametrize("keep", [0, 100, 5000])
def test_a_model_cut_short(folder: Path, keep: int) -> None:
    file = folder / "model.onnx"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(BackendError, match=r"cannot load .*model\.onnx|not a model exported"):
        OnnxLM.load(folder)


@pytest.mark.parametrize(
    ("facts", "complaint"),
    [
        ({"layers": 2}, r"inputs missing: past_key_values\.1\.key"),
        ({"vocab_size": 65}, r"logits has sizes \[64\], .* says \[65\]"),
        ({"head_dim": 8}, r"past_key_values\.0\.key has sizes \[2, 16\]"),
    ],
)
def test_a_model_that_its_facts_do_not_describe(
    folder: Path, facts: dict[str, int], complaint: str
) -> None:
    change(folder, **facts)
    with pytest.raises(BackendError, match=complaint):
        OnnxLM.load(folder)


@pytest.mark.parametrize("setting", [{"threads": 0}, {"n_ctx": -1}])
def test_settings_out_of_range(folder: Path, setting: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=next(iter(setting))):
        OnnxLM.load(folder, **setting)


def test_without_the_provider_it_was_built_for_it_says_so(folder: Path) -> None:
    assert load_lm(folder, "onnx").note == "onnx: it was asked for"
    change(folder, provider="cuda")
    loaded = load_lm(folder, "onnx")
    assert loaded.lm.providers == ["CPUExecutionProvider"]
    assert (
        "built for cuda, but this ONNX Runtime does not have CUDAExecutionProvider" in loaded.note
    )
    change(folder, provider="abacus")
    with pytest.raises(BackendError, match="provider 'abacus'; it must be one of cpu, cuda"):
        OnnxLM.load(folder)


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    backend._runtime.cache_clear()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(BackendError, match=r"\.\[edge\]"):
        OnnxLM.load(folder)


def test_the_probe_finds_the_real_one() -> None:
    found = probe()
    assert found.ok, found.detail
    assert found.version in found.detail


@pytest.mark.parametrize(
    ("body", "ok", "complaint"),
    [
        ("__version__ = '2.0'", True, "2.0"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", False, "illegal instruction"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", False, "signal 11"),
        ("raise OSError('GLIBC too old')", False, "GLIBC too old"),
        ("__version__ = '1.21.1'", False, "known to crash"),
        ("import time; time.sleep(30)", False, "longer than"),
    ],
)
def test_the_probe_survives_a_bad_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, ok: bool, complaint: str
) -> None:
    (tmp_path / "badruntime.py").write_text(body)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = probe("badruntime", timeout=2.0)
    assert found.ok is ok
    assert complaint in found.detail
