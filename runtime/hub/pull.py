"""Everything of one model from the hub, or out of the cache where the hub cannot be asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from outrider.protocol.errors import BackendError
from outrider.runtime.hub import select
from outrider.runtime.hub.fetch import fetch
from outrider.runtime.hub.names import Wanted
from outrider.runtime.hub.remote import OfflineError, RemoteFile, list_files
from outrider.runtime.hub.resolve import find_local

Report = Callable[[str, int, int], None]
"""Told of a file's name, the bytes that are there and its size."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """A model on this machine. ``path`` is what to give to the other commands.

    ``checked``: the checksums were compared with the hub's. ``note``: what the user should know.
    """

    model: Wanted
    path: Path
    files: tuple[RemoteFile, ...]
    checked: bool
    note: str | None = None


def plan(model: Wanted, file: str | None = None) -> list[RemoteFile]:
    """The files to get for a model: one named file, a GGUF (or its shards), a model folder.

    Raises:
        OfflineError: the hub was not asked or does not answer.
        BackendError: no such repository, file or quantization; lists what there is.
    """
    files = list_files(model.repo)
    if file is not None:
        if file not in files:
            ggufs = [name for name in files if name.endswith(".gguf")] or sorted(files)[:10]
            raise BackendError(f"{model.repo} has no file {file}; it has {', '.join(ggufs)}")
        return [files[file]]
    if not any(name.endswith(".gguf") for name in files) and model.quant is None:
        whole = select.folder_files(files)
        if whole:
            return [files[name] for name in whole]
    sizes = {name: remote.size for name, remote in files.items()}
    return [files[name] for name in select.choose(sizes, model.quant, model.repo).files]


def pull(model: Wanted, file: str | None = None, report: Report = lambda *_: None) -> Pulled:
    """Get a model, or say that the cached one is used because the hub cannot be asked.

    Raises:
        BackendError: it cannot be had; says why and what to do.
    """
    try:
        files = plan(model, file)
    except OfflineError as error:
        cached = find_local(model) if file is None else None
        if cached is None:
            raise BackendError(f"{error}. It is not in the cache either") from error
        return Pulled(model, cached, (), False, f"not checked against the hub: {error}")
    paths = [
        fetch(remote, lambda done, remote=remote: report(remote.name, done, remote.size))  # type: ignore[misc]
        for remote in files
    ]
    path = paths[0] if paths[0].suffix == ".gguf" or file is not None else paths[0].parent
    return Pulled(model, path, tuple(files), all(remote.sha256 for remote in files))
