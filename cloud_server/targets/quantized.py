"""Quantized checkpoints that transformers loads, and what each kind needs to be installed."""

from __future__ import annotations

import importlib.util
from typing import Any

from outrider.protocol.errors import BackendError

NEEDS = {
    "awq": ("accelerate", "gptqmodel"),
    "gptq": ("optimum", "gptqmodel"),
    "bitsandbytes": ("accelerate", "bitsandbytes"),
    "fp8": ("accelerate",),
    "fbgemm_fp8": ("accelerate", "fbgemm_gpu"),
    "compressed-tensors": ("compressed_tensors",),
    "torchao": ("torchao",),
    "hqq": ("hqq",),
    "quanto": ("optimum",),
}
"""Modules by method, for those that transformers has a loader for and people use."""


def method(config: Any) -> str | None:
    """How the weights are quantized, as the checkpoint says; None if they are not."""
    found = getattr(config, "quantization_config", None)
    if found is None:
        return None
    if isinstance(found, dict):
        name = found.get("quant_method")
        if name is None and (found.get("load_in_4bit") or found.get("load_in_8bit")):
            name = "bitsandbytes"
    else:
        name = found.quant_method
    return None if name is None else str(getattr(name, "value", name))


def check(model: str, name: str) -> None:
    """Refuse a quantized checkpoint for which a package is missing, or of an unknown kind.

    Raises:
        BackendError: names the packages, or the kind.
    """
    from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING as KNOWN

    if name not in KNOWN and f"{name}_4bit" not in KNOWN:  # transformers would ignore it
        raise BackendError(f"{model} is quantized with {name}, which transformers does not know")
    missing = [need for need in NEEDS.get(name, ()) if importlib.util.find_spec(need) is None]
    if missing:
        what = " and ".join(missing)
        install = " ".join(need.replace("_", "-") for need in missing)
        raise BackendError(
            f"{model} is quantized with {name}, for which transformers needs {what}: "
            f"pip install {install}, or serve a .gguf file on llama.cpp"
        )
