"""A Hugging Face causal-LM folder: its configuration, its tensors one at a time, its licence.

Tensors are read lazily, so that a conversion never holds the model: one tensor at a time.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outrider.protocol.errors import BackendError
from outrider.runtime.extras import hint
from outrider.runtime.hub.describe import check_safetensors
from outrider.runtime.hub.need import read_json

_LICENCE = re.compile(r"^license:\s*[\"']?([\w.+-]+)", re.MULTILINE)
_MOST_README = 1 << 20


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """``config``: of the text model. ``names``: every tensor and the file that has it."""

    folder: Path
    config: dict[str, Any]
    names: dict[str, Path] = field(repr=False)

    @property
    def family(self) -> str:
        """transformers' ``model_type``."""
        return str(self.config.get("model_type") or "")

    @property
    def tied(self) -> bool:
        """Whether the output projection is the embedding."""
        return "lm_head.weight" not in self.names

    @property
    def licence(self) -> str | None:
        """What the model card states, if there is one."""
        card = self.folder / "README.md"
        if not card.is_file() or card.stat().st_size > _MOST_README:
            return None
        found = _LICENCE.search(card.read_text("utf-8", "replace"))
        return found.group(1) if found else None

    @property
    def name(self) -> str:
        """The folder's name, or the repository's where the folder is one of the hub's cache."""
        folder = self.folder.resolve()
        if folder.parent.name == "snapshots":
            folder = Path(folder.parent.parent.name.rpartition("--")[2])
        return folder.name.encode("utf-8", "replace").decode() or "drafter"

    def fingerprint(self) -> str:
        """A hash of the configuration and of all weights."""
        digest = hashlib.sha256((self.folder / "config.json").read_bytes())
        for file in sorted(set(self.names.values())):
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        return digest.hexdigest()

    def number(self, *keys: str) -> int:
        """The first of these settings that is there.

        Raises:
            BackendError: none is, or it is not positive.
        """
        for key in keys:
            value = self.config.get(key)
            if isinstance(value, int) and not isinstance(value, bool):
                if value < 1:
                    raise BackendError(f"{self.folder}/config.json: {key} is {value}")
                return value
        raise BackendError(f"{self.folder}/config.json does not say {keys[0]}")

    def tensors(self) -> Iterator[tuple[str, Any]]:
        """Every tensor in the order of the names, as torch tensors, one in memory at a time."""
        with ExitStack() as stack:
            opened: dict[Path, Any] = {}
            for name, file in self.names.items():
                if file not in opened:
                    opened[file] = stack.enter_context(_open(file))
                yield name, opened[file].get_tensor(name)

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Every tensor's shape, from the headers."""
        with ExitStack() as stack:
            opened: dict[Path, Any] = {}
            for name, file in self.names.items():
                if file not in opened:
                    opened[file] = stack.enter_context(_open(file))
                yield name, tuple(opened[file].get_slice(name).get_shape())


def read_checkpoint(folder: str | Path) -> Checkpoint:
    """Look at a folder, and check that all of its weights are there and whole.

    Raises:
        BackendError: a file is missing, cut short or broken; says which.
    """
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise BackendError(f"{folder} is not a folder with a checkpoint")
    config = read_json(folder / "config.json")
    if not config:
        raise BackendError(f"{folder} has no config.json: it is no Hugging Face checkpoint")
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise BackendError(f"{folder} has no .safetensors (older .bin weights are not read)")
    index = read_json(folder / "model.safetensors.index.json").get("weight_map")
    named = set(index.values()) if isinstance(index, dict) else set()
    if missing := sorted(named - {file.name for file in files}):
        raise BackendError(f"{folder} lacks {', '.join(missing)}; get the folder again")
    names: dict[str, Path] = {}
    for file in files:
        if named and file.name not in named:
            continue
        for name in check_safetensors(file):
            names[name] = file
    text = config.get("text_config")
    return Checkpoint(folder, text if isinstance(text, dict) else config, names)


def _open(file: Path) -> Any:
    try:
        from safetensors import safe_open
    except ImportError as error:
        raise BackendError(f"safetensors is not installed: {hint('quantize')}") from error
    return safe_open(str(file), framework="pt")
