"""The manifest of a draft pack: what its files are, what they were made from, what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from outrider.protocol.errors import BackendError

MANIFEST_FILE = "outrider_pack.json"
FORMAT = 1


class Part(msgspec.Struct):
    """One drafter file. ``kind``: its quantization. ``measured``: what a report found."""

    name: str
    backend: str
    kind: str
    bytes: int
    sha256: str
    notes: list[str] = []
    measured: dict[str, Any] = {}


class Manifest(msgspec.Struct):
    """``fingerprint``: the root hash of the tokenizer, as in the handshake.

    ``preferred``: the GGUF file that is loaded where the pack holds several.
    """

    name: str
    source: str
    source_sha256: str
    architecture: str
    fingerprint: str
    licence: str | None = None
    sizes: dict[str, int] = {}
    parts: list[Part] = []
    preferred: str = ""
    format: int = FORMAT


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a folder, None where there is none.

    Raises:
        BackendError: it is broken, or of a newer format.
    """
    path = folder / MANIFEST_FILE
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, ValueError) as error:
        raise BackendError(f"cannot read {path}: {error}") from error
    if manifest.format != FORMAT:
        raise BackendError(
            f"{path} has format {manifest.format}; this version of Outrider reads format {FORMAT}"
        )
    return manifest
