"""Whether a converted file computes what the checkpoint does: logits against transformers'."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outrider.protocol.errors import BackendError
from outrider.quantize.checkpoint import Checkpoint
from outrider.runtime.lm.base import CausalLM
from outrider.runtime.lm.factory import load_lm

BOUND = 0.01
"""Largest difference of an F32 file's logits from transformers', in units of a row's spread.

Measured on toy models: 3e-6, and 2e-3 where the model has a GELU, which llama.cpp reads from a
table.
"""

_TEXT = 40


def check_f32(checkpoint: Checkpoint, file: Path) -> float:
    """Compare an F32 file with its checkpoint: a prompt, single steps, a rollback.

    Returns the largest difference.

    Raises:
        BackendError: it is more than :data:`BOUND`; the file was not converted rightly.
    """
    ids = np.random.default_rng(0).integers(0, checkpoint.number("vocab_size"), _TEXT)
    lm = load_lm(file, n_ctx=2 * _TEXT).lm
    try:
        rows = _walk(lm, [int(i) for i in ids])
    finally:
        lm.close()
    wanted = reference_rows(checkpoint.folder, ids)
    worst = deviation(rows, np.concatenate([wanted, wanted[30:]]))
    if not worst <= BOUND:
        raise BackendError(
            f"{file} differs from transformers by {worst:.3g} of a row's spread; at most {BOUND} "
            "is right for F32"
        )
    return worst


def check_runs(file: Path) -> None:
    """Load a file and take one step with it.

    Raises:
        BackendError: it does not load (a tensor is missing, say), or its logits are not finite: the
            configuration or the weights that it was made from are wrong.
    """
    lm = load_lm(file, n_ctx=_TEXT).lm
    try:
        lm.feed([0])
    finally:
        lm.close()


def _walk(lm: CausalLM, ids: list[int]) -> NDArray[np.float32]:
    rows = [lm.feed(ids[:16], 16), *(lm.feed([i]) for i in ids[16:24]), lm.feed(ids[24:], 16)]
    lm.cut(30)
    rows.append(lm.feed(ids[30:], len(ids) - 30))
    return np.concatenate(rows)


def reference_rows(folder: Path, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """transformers' logits of every position, float32 ``[len(ids), vocab]``."""
    from outrider.quantize.torch_model import load_model, torch

    model = load_model(folder)
    with torch.inference_mode():
        logits = model(input_ids=torch.from_numpy(ids)[None], use_cache=False).logits
    return np.asarray(logits[0].float().numpy())


def deviation(rows: NDArray[np.float32], wanted: NDArray[np.float32]) -> float:
    """The largest difference in units of the wanted rows' own spread."""
    spread = wanted.std(axis=-1, keepdims=True)
    return float((np.abs(rows - wanted) / spread).max())
