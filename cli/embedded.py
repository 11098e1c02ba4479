"""The pair of small models that comes with Outrider, and what is installed to run it."""

from __future__ import annotations

import importlib.util
import json
from importlib import resources
from pathlib import Path

from outrider.protocol.errors import BackendError

TARGET_NAME = "embedded-target"
"""What edges see where the cloud serves the target that comes with Outrider."""

DOMAINS = ("scripture", "docs", "source")


def folder() -> Path:
    """The folder of the embedded models."""
    return Path(str(resources.files("outrider.models")))


def drafter() -> Path:
    """The embedded draft pack."""
    return _present(folder() / "drafter")


def target(backend: str) -> Path:
    """The embedded target as ``backend`` reads it: its folder, or the GGUF file in it.

    ``auto`` takes transformers where it is installed, else llama.cpp.
    """
    place = _present(folder() / "target")
    if backend == "auto":
        backend = "llama" if _missing("torch", "transformers") and not _missing("llama_cpp") else ""
    return gguf_in(place) if backend == "llama" else place


def gguf_in(place: Path) -> Path:
    """The one GGUF file of a folder, so that a backend can be asked for without naming the file."""
    files = sorted(place.glob("*.gguf"))
    if len(files) != 1:
        names = ", ".join(file.name for file in files) or "none"
        raise BackendError(
            f"{place} has not exactly one .gguf file (found: {names}); name the file"
        )
    return files[0]


def prompts() -> dict[str, list[str]]:
    """The demonstration prompts by domain."""
    file = _present(folder() / "prompts.json")
    loaded: dict[str, list[str]] = json.loads(file.read_text("utf-8"))
    return loaded


def installed(module: str) -> bool:
    """Whether a library is there, without importing it."""
    return importlib.util.find_spec(module) is not None


def _missing(*modules: str) -> bool:
    return not all(installed(module) for module in modules)


def _present(path: Path) -> Path:
    if not path.exists():
        raise BackendError(f"the embedded models are not installed: {path} is missing")
    return path
