"""Load a language model from a path: which backend, and why."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from outrider.protocol.errors import BackendError, SettingError
from outrider.runtime.lm.base import CausalLM
from outrider.runtime.lm.manifest import MANIFEST_FILE, read_manifest
from outrider.runtime.lm.memory import DEFAULT_CTX
from outrider.runtime.lm.selfcheck import check_rewind

Backend = Literal["auto", "onnx", "llama"]
BACKENDS: tuple[Backend, ...] = ("auto", "onnx", "llama")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model, the backend it runs on, the file it came from and why (to be shown to the user)."""

    lm: CausalLM
    backend: str
    path: Path
    note: str


def load_lm(
    path: str | Path,
    backend: str = "auto",
    *,
    n_ctx: int = 0,
    threads: int = 1,
    n_seq: int = 1,
    kv: str | None = None,
    gpu_layers: int | None = None,
) -> Loaded:
    """Load a ``.gguf`` file, an ``.onnx`` file or a folder (draft pack) that holds either or both.

    ``auto`` on a folder takes llama.cpp where it is installed and the folder has a ``.gguf``, else
    ONNX. ``n_ctx`` 0 is the model's own, of a GGUF file at most DEFAULT_CTX. ``n_seq``, ``kv``
    and ``gpu_layers`` concern llama.cpp. The model has passed :func:`check_rewind`.

    Raises:
        SettingError: settings that contradict each other or the path.
        BackendError: nothing to load there, or it does not load.
    """
    file, kind, note = choose(Path(path), backend)
    if kind == "onnx":
        for setting, value in (("kv", kv), ("gpu_layers", gpu_layers)):
            if value is not None:
                raise SettingError(f"{setting} is for llama.cpp; {note} cannot honour it")
        from outrider.runtime.lm.onnx import OnnxLM

        lm: CausalLM
        lm = onnx = OnnxLM.load(file, n_ctx, threads=threads)
        note += f"; {onnx.note}" if onnx.note else ""
    else:
        from outrider.runtime.lm.llama_cpp import LlamaLM

        optional: dict[str, Any] = {"kv": kv, "gpu_layers": gpu_layers}
        given = {name: value for name, value in optional.items() if value is not None}
        lm = LlamaLM.load(file, n_ctx or DEFAULT_CTX, n_seq, threads=threads, **given)
        if not n_ctx and lm.n_ctx == DEFAULT_CTX:
            note += f"; context {DEFAULT_CTX}, which is the most unless more is asked for"
    try:
        check_rewind(lm)
    except BaseException:
        lm.close()
        raise
    return Loaded(lm, kind, file, note)


def choose(path: Path, backend: str = "auto") -> tuple[Path, Literal["onnx", "llama"], str]:
    """Decide (file, backend, reason) for a path, without loading anything.

    Raises:
        SettingError: the backend is unknown or does not read this path.
        BackendError: there is nothing to load.
    """
    if backend not in BACKENDS:
        raise SettingError(f"backend is {backend!r}; it must be one of {', '.join(BACKENDS)}")
    if not path.exists():
        raise BackendError(f"no such file or folder: {path}")
    if path.is_dir():
        return _choose_in_folder(path, backend)
    kind: Literal["onnx", "llama"] = "onnx" if path.suffix == ".onnx" else "llama"
    if kind == "llama" and path.suffix != ".gguf":
        raise BackendError(f"{path} is neither a .gguf nor an .onnx file")
    if backend not in ("auto", kind):
        raise SettingError(f"backend is {backend!r}, but {path.name} is a file for {kind!r}")
    return path, kind, f"{kind}: {path.name} was given"


def _choose_in_folder(folder: Path, backend: str) -> tuple[Path, Literal["onnx", "llama"], str]:
    onnx = folder / "model.onnx"
    ggufs = sorted(folder.glob("*.gguf"))
    if not ggufs and not onnx.exists():
        raise BackendError(f"{folder} holds neither model.onnx nor a .gguf file")
    if backend == "onnx" or (backend == "auto" and not ggufs):
        if not onnx.exists():
            raise SettingError(f"backend is 'onnx', but {folder} has no model.onnx")
        asked = "it was asked for" if backend == "onnx" else "the folder has no .gguf file"
        return onnx, "onnx", f"onnx: {asked}"
    if not ggufs:
        raise SettingError(f"backend is 'llama', but {folder} has no .gguf file")
    installed = importlib.util.find_spec("llama_cpp") is not None
    if backend == "auto" and not installed and onnx.exists():
        return onnx, "onnx", "onnx: llama.cpp is not installed"
    preferred = _preferred(folder)
    if preferred in [file.name for file in ggufs]:
        return folder / preferred, "llama", f"llama: {MANIFEST_FILE} prefers {preferred}"
    if len(ggufs) > 1:
        names = ", ".join(file.name for file in ggufs)
        raise SettingError(f"{folder} has several .gguf files ({names}); name one of them")
    why = "it was asked for" if backend == "llama" else f"the folder has {ggufs[0].name}"
    return ggufs[0], "llama", f"llama: {why}"


def _preferred(folder: Path) -> str:
    manifest = read_manifest(folder)
    return manifest.preferred if manifest else ""
