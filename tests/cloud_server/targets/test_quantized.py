"""Quantized checkpoints and device maps, as far as a CPU can run them."""

from __future__ import annotations

import json
import logging

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from outrider.cloud_server.targets import quantized  # noqa: E402
from outrider.cloud_server.targets.base import Row  # noqa: E402
from outrider.cloud_server.targets.transformers import TransformersTarget  # noqa: E402
from outrider.protocol.decoding.sampling import Sampling  # noqa: E402
from outrider.protocol.errors import BackendError  # noqa: E402

WIDE = {"hidden_size": 128, "intermediate_size": 256}
ROWS = [
    Row(0, 0, [5, 9, 30, 11, 7, 4, 8], 5, Sampling(), 1),
    Row(1, 0, [40, 41, 42], 2, Sampling(), 1),
]


def mark(folder, **settings):
    file = folder / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {"quantization_config": settings}))


@pytest.mark.parametrize(
    ("name", "missing", "says"),
    [
        ("awq", ["gptqmodel"], "awq, for which transformers needs gptqmodel: pip install gptqm"),
        ("gptq", ["optimum", "gptqmodel"], "needs optimum and gptqmodel: pip install optimum gp"),
        ("fp8", ["accelerate"], "needs accelerate"),
        ("bitsandbytes", ["bitsandbytes", "accelerate"], "needs accelerate and bitsandbytes"),
        ("compressed-tensors", ["compressed_tensors"], "pip install compressed-tensors"),
        ("nonsense", [], "quantized with nonsense, which transformers does not know"),
    ],
)
def test_what_is_missing_is_named(toy_copy, monkeypatch, name, missing, says):
    mark(toy_copy, quant_method=name, bits=4)
    monkeypatch.setattr(
        quantized.importlib.util, "find_spec", lambda need: None if need in missing else object()
    )
    with pytest.raises(BackendError, match=says) as caught:
        TransformersTarget.load(str(toy_copy))
    assert "\n" not in str(caught.value)


def alike(a, b):
    return all(x.ids == y.ids for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("settings", [{"load_in_4bit": True}, {"load_in_8bit": True}])
def test_bitsandbytes(toy_factory, tmp_path, settings):
    """Really loaded: batched and one by one it is the same model."""
    pytest.importorskip("bitsandbytes")
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    small = transformers.AutoModelForCausalLM.from_pretrained(
        toy_factory("Llama", **WIDE),
        quantization_config=transformers.BitsAndBytesConfig(**settings),
        device_map={"": "cpu"},
    )
    small.save_pretrained(tmp_path)
    target = TransformersTarget.load(str(tmp_path), slots=2)
    assert isinstance(target, TransformersTarget)
    assert target.info.dtype == "float32, bitsandbytes"
    oracle = TransformersTarget.load(str(tmp_path), slots=2, batched=False)
    assert alike(target.forward(ROWS), oracle.forward(ROWS))


def test_fp8(toy_factory):
    """On a CPU transformers turns it back into wide numbers, so the scales are really used."""
    pytest.importorskip("accelerate")
    from safetensors.torch import load_file, save_file

    folder = toy_factory("Llama", **WIDE)
    exact = TransformersTarget.load(str(folder), slots=2)._logits(ROWS)
    weights = load_file(folder / "model.safetensors")
    for name in [name for name in weights if name.endswith("proj.weight")]:
        rows, columns = weights[name].shape
        blocks = weights[name].view(-(-rows // 128), min(rows, 128), columns // 128, 128)
        scale = blocks.abs().amax((1, 3), keepdim=True) / 448
        weights[name] = (blocks / scale).view(rows, columns).to(torch.float8_e4m3fn)
        weights[f"{name}_scale_inv"] = scale[:, 0, :, 0].contiguous()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    mark(folder, quant_method="fp8", activation_scheme="dynamic", weight_block_size=[128, 128])
    target = TransformersTarget.load(str(folder), slots=2)
    assert target.info.dtype == "float32, fp8"
    logits = target._logits(ROWS)
    for a, b in zip(logits, exact, strict=True):
        assert torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1] > 0.9


def test_a_device_map(toy):
    pytest.importorskip("accelerate")
    plain = TransformersTarget.load(str(toy), slots=2)
    spread = TransformersTarget.load(str(toy), slots=2, device_map="auto")
    assert spread.info.device == "cpu"
    assert alike(spread.forward(ROWS), plain.forward(ROWS))
    with pytest.raises(BackendError, match="unknown device map 'sideways'"):
        TransformersTarget.load(str(toy), device_map="sideways")


def test_a_device_map_without_accelerate(toy, monkeypatch):
    monkeypatch.setattr(quantized.importlib.util, "find_spec", lambda _need: None)
    with pytest.raises(BackendError, match="pip install accelerate"):
        TransformersTarget.load(str(toy), device_map="auto")


@pytest.mark.parametrize("rope", ["dynamic", "longrope"])
def test_a_text_that_changes_its_frequencies_is_not_served_that_long(toy_factory, rope):
    """What a token computes must not depend on who else is in the pass."""
    settings = {"rope_type": rope, "rope_theta": 10000.0, "original_max_position_embeddings": 64}
    extra = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4} if rope == "longrope" else {}
    folder = toy_factory("Llama", rope_parameters=settings | extra | {"factor": 2.0})
    assert TransformersTarget.load(str(folder)).info.n_ctx == 64
    with pytest.raises(BackendError, match="allows from 2 to 64"):
        TransformersTarget.load(str(folder), n_ctx=100)
