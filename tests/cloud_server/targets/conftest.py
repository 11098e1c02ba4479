from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 60,
    "max_position_embeddings": 128,
    "initializer_range": 0.4,  # spread logits, so that texts do not loop and ties are rare
    "eos_token_id": 2,
}


@pytest.fixture(scope="session")
def toy_factory(tmp_path_factory):
    """``toy_factory("Llama", **config)`` saves a small random model and returns its folder."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.set_num_threads(1)

    def make(kind, *, head=None, **config):
        torch.manual_seed(0)
        settings = getattr(transformers, f"{kind}Config")(**(SMALL | config))
        folder = tmp_path_factory.mktemp(kind.lower())
        if head:
            model = getattr(transformers, f"{kind}{head}")(settings)
        else:
            model = transformers.AutoModelForCausalLM.from_config(settings)
        model.save_pretrained(folder)
        return folder

    return make


@pytest.fixture(scope="session")
def toy(toy_factory):
    """A folder with a small random Llama. Read only."""
    return toy_factory("Llama")


@pytest.fixture
def toy_copy(toy, tmp_path):
    """A copy of it to break."""
    return shutil.copytree(toy, tmp_path / "toy")


@pytest.fixture(scope="session")
def twins(toy_factory, tmp_path_factory):
    """The same small float32 Llama twice: a transformers folder and a GGUF file."""
    pytest.importorskip("llama_cpp")
    pytest.importorskip("gguf")
    models = Path(__file__).parents[3] / "models"
    spec = importlib.util.spec_from_file_location("export", models / "make" / "export_gguf.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder = toy_factory(
        "Llama",
        hidden_size=64,
        vocab_size=4096,
        tie_word_embeddings=True,
        eos_token_id=0,
        initializer_range=0.2,
    )
    file = tmp_path_factory.mktemp("gguf") / "toy.gguf"
    module.export(folder, file, "f32", models / "target")
    return folder, file
