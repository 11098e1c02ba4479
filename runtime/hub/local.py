"""The models that lie on this machine, wherever a pull or another program of the hub put them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from outrider.runtime.hub.fetch import cache_folder
from outrider.runtime.hub.resolve import own_folder

_LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$")


def local_models() -> list[Path]:
    """GGUF files (of several parts the first) and folders with weights, each once, by name."""
    found: dict[Path, Path] = {}
    for path in (*_own(), *_hub()):
        found.setdefault(Path(os.path.realpath(path)), path)
    return sorted(found.values(), key=lambda path: path.name.lower())


def _own() -> Iterator[Path]:
    yield from _ggufs(own_folder("").parent / "models")


def _hub() -> Iterator[Path]:
    """Of each repository what its newest snapshot holds."""
    for repo in sorted(cache_folder().glob("models--*")):
        snapshots = sorted((repo / "snapshots").glob("*"), key=lambda path: path.stat().st_mtime)
        for folder in snapshots[-1:]:
            yield from _ggufs(folder)
            if (folder / "config.json").is_file() and any(folder.glob("*.safetensors")):
                yield folder


def _ggufs(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        for path in folder.rglob("*.gguf"):
            if path.is_file() and not _LATER_PART.search(path.name):
                yield path
