"""What a report reads: the drafter files, the target and the texts, by domain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from outrider.protocol.errors import BackendError, SettingError
from outrider.quantize.pack import write_manifest
from outrider.quantize.report import BLOCK, Blocks, Variant
from outrider.quantize.text import read_texts, token_blocks
from outrider.runtime.lm.base import CausalLM
from outrider.runtime.lm.factory import load_lm
from outrider.runtime.lm.manifest import read_manifest
from outrider.runtime.lm.onnx import MODEL_FILE
from outrider.runtime.text.tokenizer import load_tokenizer


@dataclass(frozen=True, slots=True)
class Measured:
    """Blocks of ids by domain; ``size``: ids of the target's tokenizer."""

    blocks: Blocks
    size: int


def files_of(packs: Sequence[Path]) -> list[Path]:
    """Every drafter in folders, and the files that were named themselves.

    Raises:
        BackendError: a path does not exist or holds no drafter.
    """
    files: list[Path] = []
    for path in packs:
        found = [path] if path.is_file() else [*sorted(path.glob("*.gguf")), path / MODEL_FILE]
        found = [file for file in found if file.is_file()]
        if not found:
            raise BackendError(f"{path} holds neither a .gguf file nor {MODEL_FILE}")
        files += found
    return list({file.resolve(): file for file in files}.values())


def open_target(path: Path) -> CausalLM:
    """A checkpoint by transformers, anything else by its backend."""
    if path.is_dir() and any(path.glob("*.safetensors")):
        from outrider.quantize.torch_lm import TorchLM

        return TorchLM(path)
    return load_lm(path, n_ctx=2 * BLOCK).lm


def blocks_of(target: Path, texts: Sequence[Path], most: int) -> Measured:
    """Each text file or folder is a domain, by its name.

    Raises:
        SettingError: a text is too short or cannot be read.
    """
    tokenizer = load_tokenizer(target)
    blocks = {}
    for path in texts:
        found = token_blocks(target, read_texts(path), BLOCK, most * BLOCK, tokenizer)
        if not found:
            raise SettingError(f"{path} has less than {BLOCK} ids")
        blocks[path.stem] = found
    return Measured(blocks, tokenizer.size)


def record(packs: Sequence[Path], variants: Sequence[Variant]) -> None:
    """Write what was measured into the manifests of the packs."""
    by_file = {variant.file.resolve(): variant for variant in variants}
    for folder in packs:
        manifest = read_manifest(folder) if folder.is_dir() else None
        if manifest is None:
            continue
        for part in manifest.parts:
            found = by_file.get((folder / part.name).resolve())
            if found is not None:
                part.measured = msgspec.to_builtins(found.facts())
        write_manifest(folder, manifest)
