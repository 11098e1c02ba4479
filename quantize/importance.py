"""The importance matrix: how strongly each input of each matrix is used on a calibration text.

Quantization loses less where it knows which columns matter. llama.cpp weighs the error of a column
by the mean square of its input; these are collected by running the original checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from outrider.protocol.errors import BackendError, SettingError
from outrider.quantize.checkpoint import Checkpoint
from outrider.quantize.families import family_of
from outrider.quantize.gguf_file import Progress, gguf_names, quiet
from outrider.quantize.gguf_quantize import Importance
from outrider.quantize.text import token_blocks

BLOCK = 256
"""Ids of one pass over the calibration text."""


def measure_importance(
    checkpoint: Checkpoint, texts: Iterable[str], *, most: int = 20_000, progress: Progress = quiet
) -> Importance:
    """Run the checkpoint over at most ``most`` ids of the texts.

    Raises:
        SettingError: the texts are too short to say anything (less than one block).
        BackendError: torch or transformers is missing, or the checkpoint does not load.
    """
    from outrider.quantize.torch_model import load_model, torch

    blocks = token_blocks(checkpoint.folder, texts, BLOCK, most)
    if not blocks:
        raise SettingError(f"the calibration text has less than {BLOCK} ids")
    model = load_model(checkpoint.folder)
    wanted = gguf_names(checkpoint, family_of(checkpoint).arch)
    sums: dict[str, Any] = {}
    hooks = [
        module.register_forward_pre_hook(_adder(sums, wanted[f"{name}.weight"]))
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and f"{name}.weight" in wanted
    ]
    if not hooks:
        raise BackendError(f"{checkpoint.folder} has no linear layer that is converted")
    seen = 0
    with torch.inference_mode():
        for block in blocks:
            model(input_ids=torch.tensor([block]), use_cache=False)
            seen += len(block)
            progress(seen, len(blocks) * BLOCK)
    for hook in hooks:
        hook.remove()
    return {name: (total / seen).numpy().astype(np.float32) for name, total in sums.items()}


def _adder(sums: dict[str, Any], name: str) -> Callable[[Any, tuple[Any, ...]], None]:
    def add(_module: Any, inputs: tuple[Any, ...]) -> None:
        (x, *_) = inputs
        squares = x.detach().float().square().reshape(-1, x.shape[-1]).sum(0)
        sums[name] = sums[name] + squares if name in sums else squares

    return add
