"""Toy checkpoints of every family, with random weights and a real tokenizer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

ROOT = Path(__file__).parents[2]
TOKENIZER = ROOT / "models" / "target"
SIZE = 4096

SMALL: dict[str, Any] = {
    "vocab_size": SIZE,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
LLAMA31 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
GEMMA = {"head_dim": 64, "query_pre_attn_scalar": 64, "sliding_window": 16}

FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**SMALL)),
    "llama-tied": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**SMALL, tie_word_embeddings=True)),
    "llama-3.1": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**SMALL, rope_parameters=LLAMA31)),
    "mistral": lambda: hf.MistralForCausalLM(
        hf.MistralConfig(**SMALL, head_dim=64, sliding_window=128)
    ),
    "qwen2": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**SMALL)),
    "qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**SMALL, head_dim=32)),
    "gemma": lambda: hf.GemmaForCausalLM(hf.GemmaConfig(**SMALL, head_dim=64)),
    "gemma-2": lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(**SMALL, **GEMMA)),
    "gemma-3": lambda: hf.Gemma3ForCausalLM(
        hf.Gemma3TextConfig(**SMALL | {"num_hidden_layers": 7}, **GEMMA)
    ),
    "smollm3": lambda: hf.SmolLM3ForCausalLM(hf.SmolLM3Config(**SMALL | {"num_hidden_layers": 4})),
    "phi-2": lambda: hf.PhiForCausalLM(
        hf.PhiConfig(**SMALL | {"num_key_value_heads": 4}, partial_rotary_factor=0.5)
    ),
    "phi-3": lambda: hf.Phi3ForCausalLM(hf.Phi3Config(**SMALL)),
}


def make_toy(folder: Path, family: str) -> Path:
    """A checkpoint folder; norms and biases are random too, so that a forgotten one shows."""
    torch.manual_seed(0)
    model = FAMILIES[family]().eval().float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    hf.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(TOKENIZER / name, folder)
    return folder


@pytest.fixture(scope="session")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a family's toy, made once."""
    base = tmp_path_factory.mktemp("toys")
    made: dict[str, Path] = {}

    def get(family: str) -> Path:
        if family not in made:
            made[family] = make_toy(base / family, family)
        return made[family]

    return get


@pytest.fixture(scope="session")
def families() -> list[str]:
    """Every family that has a toy."""
    return list(FAMILIES)


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    """The embedded drafter's checkpoint, alone in a folder."""
    return copied(ROOT / "models" / "drafter", tmp_path / "drafter")


def copied(source: Path, out: Path) -> Path:
    """A checkpoint without the files made from it."""
    out.mkdir()
    for file in source.iterdir():
        if file.suffix in (".json", ".safetensors") and not file.name.startswith("outrider"):
            shutil.copy(file, out)
    return out


@pytest.fixture
def change() -> Callable[..., None]:
    """Edits a folder's config.json; None removes a key."""

    def edit(folder: Path, **settings: Any) -> None:
        path = folder / "config.json"
        config = json.loads(path.read_text()) | settings
        path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))

    return edit
