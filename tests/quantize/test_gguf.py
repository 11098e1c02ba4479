"""A GGUF file computes what its checkpoint does, in every family, or is refused by name."""

from __future__ import annotations

import shutil
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from outrider.protocol.errors import BackendError, SettingError
from outrider.quantize.check import BOUND, check_f32, deviation
from outrider.quantize.checkpoint import read_checkpoint
from outrider.quantize.gguf_file import write_gguf
from outrider.quantize.gguf_quantize import QUANTIZED, check_kind, quantize_gguf
from outrider.quantize.importance import measure_importance
from outrider.runtime.lm.llama_cpp import LlamaLM

pytestmark = pytest.mark.llama
EXACT = 1e-4
WITH_GELU = ("gemma", "gemma-2", "gemma-3", "phi-2")
Toys = Callable[[str], Path]
Change = Callable[..., None]
FAMILIES = (
    "llama",
    "llama-tied",
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


def test_all_are_tried(families: list[str]) -> None:
    assert families == list(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_computes_what_transformers_does(
    family: str, toys: Toys, tmp_path: Path
) -> None:
    checkpoint = read_checkpoint(toys(family))
    write_gguf(checkpoint, tmp_path / "f32.gguf", "F32")
    worst = check_f32(checkpoint, tmp_path / "f32.gguf")
    assert worst <= (BOUND if family in WITH_GELU else EXACT)


def test_a_wrong_conversion_is_noticed(toys: Toys, tmp_path: Path) -> None:
    """The check can fail: the same file against a model with one norm changed."""
    checkpoint = read_checkpoint(toys("llama"))
    write_gguf(checkpoint, tmp_path / "f32.gguf", "F32")
    other = read_checkpoint(toys("llama-3.1"))
    with pytest.raises(BackendError, match="differs from transformers by"):
        check_f32(other, tmp_path / "f32.gguf")


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_half_precision_is_near(kind: str, toys: Toys, tmp_path: Path) -> None:
    checkpoint = read_checkpoint(toys("qwen2"))
    rows = {}
    for name in ("F32", kind):
        write_gguf(checkpoint, tmp_path / f"{name}.gguf", name)
        lm = LlamaLM.load(tmp_path / f"{name}.gguf", 64)
        rows[name] = lm.feed(list(range(4, 44)), 40)
        lm.close()
    assert 0 < deviation(rows[kind], rows["F32"]) < (0.02 if kind == "F16" else 0.15)


def test_every_quantization_loads_and_says_where_it_fell_back(
    drafter: Path, toys: Toys, tmp_path: Path
) -> None:
    """The embedded drafter is 192 wide, which K-quants cannot pack; a width of 256 they can."""
    for folder, falls in ((drafter, True), (toys("llama"), False)):
        plain = tmp_path / f"{folder.name}.gguf"
        write_gguf(read_checkpoint(folder), plain, "F32")
        for kind in QUANTIZED:
            made = quantize_gguf(plain, tmp_path / "q.gguf", kind)
            assert bool(made.fallbacks) == (falls and "_K" in kind), kind
            assert made.bytes < plain.stat().st_size / 2
            lm = LlamaLM.load(made.path, 64)
            assert np.isfinite(lm.feed([5, 6, 7])).all()
            lm.close()


def test_an_importance_matrix_lowers_the_error(drafter: Path, tmp_path: Path) -> None:
    checkpoint = read_checkpoint(drafter)
    plain = tmp_path / "f32.gguf"
    write_gguf(checkpoint, plain, "F32")
    text = (Path(__file__).parents[2] / "docs" / "glossary.md").read_text()
    weights = measure_importance(checkpoint, [text], most=2048)
    assert set(weights) >= {"blk.0.attn_q.weight", "blk.1.ffn_down.weight"}
    ids = [int(i) for i in np.random.default_rng(1).integers(4, 4096, 60)]
    wanted = _rows(plain, ids)
    errors = []
    for given in (None, weights):
        made = quantize_gguf(plain, tmp_path / "q.gguf", "Q3_K_M", importance=given)
        errors.append(float(np.square(_rows(made.path, ids) - wanted).mean()))
    assert errors[1] < errors[0]


def _rows(file: Path, ids: list[int]) -> np.ndarray:
    lm = LlamaLM.load(file, 64)
    try:
        return lm.feed(ids, len(ids))
    finally:
        lm.close()


def test_a_window_that_llama_cpp_does_not_know_cuts_the_context(toys: Toys, tmp_path: Path) -> None:
    from outrider.quantize.families import context_of
    from outrider.runtime.hub.gguf import read_header

    checkpoint = read_checkpoint(toys("mistral"))
    context, why = context_of(checkpoint)
    assert context == 128
    assert "from 512 to 128" in why
    write_gguf(checkpoint, tmp_path / "m.gguf", "F16")
    assert read_header(tmp_path / "m.gguf").number("context_length") == 128


class TestBadInput:
    def test_a_file_cut_short(self, drafter: Path) -> None:
        file = drafter / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-1000])
        with pytest.raises(BackendError, match="cut short"):
            read_checkpoint(drafter)

    def test_a_header_that_is_none(self, drafter: Path) -> None:
        (drafter / "model.safetensors").write_bytes(b"\xff" * 100)
        with pytest.raises(BackendError, match="header cannot be read"):
            read_checkpoint(drafter)

    def test_no_tokenizer(self, drafter: Path, tmp_path: Path) -> None:
        (drafter / "tokenizer.json").unlink()
        with pytest.raises(BackendError, match=r"no tokenizer\.json"):
            write_gguf(read_checkpoint(drafter), tmp_path / "x.gguf", "F16")
        assert not list(tmp_path.glob("x.gguf*"))

    def test_an_architecture_that_is_not_converted(
        self, drafter: Path, tmp_path: Path, change: Change
    ) -> None:
        change(drafter, model_type="mamba2")
        with pytest.raises(BackendError, match=r"is a mamba2; families .* qwen3, gemma"):
            write_gguf(read_checkpoint(drafter), tmp_path / "x.gguf", "F16")

    def test_more_tokens_than_rows(self, drafter: Path, tmp_path: Path, change: Change) -> None:
        change(drafter, vocab_size=4000)
        with pytest.raises(BackendError, match="4096 ids and the model rows for 4000"):
            write_gguf(read_checkpoint(drafter), tmp_path / "x.gguf", "F16")

    def test_a_tensor_that_does_not_belong(self, tmp_path: Path, toys: Toys) -> None:
        from safetensors.torch import load_file, save_file

        folder = Path(shutil.copytree(toys("llama"), tmp_path / "odd"))
        tensors = load_file(folder / "model.safetensors")
        tensors["model.layers.0.adapter.weight"] = tensors["model.norm.weight"].clone()
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        with pytest.raises(BackendError, match=r"adapter\.weight has no place in a llama model"):
            write_gguf(read_checkpoint(folder), tmp_path / "x.gguf", "F16")

    def test_no_room_on_the_disk(
        self, drafter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        usage = namedtuple("usage", "total used free")
        monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage(1 << 30, 1 << 30, 1 << 20))
        with pytest.raises(BackendError, match="the disk has 1 MiB free"):
            write_gguf(read_checkpoint(drafter), tmp_path / "x.gguf", "F32")

    def test_a_scaling_that_llama_cpp_does_not_have(
        self, drafter: Path, tmp_path: Path, change: Change
    ) -> None:
        change(drafter, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2})
        with pytest.raises(BackendError, match="rotary scaling 'dynamic'"):
            write_gguf(read_checkpoint(drafter), tmp_path / "x.gguf", "F16")

    def test_an_unknown_type(self) -> None:
        assert check_kind("q4_k_m") == "Q4_K_M"
        with pytest.raises(SettingError, match="'Q9' is not known; types are F32, F16"):
            check_kind("Q9")
