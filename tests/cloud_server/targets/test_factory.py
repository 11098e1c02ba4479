from __future__ import annotations

import sys

import pytest

from outrider.cloud_server.targets.factory import load_target
from outrider.protocol.errors import BackendError, SettingError


@pytest.mark.parametrize("backend", ["auto", "transformers"])
def test_a_folder(toy, backend):
    target = load_target(str(toy), backend=backend, slots=2, n_ctx=32, threads=1)
    assert type(target).__name__ == "TransformersTarget"
    assert (target.info.slots, target.info.n_ctx, target.info.dtype) == (2, 32, "float32")
    low = load_target(str(toy), dtype="bfloat16", device="cpu", slots=1)
    assert low.info.dtype == "bfloat16"


@pytest.mark.llama
@pytest.mark.parametrize("backend", ["auto", "llama"])
def test_a_gguf_file(twins, backend, tmp_path):
    target = load_target(str(twins[1]), backend=backend, slots=2, n_ctx=32)
    assert type(target).__name__ == "LlamaTarget"
    assert (target.info.slots, target.info.n_ctx) == (2, 32)
    target.close()
    other = tmp_path / "a-model-with-no-suffix"
    other.symlink_to(twins[1])
    load_target(str(other), backend=backend, slots=1, n_ctx=32).close()


@pytest.mark.parametrize(
    ("model", "settings", "says"),
    [
        ("x.gguf", {"backend": "onnx"}, "backend is 'onnx'; it must be one of auto"),
        ("x.gguf", {"backend": "transformers"}, "cannot load x.gguf, a GGUF file"),
        ("org/name", {"backend": "llama"}, "needs a GGUF file"),
        ("x.gguf", {"dtype": "bfloat16"}, "dtype bfloat16 has no effect"),
        ("x.gguf", {"device": "cuda"}, "device cuda is for the transformers backend"),
        ("x.gguf", {"slots": 0}, "slots is 0"),
        ("x.gguf", {"threads": 0}, "threads is 0"),
        ("x.gguf", {"n_ctx": 1}, "n_ctx is 1"),
    ],
)
def test_options_that_contradict(model, settings, says):
    with pytest.raises(SettingError, match=says):
        load_target(model, **settings)


def test_missing_libraries(toy, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(BackendError, match=r"\.\[cloud\]"):
        load_target(str(toy))


def test_a_model_that_is_not_there():
    with pytest.raises(BackendError, match="does not exist"):
        load_target("some/where/else")
