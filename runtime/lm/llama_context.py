"""The context of a llama.cpp model: types of its cache, its size, and what models it can serve."""

from __future__ import annotations

from typing import Any

from outrider.protocol.errors import BackendError
from outrider.runtime.lm.llama_library import Weights, apart, complaints, library, reason

_FLASH_OFF, _FLASH_AUTO, _FLASH_ON = 0, -1, 1
# Flash attention rounds differently whatever the cache type: off where the figures must be those
# of the reference (f32), needed by llama.cpp where the value cache is quantised. Last: bytes each.
KV = {
    "f32": ("GGML_TYPE_F32", _FLASH_OFF, 4.0),
    "f16": ("GGML_TYPE_F16", _FLASH_AUTO, 2.0),
    "q8_0": ("GGML_TYPE_Q8_0", _FLASH_ON, 34 / 32),
}


def cache_bytes(weights: Weights, ids: int, kv: str) -> int:
    """Bytes of keys and values for ``ids`` positions, at most (some layers may keep none)."""
    api = library()
    heads = max(1, int(api.llama_model_n_head(weights.handle)))
    usual = int(api.llama_model_n_embd(weights.handle)) // heads
    arch = weights.metadata("general.architecture")
    widths = (weights.metadata(f"{arch}.attention.{part}_length") for part in ("key", "value"))
    both = sum(int(width) if width else usual for width in widths)
    kv_heads = int(api.llama_model_n_head_kv(weights.handle))
    values = int(api.llama_model_n_layer(weights.handle)) * kv_heads * both * ids
    return int(values * KV[kv][2])


def check_rewindable(weights: Weights) -> None:
    """Refuse models whose memory llama.cpp cannot cut at any position, or that do not decode."""
    api = library()
    for problem, test in (
        ("keeps a recurrent state", api.llama_model_is_recurrent),
        ("keeps a partly recurrent (hybrid) state", api.llama_model_is_hybrid),
    ):
        if test(weights.handle):
            raise BackendError(
                f"{weights.path} {problem}, which cannot be rewound when a draft is rejected; "
                "use a model with plain attention"
            )
    if api.llama_model_has_encoder(weights.handle) or not api.llama_model_has_decoder(
        weights.handle
    ):
        raise BackendError(f"{weights.path} is not a decoder-only language model")
    if api.llama_model_is_diffusion(weights.handle):
        raise BackendError(f"{weights.path} is a diffusion model; it does not predict next tokens")


def new_context(
    weights: Weights,
    n_ctx: int,
    n_seq: int,
    *,
    threads: int,
    kv: str,
    n_batch: int,
    forks: int,
) -> Any:
    """Make the context, with separate streams and caches that can be cut anywhere."""
    api = library()
    kind, flash, _ = KV[kv]
    params = api.llama_context_default_params()
    params.n_ctx = n_ctx * n_seq  # llama.cpp divides it among the sequences, rounding up
    params.n_seq_max = n_seq + forks
    params.n_batch = n_batch
    params.n_ubatch = min(n_batch, 512)
    params.n_threads = params.n_threads_batch = threads
    params.type_k = params.type_v = getattr(api, kind)
    params.flash_attn_type = flash
    params.kv_unified = forks > 0
    params.swa_full = True  # a sliding-window cache forgets what a rollback would need
    params.no_perf = True
    with complaints() as lines:
        context = apart(lambda: api.llama_init_from_model(weights.handle, params))
        if not context:
            raise BackendError(
                f"llama.cpp cannot make a context of {n_seq} x {n_ctx} ids ({kv} cache) for "
                f"{weights.path}{reason(lines)}; a smaller context or cache type may fit"
            )
    return context
