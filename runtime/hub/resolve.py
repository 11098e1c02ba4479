"""From what a user calls a model to the file or folder that it is on this machine. No network."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from outrider.protocol.errors import BackendError, SettingError
from outrider.runtime.hub import select
from outrider.runtime.hub.fetch import repo_folder
from outrider.runtime.hub.names import ALIASES, Role, Wanted, is_path, parse


def resolve(name: str, role: Role = "drafter") -> Path:
    """The file or folder of a model named by path, alias, ``owner/repo`` or ``owner/repo:QUANT``.

    ``role`` says which half of a pair an alias means.

    Raises:
        SettingError: it is no name of a model.
        BackendError: it is not on this machine; says how to get it.
    """
    if is_path(name):
        path = Path(name).expanduser()
        if not path.exists():
            raise BackendError(f"no such file or folder: {name}")
        return path
    wanted = parse(name)
    model = next((w for w in wanted if w.role == role), wanted[0])
    found = find_local(model)
    if found is None:
        raise BackendError(f"{model} is not on this machine; get it first: outrider pull {name}")
    return found


def resolve_target(name: str) -> str:
    """The same for what a cloud serves, where a hub's name may also be left to transformers.

    A path stays what it is. ``owner/repo`` without a quantization that is not here as a GGUF model
    is given back as it came: transformers loads such folders, and gets them itself.

    Raises:
        SettingError, BackendError: as :func:`resolve`; the latter for an alias or a quantization.
    """
    if is_path(name):
        return name
    base, quantized, _ = name.partition(":")
    if quantized or base.lower() in ALIASES:
        return str(resolve(name, "target"))
    try:
        (model,) = parse(name)
    except SettingError:
        if repo_folder(name).is_dir():
            return name  # the oldest models on the hub had no owner in their names
        raise
    return str(find_local(model) or name)


def find_local(model: Wanted) -> Path | None:
    """The first place where the model is; of several quantizations the preferred one."""
    for folder in _folders(model):
        path = _pick(folder, model)
        if path is not None:
            return path
    return None


def own_folder(alias: str) -> Path:
    """Where models lie that did not come through the hub."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "outrider" / "models" / alias


def _folders(model: Wanted) -> Iterator[Path]:
    if model.alias is not None:
        yield own_folder(model.alias)
    cached = repo_folder(model.repo)
    with contextlib.suppress(OSError):
        yield cached / "snapshots" / (cached / "refs" / "main").read_text("ascii").strip()
    # Pulled by revision only: the newest that is there.
    snapshots = cached / "snapshots"
    if snapshots.is_dir():
        yield from sorted(snapshots.iterdir(), key=lambda p: p.stat().st_mtime, reverse=True)


def _pick(folder: Path, model: Wanted) -> Path | None:
    if not folder.is_dir():
        return None
    files = {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file()
    }
    ggufs = {name: size for name, size in files.items() if _belongs(name, model)}
    try:
        return folder / select.choose(ggufs, model.quant, model.repo).files[0]
    except BackendError:
        whole = model.quant is None and select.folder_files(files)
        return folder if whole else None


def _belongs(name: str, model: Wanted) -> bool:
    """A pair's folder holds both models: each is the file named like its repository."""
    stem = model.repo.rsplit("/", 1)[-1].lower().removesuffix("-gguf")
    base = name.rsplit("/", 1)[-1].lower()
    return model.alias is None or base.startswith(stem) or "/" in name
