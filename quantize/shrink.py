"""A drafter for a target that has no small sibling: some of its own layers, then distilled."""

from __future__ import annotations

from pathlib import Path

from outrider.protocol.errors import BackendError, SettingError
from outrider.quantize.checkpoint import Checkpoint
from outrider.quantize.folder import refuse_a_model, write_checkpoint
from outrider.quantize.torch_model import load_model, torch


def kept_layers(have: int, keep: int) -> list[int]:
    """Which layers stay: the first, the last, and those in between at even distances.

    Raises:
        SettingError: there is nothing to drop or nothing left.
    """
    if not 1 <= keep < have:
        raise SettingError(f"layers is {keep}; the model has {have}, of which 1 to {have - 1} stay")
    if keep == 1:
        return [0]
    return [round(i * (have - 1) / (keep - 1)) for i in range(keep)]


def shrink(checkpoint: Checkpoint, out: Path, keep: int) -> list[int]:
    """Write a checkpoint with ``keep`` layers of another; embeddings and head stay as they are.

    Returns the layers that were kept.

    Raises:
        SettingError: see :func:`kept_layers`; or ``out`` holds a model.
        BackendError: the layers cannot be told apart in this architecture.
    """
    have = checkpoint.number("num_hidden_layers")
    kept = kept_layers(have, keep)
    refuse_a_model(out)
    model = load_model(checkpoint.folder)
    stacks = [
        (module, name)
        for module in model.modules()
        for name, child in module.named_children()
        if isinstance(child, torch.nn.ModuleList) and len(child) == have
    ]
    if len(stacks) != 1:
        raise BackendError(f"{checkpoint.folder}: cannot tell which modules are its layers")
    owner, name = stacks[0]
    layers = getattr(owner, name)
    setattr(owner, name, torch.nn.ModuleList(layers[i] for i in kept))
    model.config.num_hidden_layers = keep
    if getattr(model.config, "layer_types", None):
        model.config.layer_types = [model.config.layer_types[i] for i in kept]
    out.mkdir(parents=True, exist_ok=True)
    write_checkpoint(out, model.save_pretrained, tokenizer=checkpoint.folder)
    return kept
