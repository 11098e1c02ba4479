"""llama.cpp: ragged passes, failures, files that do not load, caches that cannot be rewound."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.protocol.errors import BackendError, SettingError

pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.llama

from outrider.runtime.lm import llama_library  # noqa: E402
from outrider.runtime.lm.llama_cpp import LlamaLM, LlamaModel  # noqa: E402

MAMBA = {
    "context_length": 64,
    "embedding_length": 32,
    "block_count": 1,
    "feed_forward_length": 0,
    "attention.head_count": 0,
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 64,
    "ssm.state_size": 8,
    "ssm.time_step_rank": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
}
MAMBA_SHAPES = {
    "token_embd.weight": (257, 32),
    "output_norm.weight": (32,),
    "blk.0.attn_norm.weight": (32,),
    "blk.0.ssm_in.weight": (128, 32),
    "blk.0.ssm_conv1d.weight": (64, 4),
    "blk.0.ssm_conv1d.bias": (64,),
    "blk.0.ssm_x.weight": (18, 64),
    "blk.0.ssm_dt.weight": (64, 2),
    "blk.0.ssm_dt.bias": (64,),
    "blk.0.ssm_a": (64, 8),
    "blk.0.ssm_d": (64,),
    "blk.0.ssm_out.weight": (32, 64),
}
WINDOW = 8
GEMMA = {
    "context_length": 1024,
    "embedding_length": 32,
    "block_count": 2,
    "feed_forward_length": 64,
    "attention.head_count": 2,
    "attention.head_count_kv": 1,
    "attention.key_length": 16,
    "attention.value_length": 16,
    "attention.sliding_window": WINDOW,
    "attention.layer_norm_rms_epsilon": 1e-5,
}
GEMMA_SHAPES = {
    "token_embd.weight": (257, 32),
    "output_norm.weight": (32,),
} | {
    f"blk.{i}.{name}.weight": shape
    for i in range(2)
    for name, shape in {
        "attn_norm": (32,),
        "attn_q": (32, 32),
        "attn_k": (16, 32),
        "attn_v": (16, 32),
        "attn_q_norm": (16,),
        "attn_k_norm": (16,),
        "attn_output": (32, 32),
        "post_attention_norm": (32,),
        "ffn_norm": (32,),
        "ffn_gate": (64, 32),
        "ffn_up": (64, 32),
        "ffn_down": (32, 64),
        "post_ffw_norm": (32,),
    }.items()
}


@pytest.fixture
def model(drafter_gguf: Path) -> Iterator[LlamaModel]:
    made = LlamaModel.load(drafter_gguf, 96, 4, n_batch=16)
    yield made
    made.close()


def some_ids(n: int, seed: int) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(4, 4000, n)]


def test_facts_are_echoed_back(model: LlamaModel) -> None:
    assert (model.n_ctx, model.n_seq) == (96, 4)
    assert model.row_width == model.usable == 4096
    assert 0 in model.eos


def test_the_trained_context_is_the_default_and_the_most(drafter_gguf: Path) -> None:
    for asked in (0, 10**6):
        made = LlamaModel.load(drafter_gguf, asked)
        assert made.n_ctx == 2048
        made.close()


def test_a_ragged_pass_equals_separate_passes(model: LlamaModel) -> None:
    items = [(2, some_ids(5, 1), 5), (0, some_ids(23, 2), 2), (3, some_ids(1, 3), 1)]
    together = model.forward(items)  # 29 tokens in batches of 16
    assert [len(rows) for rows in together] == [5, 2, 1]
    for seq, _, _ in items:
        model.cut(seq, 0)
    for rows, (_, ids, n) in zip(together, items, strict=True):
        alone = model.forward([(1, ids, n)])[0]
        model.cut(1, 0)
        assert np.abs(rows - alone).max() < 1e-3


def test_rows_of_sequences_that_differ_in_length(model: LlamaModel) -> None:
    model.forward([(0, some_ids(30, 4), 0), (1, some_ids(3, 5), 0)])
    both = model.forward([(0, [7, 8], 2), (1, [9], 1)])
    assert [model.length(seq) for seq in range(4)] == [32, 4, 0, 0]
    model.cut(0, 30)
    assert np.abs(model.forward([(0, [7, 8], 2)])[0] - both[0]).max() < 1e-3


def test_copy_overwrites_and_leaves_the_source(model: LlamaModel) -> None:
    start = some_ids(12, 6)
    model.forward([(0, start, 0), (1, some_ids(20, 7), 0)])
    model.copy(0, 1)
    assert list(model.ids(1)) == start
    model.cut(0, 4)  # before the library has really copied anything
    model.forward([(0, some_ids(8, 8), 0)])
    model.forward([(2, start, 0)])
    ours, theirs = model.forward([(1, [5, 6], 2), (2, [5, 6], 2)])
    assert np.abs(ours - theirs).max() < 1e-4
    with pytest.raises(BackendError, match="onto itself"):
        model.copy(1, 1)
    assert model.length(1) == 14


def test_bad_items_are_refused_and_nothing_changes(model: LlamaModel) -> None:
    model.forward([(0, [5], 0)])
    for items in (
        [(0, [6], 1), (0, [7], 1)],
        [(0, [6], 1), (4, [7], 1)],
        [(0, [6], 1), (-1, [7], 1)],
        [(0, [6], 1), (1, some_ids(97, 1), 1)],
        [(0, [6], 1), (1, [4096], 1)],
    ):
        with pytest.raises(BackendError):
            model.forward(items)
        assert [model.length(seq) for seq in range(4)] == [1, 0, 0, 0]
    assert model.forward([]) == []


def test_a_failed_decode_restores_every_sequence(
    model: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.forward([(0, some_ids(10, 1), 0), (1, some_ids(4, 2), 0)])
    api, calls = llama_library.library(), []
    real = api.llama_decode

    def failing(context: Any, batch: Any) -> int:
        calls.append(batch.n_tokens)
        return real(context, batch) if len(calls) == 1 else -3

    monkeypatch.setattr(api, "llama_decode", failing)
    with pytest.raises(BackendError, match=r"20 ids into sequence 0.*\(-3\)"):
        model.forward([(0, some_ids(20, 3), 1), (1, some_ids(3, 4), 1)])
    monkeypatch.undo()
    assert calls == [16, 7]
    assert [model.length(seq) for seq in (0, 1)] == [10, 4]
    model.forward([(2, some_ids(10, 1), 0)])
    ours, fresh = model.forward([(0, [5], 1), (2, [5], 1)])
    assert np.abs(ours - fresh).max() < 1e-4


def test_a_refused_batch_is_explained_in_llama_cpps_words(model: LlamaModel) -> None:
    model.forward([(0, [5], 0)])
    model._ids[0] = [5, 6, 7]  # which its cache does not hold: a gap in the positions
    with pytest.raises(BackendError, match=r"the batch was refused \(-1\): .*position"):
        model.forward([(0, [8], 1)])


@pytest.mark.parametrize("kv", ["f32", "f16", "q8_0"])
def test_cache_types_differ_little(drafter_gguf: Path, model: LlamaModel, kv: str) -> None:
    ids = some_ids(40, 9)
    other = LlamaModel.load(drafter_gguf, 96, kv=kv)
    difference = np.abs(other.forward([(0, ids, 40)])[0] - model.forward([(0, ids, 40)])[0])
    other.close()
    assert difference.max() < (1e-3 if kv == "f32" else 0.5)


def test_views_take_sequences_and_the_last_frees_the_model(drafter_gguf: Path) -> None:
    lm = LlamaLM.load(drafter_gguf, 64, 2)
    lm.feed([4, 5, 6])
    twin = lm.fork()
    with pytest.raises(BackendError, match=r"all 2 sequences .* larger n_seq"):
        lm.fork()
    lm.close()
    assert not twin.model.closed
    third = twin.fork()
    assert list(third.ids) == [4, 5, 6]
    twin.close()
    third.close()
    assert third.model.closed


def test_a_closed_model_says_so(model: LlamaModel) -> None:
    lm = LlamaLM(model)
    model.close()
    model.close()
    for use in (
        lambda: model.forward([(0, [1], 1)]),
        lambda: model.cut(0, 0),
        lambda: model.copy(0, 1),
        lambda: LlamaLM(model),
        lambda: lm.feed([1]),
    ):
        with pytest.raises(BackendError, match="closed"):
            use()
    lm.close()


@pytest.mark.parametrize(
    "setting", [{"n_seq": 0}, {"threads": 0}, {"n_batch": 0}, {"n_ctx": -1}, {"kv": "q2"}]
)
def test_settings_out_of_range(drafter_gguf: Path, setting: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=next(iter(setting))):
        LlamaModel.load(drafter_gguf, **setting)


def test_too_many_sequences_are_refused_in_llama_cpps_words(drafter_gguf: Path) -> None:
    with pytest.raises(BackendError, match=r"300 x 64 ids .*n_seq_max"):
        LlamaModel.load(drafter_gguf, 64, 300)


@pytest.mark.parametrize("keep", [4, 30, 20_000, 800_000])
def test_a_file_cut_short_is_refused_with_a_reason(
    drafter_gguf: Path, tmp_path: Path, keep: int
) -> None:
    file = tmp_path / "short.gguf"
    file.write_bytes(drafter_gguf.read_bytes()[:keep])
    with pytest.raises(BackendError, match=r"short\.gguf: .*(failed to read|corrupted)"):
        LlamaModel.load(file)


def test_what_is_not_a_gguf_file(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="no such file"):
        LlamaModel.load(tmp_path / "absent.gguf")
    with pytest.raises(BackendError, match="folder"):
        LlamaModel.load(tmp_path)
    (tmp_path / "text.gguf").write_text('{"not": "weights"}')
    with pytest.raises(BackendError, match="not a GGUF file"):
        LlamaModel.load(tmp_path / "text.gguf")


def test_an_unknown_architecture_is_named(write_gguf: Callable[..., Path], tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "odd.gguf", "carriage", {"context_length": 64}, {})
    with pytest.raises(BackendError, match="unknown model architecture: 'carriage'"):
        LlamaModel.load(file)


def test_a_recurrent_model_is_refused(write_gguf: Callable[..., Path], tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "mamba.gguf", "mamba", MAMBA, MAMBA_SHAPES)
    with pytest.raises(BackendError, match="recurrent state, which cannot be rewound"):
        LlamaModel.load(file)


def test_a_sliding_window_can_be_rewound_past_the_window(
    write_gguf: Callable[..., Path], tmp_path: Path
) -> None:
    file = write_gguf(tmp_path / "gemma.gguf", "gemma3", GEMMA, GEMMA_SHAPES)
    model = LlamaModel.load(file, 1024, 2, n_batch=16)  # small batches: a windowed cache is small
    assert llama_library.library().llama_model_n_swa(model._weights.handle) == WINDOW
    start, wrong, right = (
        [int(i) for i in np.random.default_rng(seed).integers(0, 256, n)]
        for seed, n in ((1, 100), (2, 600), (3, 6))
    )
    model.forward([(0, start, 0)])
    model.forward([(0, wrong, 0)])
    model.cut(0, 50)
    model.forward([(1, start[:50], 0)])
    ours, fresh = model.forward([(0, right, 6), (1, right, 6)])
    model.close()
    assert np.abs(ours - fresh).max() < 1e-4


def test_a_missing_library_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, drafter_gguf: Path
) -> None:
    llama_library.library.cache_clear()
    for name in [n for n in sys.modules if n.split(".")[0] == "llama_cpp"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(BackendError, match=r"\.\[edge-llama\]"):
        LlamaModel.load(drafter_gguf)


def test_nothing_is_printed(drafter_gguf: Path, capfd: pytest.CaptureFixture[str]) -> None:
    LlamaModel.load(drafter_gguf, 64).close()
    with pytest.raises(BackendError):
        LlamaModel.load(drafter_gguf, 64, 300)
    assert capfd.readouterr() == ("", "")
