"""torch and transformers, imported once, with errors that say what to install or mend."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

from outrider.protocol.errors import BackendError
from outrider.runtime.extras import hint

try:
    import torch
    import transformers
except ImportError as _error:
    raise BackendError(f"{_error.name} is not installed: {hint('quantize')}") from _error

__all__ = ["load_model", "torch", "transformers"]


def load_model(folder: Path, *, device: str = "cpu") -> Any:
    """A checkpoint in float32, ready to be evaluated.

    Raises:
        BackendError: transformers cannot load it, in its own words.
    """
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            model = transformers.AutoModelForCausalLM.from_pretrained(
                str(folder), dtype=torch.float32, local_files_only=True
            )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        line = str(error).strip().partition("\n")[0]
        raise BackendError(f"transformers cannot load {folder}: {line}") from error
    return model.eval().to(device)
