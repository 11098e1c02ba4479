"""Model families: how each one's configuration and tensors are written in a GGUF file.

Tensor names are the ``gguf`` package's own maps. What differs by family is here: the numbers in the
header, and the few tensors whose values are laid out otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.protocol.errors import BackendError
from outrider.quantize.checkpoint import Checkpoint

Weights = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Family:
    """``arch``: llama.cpp's name. ``windowed``: whether it knows the model's sliding window.

    ``paired``: rotary embedding over neighbouring values instead of halves. ``one_plus``: norms are
    stored less one.
    """

    arch: str
    paired: bool = False
    one_plus: bool = False
    windowed: bool = False
    header: Callable[[Any, Checkpoint], None] = lambda _writer, _checkpoint: None


def _partial(writer: Any, checkpoint: Checkpoint) -> None:
    share = _rope(checkpoint).get("partial_rotary_factor") or checkpoint.config.get(
        "partial_rotary_factor"
    )
    writer.add_rope_dimension_count(int(float(share or 1.0) * head_size(checkpoint)))


def _phi2(writer: Any, checkpoint: Checkpoint) -> None:
    writer.add_layer_norm_eps(checkpoint.config.get("layer_norm_eps", 1e-5))
    _partial(writer, checkpoint)


def _gemma2(writer: Any, checkpoint: Checkpoint) -> None:
    _scaled_by_head(checkpoint)
    config = checkpoint.config
    if cap := config.get("attn_logit_softcapping"):
        writer.add_attn_logit_softcapping(cap)
    if cap := config.get("final_logit_softcapping"):
        writer.add_final_logit_softcapping(cap)
    writer.add_sliding_window(checkpoint.number("sliding_window"))


def _gemma3(writer: Any, checkpoint: Checkpoint) -> None:
    _scaled_by_head(checkpoint)
    config = checkpoint.config
    for cap in ("attn_logit_softcapping", "final_logit_softcapping"):
        if config.get(cap):
            raise BackendError(f"{checkpoint.folder}: llama.cpp's Gemma 3 has no {cap}")
    every = [i for i, kind in enumerate(config.get("layer_types") or []) if kind[:4] == "full"]
    if every and every != list(range(5, checkpoint.number("num_hidden_layers"), 6)):
        raise BackendError(
            f"{checkpoint.folder}: full attention in layers {every}; llama.cpp has it in every "
            "sixth layer of a Gemma 3"
        )
    writer.add_sliding_window(checkpoint.number("sliding_window"))
    local = _rope(checkpoint, "sliding_attention").get("rope_theta")
    writer.add_rope_freq_base_swa(float(local or config.get("rope_local_base_freq", 1e4)))


def _scaled_by_head(checkpoint: Checkpoint) -> None:
    """llama.cpp scales scores by the size of a head; the models from 12B up do otherwise."""
    scalar = checkpoint.config.get("query_pre_attn_scalar")
    if scalar is not None and int(scalar) != head_size(checkpoint):
        raise BackendError(
            f"{checkpoint.folder}: query_pre_attn_scalar is {scalar} and a head has "
            f"{head_size(checkpoint)} values; only models where both are equal are converted"
        )


FAMILIES = {
    "llama": Family("llama", paired=True),
    "mistral": Family("llama", paired=True),
    "qwen2": Family("qwen2"),
    "qwen3": Family("qwen3"),
    "gemma": Family("gemma", one_plus=True),
    "gemma2": Family("gemma2", one_plus=True, windowed=True, header=_gemma2),
    "gemma3_text": Family("gemma3", one_plus=True, windowed=True, header=_gemma3),
    "gemma3": Family("gemma3", one_plus=True, windowed=True, header=_gemma3),
    "smollm3": Family("smollm3", paired=True),
    "phi": Family("phi2", header=_phi2),
    "phi3": Family("phi3", header=_partial),
}
"""By transformers' ``model_type``. SmolLM and SmolLM2 are Llama models."""


def family_of(checkpoint: Checkpoint) -> Family:
    """The family of a checkpoint.

    Raises:
        BackendError: it is of none that can be converted; names those that can.
    """
    family = FAMILIES.get(checkpoint.family)
    if family is None:
        raise BackendError(
            f"{checkpoint.folder} is a {checkpoint.family or 'model without model_type'}; "
            f"families that are converted: {', '.join(FAMILIES)}"
        )
    return family


def head_size(checkpoint: Checkpoint) -> int:
    """Values of one attention head."""
    size = checkpoint.config.get("head_dim")
    heads = checkpoint.number("num_attention_heads")
    return int(size or checkpoint.number("hidden_size") // heads)


def context_of(checkpoint: Checkpoint) -> tuple[int, str]:
    """(the most ids of a text, why it is less than the model's own; else empty)."""
    own = checkpoint.number("max_position_embeddings")
    window = checkpoint.config.get("sliding_window")
    used = checkpoint.config.get("use_sliding_window", True)
    if not window or not used or family_of(checkpoint).windowed or window >= own:
        return own, ""
    return int(window), (
        f"the context is cut from {own} to {window}: beyond its sliding window llama.cpp would "
        f"compute a {checkpoint.family} model otherwise"
    )


def write_header(writer: Any, checkpoint: Checkpoint) -> None:
    """Write the numbers of the architecture into a ``gguf.GGUFWriter``.

    Raises:
        BackendError: the configuration asks for what llama.cpp does not compute.
    """
    family, config = family_of(checkpoint), checkpoint.config
    act = config.get("hidden_act", "silu")
    if not family.one_plus and family.arch != "phi2" and act not in ("silu", "swish"):
        raise BackendError(
            f"{checkpoint.folder}: hidden_act is {act!r}; llama.cpp computes a {family.arch} model "
            "with 'silu'"
        )
    heads = checkpoint.number("num_attention_heads")
    kv_heads = config.get("num_key_value_heads") or heads
    writer.add_context_length(context_of(checkpoint)[0])
    writer.add_embedding_length(checkpoint.number("hidden_size"))
    writer.add_block_count(checkpoint.number("num_hidden_layers"))
    writer.add_feed_forward_length(checkpoint.number("intermediate_size"))
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_vocab_size(checkpoint.number("vocab_size"))
    if family.arch != "phi2":
        writer.add_layer_norm_rms_eps(config.get("rms_norm_eps", 1e-6))
        writer.add_key_length(head_size(checkpoint))
        writer.add_value_length(head_size(checkpoint))
    if family.arch in ("llama", "smollm3", "qwen2", "qwen3"):
        writer.add_rope_dimension_count(head_size(checkpoint))
    rope = _rope(checkpoint)
    writer.add_rope_freq_base(float(rope.get("rope_theta") or config.get("rope_theta") or 1e4))
    _write_scaling(writer, checkpoint, rope)
    family.header(writer, checkpoint)


def _rope(checkpoint: Checkpoint, layers: str = "full_attention") -> dict[str, Any]:
    """The settings of the rotary embedding, under the old names or the new ones."""
    for key in ("rope_parameters", "rope_scaling"):
        found = checkpoint.config.get(key)
        if isinstance(found, dict):
            inner = found.get(layers)
            return inner if isinstance(inner, dict) else found
    return {}


def _write_scaling(writer: Any, checkpoint: Checkpoint, rope: dict[str, Any]) -> None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind in ("default", "llama3"):  # llama3's factors are a tensor
        return
    if kind == "linear":
        from gguf import RopeScalingType

        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(float(rope["factor"]))
    elif kind == "longrope":
        scale = checkpoint.number("max_position_embeddings") / _original(checkpoint, rope)
        factor = 1.0
        if scale > 1.0:
            factor = math.sqrt(1 + math.log(scale) / math.log(_original(checkpoint, rope)))
        writer.add_rope_scaling_orig_ctx_len(_original(checkpoint, rope))
        writer.add_rope_scaling_attn_factors(factor)
    else:
        raise BackendError(f"{checkpoint.folder}: rotary scaling {kind!r} is not converted")


def _original(checkpoint: Checkpoint, rope: dict[str, Any]) -> int:
    value = rope.get("original_max_position_embeddings") or checkpoint.config.get(
        "original_max_position_embeddings"
    )
    return int(value or checkpoint.number("max_position_embeddings"))


def extra_tensors(checkpoint: Checkpoint) -> Iterator[tuple[str, Weights]]:
    """Tensors that the checkpoint has as numbers in its configuration: rotary factors."""
    rope = _rope(checkpoint)
    kind = rope.get("rope_type") or rope.get("type")
    if kind == "llama3":
        yield "rope_freqs.weight", _llama3_factors(checkpoint, rope)
    elif kind == "longrope":
        yield "rope_factors_long.weight", np.asarray(rope["long_factor"], np.float32)
        yield "rope_factors_short.weight", np.asarray(rope["short_factor"], np.float32)


def _llama3_factors(checkpoint: Checkpoint, rope: dict[str, Any]) -> Weights:
    """Llama 3.1's slowing of the long waves: 1 for short ones, ``factor`` for long, smooth between.

    Source: transformers' ``_compute_llama3_parameters``.
    """
    theta = float(rope.get("rope_theta") or checkpoint.config.get("rope_theta") or 1e4)
    size = head_size(checkpoint)
    waves = 2 * math.pi * theta ** (np.arange(0, size, 2, dtype=np.float64) / size)
    factor, low, high = (float(rope[k]) for k in ("factor", "low_freq_factor", "high_freq_factor"))
    context = float(rope["original_max_position_embeddings"])
    smooth = np.clip((context / waves - low) / (high - low), 0.0, 1.0)
    return (1.0 / ((1 - smooth) / factor + smooth)).astype(np.float32)


def as_it_is(name: str, family: Family) -> bool:
    """Whether a tensor's values go into the file in the order and size that they have."""
    turned = family.paired and (".q_proj." in name or ".k_proj." in name)
    return not turned and not (family.one_plus and name.endswith("norm.weight"))


def lay_out(name: str, tensor: Weights, family: Family, checkpoint: Checkpoint) -> Weights:
    """The values of one tensor as llama.cpp wants them."""
    if family.paired and (".q_proj." in name or ".k_proj." in name):
        heads = checkpoint.number("num_attention_heads")
        if ".k_proj." in name:
            heads = checkpoint.config.get("num_key_value_heads") or heads
        rows, rest = tensor.shape[0], tensor.shape[1:]
        halves = tensor.reshape(heads, 2, rows // heads // 2, *rest)
        return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(tensor.shape))
    if family.one_plus and name.endswith("norm.weight"):
        return tensor + np.float32(1)
    return tensor
