"""ONNX drafters by either way: the same rows as the checkpoint, rewound and forked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from outrider.protocol.errors import BackendError, SettingError
from outrider.quantize.check import BOUND, check_f32
from outrider.quantize.checkpoint import read_checkpoint
from outrider.quantize.onnx_export import export_onnx
from outrider.runtime.lm.onnx import OnnxLM

Toys = Callable[[str], Path]
ALL = (
    "llama",
    "llama-3.1",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma-2",
    "gemma-3",
    "smollm3",
    "phi-2",
    "phi-3",
)


@pytest.mark.slow
@pytest.mark.parametrize("family", ALL)
def test_every_family(family: str, toys: Toys, tmp_path: Path) -> None:
    """By the builder where it can, else by torch; the export itself compares with transformers."""
    checkpoint = read_checkpoint(toys(family))
    made = export_onnx(checkpoint, tmp_path, "f32")
    assert made.by == "builder" or made.why
    assert check_f32(checkpoint, tmp_path / "model.onnx") <= BOUND


@pytest.fixture(scope="module")
def built(toys: Toys, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("built")
    assert export_onnx(read_checkpoint(toys("qwen2")), out, "f32", by="builder").by == "builder"
    return out


@pytest.mark.slow
def test_a_graph_for_another_provider_still_runs_here(toys: Toys, tmp_path: Path) -> None:
    export_onnx(read_checkpoint(toys("llama")), tmp_path, "int8", provider="cuda", by="builder")
    lm = OnnxLM.load(tmp_path, 16)
    assert "built for cuda" in lm.note  # with keys and values of half precision
    assert np.isfinite(lm.feed([1, 2, 3], 3)).all()
    lm.cut(1)
    assert lm.feed([2], 1).dtype == np.float32


def test_torch_exports_mixed_windows(toys: Toys, tmp_path: Path) -> None:
    made = export_onnx(read_checkpoint(toys("gemma-2")), tmp_path, "f32", by="torch")
    assert (made.by, made.why) == ("torch", "it was asked for")


def test_a_graph_with_one_buffer_is_cut_and_forked(built: Path) -> None:
    lm = OnnxLM.load(built, 64)
    ids = [int(i) for i in np.random.default_rng(3).integers(4, 4096, 40)]
    rows = lm.feed(ids, 40)
    lm.cut(20)
    twin = lm.fork()
    twin.feed([7, 8, 9])  # does not touch what the other holds
    np.testing.assert_allclose(lm.feed(ids[20:], 20), rows[20:], atol=1e-5)
    assert list(twin.ids) == [*ids[:20], 7, 8, 9]
    with pytest.raises(BackendError, match="do not fit"):
        lm.feed([5] * 25)
    np.testing.assert_allclose(lm.feed([5]), lm_row(built, [*ids, 5]), atol=1e-5)


def lm_row(folder: Path, ids: list[int]) -> np.ndarray:
    return OnnxLM.load(folder, 64).feed(ids)


@pytest.mark.slow
def test_a_failed_export_leaves_nothing(toys: Toys, tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="builder does not make it"):
        export_onnx(read_checkpoint(toys("phi-3")), tmp_path, "f32", by="builder")
    assert not list(tmp_path.iterdir())


def test_an_unknown_precision(toys: Toys, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="'int3' is not one of f32, int8, int4"):
        export_onnx(read_checkpoint(toys("llama")), tmp_path, "int3")


def test_an_unknown_provider(toys: Toys, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="provider 'abacus' is not one of cpu, cuda"):
        export_onnx(read_checkpoint(toys("llama")), tmp_path, "int8", provider="abacus")
