"""Models for these tests: the embedded drafter, and toys written on the spot."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.runtime.lm.base import CausalLM
from outrider.runtime.lm.ngram import NgramLM
from outrider.runtime.lm.scripted import ScriptedLM

DRAFTER = Path(__file__).parents[3] / "models" / "drafter"
N_CTX = 64
FORKS = 5


@pytest.fixture(scope="session")
def drafter_folder() -> Path:
    """The embedded drafter: model.onnx, a .gguf, the tokenizer."""
    return DRAFTER


@pytest.fixture(scope="session")
def drafter_gguf() -> Path:
    """Its GGUF file."""
    pytest.importorskip("llama_cpp")
    return DRAFTER / "drafter-q8_0.gguf"


@pytest.fixture(scope="session")
def toy_onnx(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float32 folder model with one layer of real attention and random weights."""
    pytest.importorskip("onnx")
    folder = tmp_path_factory.mktemp("toy-onnx")
    write_toy_onnx(folder)
    return folder


@pytest.fixture(scope="module", params=["scripted", "ngram", "onnx-toy", "onnx-int8", "llama"])
def backend(request: pytest.FixtureRequest) -> Iterator[Callable[[], CausalLM]]:
    """A maker of empty models of one backend, all with room for 64 ids; closed afterwards."""
    root, made = _root(request), []

    def make() -> CausalLM:
        lm = root.fork()
        lm.cut(0)
        made.append(lm)
        return lm

    make.kind = request.param  # type: ignore[attr-defined]
    yield make
    for lm in (*made, root):
        lm.close()


@pytest.fixture
def make(backend: Callable[[], CausalLM]) -> Iterator[Callable[[], CausalLM]]:
    """The same, with every model that a test makes closed at its end (sequences are few)."""
    made: list[CausalLM] = []

    def tracked() -> CausalLM:
        made.append(backend())
        return made[-1]

    tracked.kind = backend.kind  # type: ignore[attr-defined]
    yield tracked
    for lm in made:
        lm.close()


def _root(request: pytest.FixtureRequest) -> CausalLM:
    kind = request.param
    if kind == "scripted":
        return ScriptedLM(64, N_CTX, mode="mixed", agreement=0.5)
    if kind == "ngram":
        return NgramLM(64, N_CTX)
    if kind == "llama":
        from outrider.runtime.lm.llama_cpp import LlamaLM

        return LlamaLM.load(request.getfixturevalue("drafter_gguf"), N_CTX, FORKS)
    if importlib.util.find_spec("onnxruntime") is None:
        pytest.skip("onnxruntime is not installed")
    from outrider.runtime.lm.onnx import OnnxLM

    toy = kind == "onnx-toy"
    return OnnxLM.load(request.getfixturevalue("toy_onnx") if toy else DRAFTER, N_CTX)


@pytest.fixture(scope="session")
def write_gguf() -> Callable[..., Path]:
    """A writer of tiny GGUF files with random weights and a vocabulary of bytes."""
    return _write_gguf


def _write_gguf(path: Path, arch: str, facts: dict[str, Any], shapes: dict[str, Any]) -> Path:
    """``facts``: metadata below the architecture's name; ``shapes``: tensor name -> shape."""
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, arch)
    for key, value in facts.items():
        add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
        add(f"{arch}.{key}", value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*map(_printable, range(256)), "<|end|>"])
    writer.add_token_types([1] * 256 + [3])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(256)
    rng = np.random.default_rng(0)
    for name, shape in shapes.items():
        small = rng.standard_normal(shape).astype(np.float32) * np.float32(0.3)
        writer.add_tensor(name, small + np.float32("norm" in name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _printable(byte: int) -> str:
    plain = 0x21 <= byte < 0x7F or 0xA1 <= byte < 0xAD or byte >= 0xAE
    return chr(byte) if plain else chr(256 + byte)


def write_toy_onnx(folder: Path, vocab: int = 64, dim: int = 16, n_ctx: int = 512) -> None:
    """Queries, keys and values from embeddings of id and position; two heads; tied output."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(1)
    heads = 2
    weights = {
        "words": rng.standard_normal((vocab, heads * dim)),
        "places": rng.standard_normal((n_ctx, heads * dim)),
        "wq": rng.standard_normal((heads * dim, heads * dim)) / 6,
        "wk": rng.standard_normal((heads * dim, heads * dim)) / 6,
        "wv": rng.standard_normal((heads * dim, heads * dim)) / 6,
        "out": rng.standard_normal((heads * dim, vocab)) / 4,
    }
    constants = [numpy_helper.from_array(w.astype(np.float32), n) for n, w in weights.items()]
    constants.append(numpy_helper.from_array(np.array([0, 0, heads, dim]), "split"))
    constants.append(numpy_helper.from_array(np.array([0, 0, heads * dim]), "merge"))
    node = helper.make_node
    nodes = [
        node("Gather", ["words", "input_ids"], ["w"]),
        node("Gather", ["places", "position_ids"], ["p"]),
        node("Add", ["w", "p"], ["x"]),
    ]
    for kind in "qkv":
        nodes += [
            node("MatMul", ["x", f"w{kind}"], [f"{kind}0"]),
            node("Reshape", [f"{kind}0", "split"], [f"{kind}1"]),
            node("Transpose", [f"{kind}1"], [f"{kind}2"], perm=[0, 2, 1, 3]),
        ]
    nodes += [
        node("Concat", ["past_key_values.0.key", "k2"], ["present.0.key"], axis=2),
        node("Concat", ["past_key_values.0.value", "v2"], ["present.0.value"], axis=2),
        node("Transpose", ["present.0.key"], ["kt"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q2", "kt"], ["scores"]),
        node("Add", ["scores", "attention_bias"], ["biased"]),
        node("Softmax", ["biased"], ["weights"], axis=-1),
        node("MatMul", ["weights", "present.0.value"], ["mixed"]),
        node("Transpose", ["mixed"], ["turned"], perm=[0, 2, 1, 3]),
        node("Reshape", ["turned", "merge"], ["flat"]),
        node("MatMul", ["flat", "out"], ["logits"]),
    ]
    info, real, whole = helper.make_tensor_value_info, TensorProto.FLOAT, TensorProto.INT64
    past, grown = ["b", heads, "past", dim], ["b", heads, "total", dim]
    graph = helper.make_graph(
        nodes,
        "toy",
        [
            info("input_ids", whole, ["b", "n"]),
            info("position_ids", whole, ["b", "n"]),
            info("attention_bias", real, ["b", 1, "n", "total"]),
            info("past_key_values.0.key", real, past),
            info("past_key_values.0.value", real, past),
        ],
        [
            info("logits", real, ["b", "n", vocab]),
            info("present.0.key", real, grown),
            info("present.0.value", real, grown),
        ],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "model.onnx")
    facts = {
        "format": 1,
        "layers": 1,
        "kv_heads": heads,
        "head_dim": dim,
        "vocab_size": vocab,
        "max_position_embeddings": n_ctx,
    }
    (folder / "outrider_onnx.json").write_text(json.dumps(facts))
