"""Opening a model: what its files say, and one clear line for everything that can be wrong."""

from __future__ import annotations

import json
import math
import socket
import sys

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from outrider.cloud_server.targets.base import Row  # noqa: E402
from outrider.cloud_server.targets.transformers import TransformersTarget  # noqa: E402
from outrider.protocol.decoding.sampling import Sampling  # noqa: E402
from outrider.protocol.errors import BackendError  # noqa: E402


def refuses(says, model, **settings):
    with pytest.raises(BackendError, match=says) as caught:
        TransformersTarget.load(str(model), **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_end_tokens_are_a_union(toy_copy):
    for name, ids in (("config.json", [2, 3]), ("generation_config.json", 7)):
        data = json.loads((toy_copy / name).read_text())
        (toy_copy / name).write_text(json.dumps(data | {"eos_token_id": ids}))
    assert TransformersTarget.load(str(toy_copy)).info.eos == {2, 3, 7}


def save_tokenizer(folder, size):
    from tokenizers import Tokenizer, models

    words = {f"w{i}": i for i in range(size)}
    inner = Tokenizer(models.WordLevel(words, unk_token="w0"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="w9").save_pretrained(
        folder
    )


def test_padding_rows_are_never_chosen(toy_copy):
    save_tokenizer(toy_copy, 50)
    target = TransformersTarget.load(str(toy_copy), slots=1)
    assert target.info.usable == 50
    assert target.info.eos == {2, 9}
    ids = list(range(10, 40))
    out = set()
    for seed in range(6):
        hot = Sampling(temperature=50.0, seed=seed)  # close to uniform
        out.update(target.forward([Row(0, 0, ids, 30, hot, 1)])[0].ids)
    assert 40 < max(out) < 50


def test_a_tokenizer_larger_than_the_model(toy_copy):
    save_tokenizer(toy_copy, 90)
    assert TransformersTarget.load(str(toy_copy)).info.usable == 60


def test_a_folder_never_touches_the_network(toy_copy, monkeypatch):
    save_tokenizer(toy_copy, 50)

    def refuse(*_args, **_kwargs):
        raise AssertionError("the network was touched")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    TransformersTarget.load(str(toy_copy))


def test_missing_folder(tmp_path):
    assert str(tmp_path) in refuses("does not exist", tmp_path / "nothing" / "here")
    refuses("no config.json", tmp_path)


def test_a_file(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    refuses("is a file.*llama backend", path)


@pytest.mark.parametrize("left", [0, 4, 0.5])
def test_truncated_weights(toy_copy, left):
    path = toy_copy / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * left) if isinstance(left, float) else left])
    assert str(toy_copy) in refuses("truncated or damaged", toy_copy)


def test_missing_weights(toy_copy):
    (toy_copy / "model.safetensors").unlink()
    assert str(toy_copy) in refuses("cannot load its weights", toy_copy)


def edit(folder, **changes):
    data = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(data | changes))


def test_config_and_weights_of_two_models(toy_copy):
    edit(toy_copy, intermediate_size=128)
    refuses("other shapes than config.json", toy_copy)
    edit(toy_copy, intermediate_size=64, num_hidden_layers=3)
    refuses("weights are missing", toy_copy)


def test_damaged_config(toy_copy):
    edit(toy_copy, model_type="nonsense")
    refuses("cannot load its config", toy_copy)
    (toy_copy / "config.json").write_text("{")
    refuses("config.json is damaged", toy_copy)


def test_damaged_tokenizer(toy_copy):
    (toy_copy / "tokenizer.json").write_text("{")
    refuses("cannot load its tokenizer", toy_copy)


def test_not_a_causal_model(toy_factory):
    folder = toy_factory("T5", head="ForConditionalGeneration", d_model=16, d_kv=4, d_ff=16)
    refuses("no causal language model", folder)
    folder = toy_factory("Bert", head="Model")
    refuses("weights are missing", folder)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"dtype": "int4"}, "unknown dtype 'int4'; choose one of float32"),
        ({"device": "tpu"}, "unknown device 'tpu'; choose cpu"),
        ({"n_ctx": 129}, "from 2 to 128"),
        ({"n_ctx": 1}, "from 2 to 128"),
        ({"slots": 0}, "at least 1"),
        ({"threads": 0}, "at least 1"),
    ],
)
def test_settings_that_cannot_be_honoured(toy, settings, says):
    refuses(says, toy, **settings)


def test_a_gpu_that_is_not_there(toy, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    refuses("no CUDA GPU; use device cpu", toy, device="cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    refuses("there are 1 CUDA devices", toy, device="cuda:1")


@pytest.mark.parametrize("module", ["torch", "transformers"])
def test_missing_library(toy, monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    refuses(rf"needs {module}.*\.\[cloud\]", toy)


def test_an_unreachable_hub(monkeypatch):
    from transformers import AutoConfig

    def offline(*_args, **_kwargs):
        raise OSError("We couldn't connect\nto the hub")

    monkeypatch.setattr(AutoConfig, "from_pretrained", offline)
    monkeypatch.setattr("outrider.cloud_server.targets.hf_load.list_files", lambda _model: {})
    refuses("cannot be fetched from the hub .We couldn't connect to the hub.", "nobody/nothing")


def test_broken_numbers(toy_copy):
    from safetensors.torch import load_file, save_file

    path = toy_copy / "model.safetensors"
    weights = load_file(path)
    weights["model.norm.weight"][0] = math.nan
    save_file(weights, path, metadata={"format": "pt"})
    refuses("not finite numbers in float32", toy_copy)


def test_smaller_context_and_a_name(toy):
    info = TransformersTarget.load(str(toy), n_ctx=16, slots=2, name="mine").info
    assert (info.n_ctx, info.slots, info.name) == (16, 2, "mine")


def test_a_long_error_is_not_cut_in_mid_word():
    from outrider.cloud_server.targets.hf_load import one_line

    text = "Cannot reach https://hub.example/a.b/c. Then\nmore. " + "word " * 300
    assert one_line(OSError(text)).startswith("Cannot reach https://hub.example/a.b/c. Then more. ")
    assert one_line(OSError(text)).endswith("word ...")
