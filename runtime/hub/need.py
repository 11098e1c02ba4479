"""How much memory a model will need, from its files alone, and whether there is that much.

On a small board a model that does not fit is killed without a word, or drags the machine into
swapping. So the need is estimated before anything is loaded, and refused with the numbers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.protocol.errors import BackendError
from outrider.runtime.hub.gguf import GgufHeader, read_header
from outrider.runtime.lm.factory import choose
from outrider.runtime.lm.memory import DEFAULT_CTX, MIB, available

BATCH = 512
"""Tokens of one decode at most."""

ROWS = 64
"""Tokens of one decode whose logits are asked for: room for the others is set aside but stays
untouched, and takes no memory."""

BASE = 90 * MIB
"""Python, numpy and the backend's own library, before any model."""

BASE_TORCH = 400 * MIB
"""The same with torch."""

SHARE = 0.9
"""Of the available memory: the rest is for the system and what it keeps in its caches."""

_WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2}
_LAST = "or end other programs"
_CACHE_BYTES = {"f32": 4.0, "f16": 2.0, "q8_0": 34 / 32}


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes: the weights, the cache of ``n_ctx`` ids a sequence, buffers, everything else.

    ``per_id`` of the total are due to each id of the context.
    """

    weights: int
    cache: int
    buffers: int
    base: int
    n_ctx: int
    per_id: float
    n_seq: int = 1

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.cache + self.buffers + self.base

    @property
    def ids(self) -> str:
        """What the cache holds, for people."""
        return f"{self.n_seq} x {self.n_ctx}" if self.n_seq > 1 else str(self.n_ctx)

    def __str__(self) -> str:
        return (
            f"about {mib(self.total)} (weights {mib(self.weights)}, cache of {self.ids} ids "
            f"{mib(self.cache)}, buffers {mib(self.buffers)}, program {mib(self.base)})"
        )


def mib(count: int) -> str:
    """A size for people."""
    return f"{count / MIB:,.0f} MiB"


def estimate(
    path: str | Path, n_ctx: int = 0, *, kv: str = "f32", n_seq: int = 1, backend: str = "auto"
) -> Need:
    """What loading a model file or draft pack will take. ``n_ctx`` 0 is the default.

    Raises:
        BackendError, SettingError: there is no model there, or its header is broken.
    """
    file, kind, _ = choose(Path(path), backend)
    if kind == "llama":
        return estimate_gguf(read_header(file), n_ctx, kv=kv, n_seq=n_seq)
    return _estimate_onnx(file, n_ctx, n_seq)


def estimate_gguf(header: GgufHeader, n_ctx: int = 0, *, kv: str = "f32", n_seq: int = 1) -> Need:
    """The same from a header that was read."""
    trained = header.number("context_length") or 0
    n_ctx = min(n_ctx or DEFAULT_CTX, trained or n_ctx or DEFAULT_CTX)
    width = header.number("embedding_length") or 0
    heads = header.number("attention.head_count") or 1
    kv_heads = header.number("attention.head_count_kv") or heads
    key = header.number("attention.key_length") or width // heads
    value = header.number("attention.value_length") or width // heads
    layers = header.number("block_count") or 0
    cached = layers * kv_heads * (key + value) * _CACHE_BYTES.get(kv, 4.0) * n_seq
    vocabulary = header.lengths.get("tokenizer.ggml.tokens", 0)
    feed = header.number("feed_forward_length") or 4 * width
    # Logits, and one layer's work. Without flash attention (an f32 cache) the scores of a batch
    # against the whole context come on top.
    scores = 4 * BATCH * heads if kv == "f32" else 0
    buffers = 4 * (ROWS * vocabulary + BATCH * (2 * feed + 4 * width)) + scores * n_ctx
    cache = int(cached * n_ctx)
    return Need(header.tensor_bytes, cache, buffers, BASE, n_ctx, cached + scores, n_seq)


def estimate_folder(
    folder: Path, n_ctx: int = 0, *, n_seq: int = 1, dtype: str | None = None
) -> Need:
    """What a Hugging Face folder takes on a CPU, by its configuration and the size of its files.

    ``dtype`` is what it is computed in, float32 by default. Quantized weights stay as they are.
    """
    facts = read_json(folder / "config.json")
    text = facts.get("text_config") or facts
    width = _WIDTHS.get(dtype or "float32", 4)
    stored = _WIDTHS.get(str(facts.get("dtype") or facts.get("torch_dtype")), 2)
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    if "quantization_config" not in facts:
        weights = weights * width // stored
    hidden, heads = int(text.get("hidden_size") or 0), int(text.get("num_attention_heads") or 1)
    kv_heads = int(text.get("num_key_value_heads") or heads)
    head = int(text.get("head_dim") or hidden // heads)
    cached = 2 * int(text.get("num_hidden_layers") or 0) * kv_heads * head * width * n_seq
    trained = int(text.get("max_position_embeddings") or 0)
    n_ctx = min(n_ctx or trained, trained or n_ctx)
    feed = int(text.get("intermediate_size") or 4 * hidden)
    buffers = 4 * (ROWS * int(text.get("vocab_size") or 0) + BATCH * (2 * feed + 4 * hidden))
    return Need(weights, cached * n_ctx, buffers, BASE_TORCH, n_ctx, cached, n_seq)


def fitting(need: Need, most: int) -> int:
    """How many sequences fit into what is available, 1 to ``most``; ``need`` is that of one."""
    free = available()
    if free is None or not need.cache:
        return most
    rest = free * SHARE - (need.total - need.cache)
    return max(1, min(most, int(rest / need.cache)))


def _estimate_onnx(file: Path, n_ctx: int, n_seq: int) -> Need:
    """The graph with its outside data, the cache by the pack's own account."""
    weights = file.stat().st_size + sum(
        part.stat().st_size for part in file.parent.glob(f"{file.name}[._]data*")
    )
    facts = read_json(file.parent / "outrider_onnx.json")
    trained = int(facts.get("max_position_embeddings") or 0)
    n_ctx = min(n_ctx or trained, trained or n_ctx)
    cached = 8 * n_seq * int(facts.get("layers", 0)) * int(facts.get("kv_heads", 0))
    cached *= int(facts.get("head_dim", 0))
    buffers = 4 * ROWS * int(facts.get("vocab_size", 0)) + weights // 4
    return Need(weights, cached * n_ctx, buffers, BASE, n_ctx, cached, n_seq)


def read_json(path: Path) -> dict[str, Any]:
    """A settings file; empty where it is missing.

    Raises:
        BackendError: it is there but broken.
    """
    try:
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise BackendError(f"cannot read {path}: {error}") from error
    if not isinstance(found, dict):
        raise BackendError(f"{path} is not a JSON object")
    return found


def check_memory(
    path: str | Path, n_ctx: int = 0, *, kv: str = "f32", n_seq: int = 1, backend: str = "auto"
) -> Need:
    """Refuse a model that does not fit, before it is loaded; give what it needs.

    Raises:
        SettingError: the backend does not read this path.
        BackendError: it needs more memory than there is (both numbers are named), or cannot be
        read.
    """
    need = estimate(path, n_ctx, kv=kv, n_seq=n_seq, backend=backend)
    check_fits(Path(path).name, need)
    return need


def check_fits(name: str, need: Need) -> None:
    """Refuse what was estimated if there is not that much.

    Raises:
        BackendError: names both numbers, and what to do.
    """
    free = available()
    if free is not None and need.total > free:
        raise BackendError(
            f"{name} needs {need} and {mib(free)} are available: {advice(need, free)}"
        )


def advice(need: Need, free: int) -> str:
    """What to do about a model that does not fit."""
    fixed = need.total - need.per_id * need.n_ctx
    if need.per_id and fixed < free:
        fits = int((free - fixed) / need.per_id) // 256 * 256
        if 256 <= fits < need.n_ctx:
            fewer = ", answer fewer at once (--max-sessions)" if need.n_seq > 1 else ""
            return f"use a context of at most {fits} (--ctx-size {fits}){fewer}, " + _LAST
    fewer = "answer fewer at once (--max-sessions), " if need.n_seq > 1 else ""
    return f"{fewer}use a smaller model or quantization, {_LAST}"
