"""torch and transformers, imported once, with errors that say what to install or mend."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

from outrider.protocol.errors import BackendError, SettingError
from outrider.quantize.checkpoint import read_checkpoint
from outrider.runtime.extras import hint

try:
    import torch
    import transformers
except ImportError as _error:
    raise BackendError(f"{_error.name} is not installed: {hint('quantize')}") from _error

__all__ = ["load_model", "torch", "transformers"]


def device_of(name: str) -> str:
    """A device that torch can use here.

    Raises:
        SettingError: there is none of that name.
    """
    if name.partition(":")[0] not in ("cpu", "cuda"):
        raise SettingError(f"device {name!r} is neither cpu nor cuda")
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was built with CUDA
        line = str(error).strip().partition("\n")[0]
        raise SettingError(f"device {name!r} cannot be used here: {line}") from error
    return name


def load_model(folder: Path, *, device: str = "cpu") -> Any:
    """A checkpoint in float32, ready to be evaluated.

    Raises:
        BackendError: a file is missing or cut short, weights are missing (transformers would make
        some up), or transformers cannot load it, in its own words.
    """
    read_checkpoint(folder)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            model, found = transformers.AutoModelForCausalLM.from_pretrained(
                str(folder), dtype=torch.float32, local_files_only=True, output_loading_info=True
            )
            model = model.eval().to(device)
    except MemoryError as error:
        raise BackendError(f"there is not enough memory for {folder}") from error
    except Exception as error:  # a wrong setting may fail anywhere in a model's own code
        line = str(error).strip().partition("\n")[0]
        raise BackendError(
            f"transformers cannot load {folder}: {line or type(error).__name__}"
        ) from error
    if missing := sorted(found["missing_keys"]):
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise BackendError(f"{folder} lacks the weights {', '.join(missing[:3])}{more}")
    return model
