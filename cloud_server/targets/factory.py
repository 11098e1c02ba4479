"""From what a user names to a loaded target. Backends are imported only when they are used."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from outrider.cloud_server.targets.base import Target
from outrider.protocol.errors import BackendError, SettingError
from outrider.runtime.extras import hint

BACKENDS = ("auto", "transformers", "llama")


def load_target(
    model: str,
    *,
    backend: str = "auto",
    dtype: str | None = None,
    device: str | None = None,
    n_ctx: int | None = None,
    slots: int = 8,
    threads: int | None = None,
    verify_width: int = 0,
    device_map: str | None = None,
    tensor_parallel: int = 1,
    tree_leaves: int = 1,
) -> Target:
    """Load a GGUF file with llama.cpp, a model folder or hub id with transformers.

    Args:
        model: path of a GGUF file or of a folder, or a hub id.
        backend: ``auto`` goes by the model, the others insist.
        dtype: transformers only: float32 (the default), bfloat16, float16. A GGUF file has its own.
        device: transformers only: cpu (the default), cuda, cuda:N.
        n_ctx: most ids a session holds; None is what the model was made for,
            of a GGUF file at most DEFAULT_CTX.
        slots: how many sessions fit at once.
        threads: CPU threads; None is one for llama.cpp, torch's own choice for transformers.
        verify_width: judge drafts in passes of exactly that many positions a row; 0 is off.
        device_map: transformers only: spread the layers over several devices: auto, for one.
        tensor_parallel: transformers only: share each layer between so many processes.
        tree_leaves: llama.cpp only: ends of a tree of drafts; more than 1 lets all sessions share
            one buffer, which makes passes of many sessions slower. (transformers takes any tree.)

    Raises:
        SettingError: options that contradict each other or the model.
        BackendError: the model cannot be loaded; says why and what to do.
    """
    if backend not in BACKENDS:
        raise SettingError(f"backend is {backend!r}; it must be one of {', '.join(BACKENDS)}")
    for name, value, least in (
        ("slots", slots, 1),
        ("threads", threads, 1),
        ("n_ctx", n_ctx, 2),
        ("verify_width", verify_width, 0),
        ("tensor_parallel", tensor_parallel, 1),
        ("tree_leaves", tree_leaves, 1),
    ):
        if value is not None and value < least:
            raise SettingError(f"{name} is {value}; it must be at least {least}")
    gguf = is_gguf(model)
    if backend == "transformers" and gguf:
        raise SettingError(
            f"backend transformers cannot load {model}, a GGUF file; use backend llama or auto"
        )
    if backend == "llama" and not gguf:
        raise SettingError(
            f"backend llama needs a GGUF file, and {model} is none; give the path of a .gguf file "
            "or use backend transformers"
        )
    if gguf:
        for what, given in (("device", device), ("device map", device_map)):
            if given not in (None, "cpu"):
                raise SettingError(
                    f"{what} {given} is for the transformers backend; a GGUF target runs on cpu"
                )
        if tensor_parallel > 1:
            raise SettingError("tensor parallelism is for the transformers backend")
        return _load_llama(
            model,
            dtype,
            n_ctx=n_ctx,
            slots=slots,
            threads=threads,
            verify_width=verify_width,
            leaves=tree_leaves,
        )
    from outrider.cloud_server.targets.transformers import TransformersTarget

    settings: dict[str, Any] = {
        "dtype": dtype or "float32",
        "device": device or "cpu",
        "n_ctx": n_ctx,
        "slots": slots,
        "threads": threads,
        "verify_width": verify_width,
        "device_map": device_map,
    }
    if tensor_parallel > 1:
        from outrider.cloud_server.targets import hf_load
        from outrider.cloud_server.targets.tensor_parallel import TensorParallelTarget

        hf_load.require()
        return TensorParallelTarget.load(model, tensor_parallel, **settings)
    return TransformersTarget.load(model, **settings)


def _load_llama(
    model: str,
    dtype: str | None,
    *,
    n_ctx: int | None,
    slots: int,
    threads: int | None,
    verify_width: int,
    leaves: int,
) -> Target:
    if dtype is not None:
        raise SettingError(
            f"dtype {dtype} has no effect on {model}: a GGUF file has its own; leave dtype out"
        )
    if importlib.util.find_spec("llama_cpp") is None:
        raise BackendError(
            f"{model} needs llama.cpp, which is not installed: {hint('cloud-llama')}, or give a "
            "model folder or hub id and use the transformers backend"
        )
    from outrider.cloud_server.targets.llama_cpp import LlamaTarget
    from outrider.runtime.lm.memory import DEFAULT_CTX

    return LlamaTarget.load(
        model,
        n_ctx=n_ctx or DEFAULT_CTX,
        slots=slots,
        threads=threads or 1,
        verify_width=verify_width,
        leaves=leaves,
    )


def is_gguf(model: str) -> bool:
    """By name, or by the first four bytes of a file with another name."""
    path = Path(model).expanduser()
    if path.suffix.lower() == ".gguf":
        return True
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"
