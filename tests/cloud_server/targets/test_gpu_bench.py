"""The script for a GPU machine runs on a CPU, with a small shape, where no figure means much."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

SCRIPT = Path(__file__).parents[3] / "scripts" / "gpu_bench.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("gpu_bench", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_it_runs(script, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(script, "CONTEXTS", (64,))
    monkeypatch.setattr(script, "BATCHES", (2, 4))
    monkeypatch.setattr(script, "WIDTHS", (1, 3))
    monkeypatch.setattr(script, "REPEATS", 2)
    file = tmp_path / "out.json"
    asked = ["--device", "cpu", "--shape", "toy", "--sessions", "4", "--json", str(file)]
    assert script.main(asked) == 0
    result = json.loads(file.read_text())
    assert result["exact"]["float32"] == {
        "identical": True,
        "near_ties": 0,
        "tokens": 96,
        "worst": 0.0,
    }
    assert {(c["batch"], c["width"]) for c in result["grid"]} == {(2, 1), (2, 3), (4, 1), (4, 3)}
    assert all(cell["step_ms"] > 0 < cell["over_roofline"] for cell in result["grid"])
    assert result["goals"] == {"over_roofline_32x8_2048": None, "over_bandwidth_8x4_2048": None}
    assert "float32" in capsys.readouterr().out


def test_the_roofline(script):
    """By hand, for a shape whose numbers are small."""
    config = script.LlamaConfig(
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=10,
    )
    model = script.LlamaForCausalLM(config)
    costs = script.Costs(model, script.Rates(bytes=1000.0, flops=100.0))
    weights = sum(p.numel() for p in model.parameters()) - 80
    keys = 2 * 2 * 1 * 4 * 4  # both, layers, heads, size, bytes
    assert costs.bandwidth(3, 5) == pytest.approx((4 * weights + 15 * keys) / 1000)
    flops = 6 * (2 * weights + 4 * 2 * 2 * 4 * 5)
    assert costs.roofline(3, 2, 5) == pytest.approx(flops / 100 + 15 * keys / 1000)


def test_without_a_gpu_it_says_so(script, capsys):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert script.main([]) == 1
    assert "no CUDA GPU here" in capsys.readouterr().err
