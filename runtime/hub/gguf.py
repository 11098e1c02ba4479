"""The header of a GGUF file, read without llama.cpp: what a model is before anything is loaded.

Only facts are kept; of the long lists (tokens, merges) the lengths. The reader trusts nothing: a
file cut short, or one that only looks like GGUF, gives an error that says so.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from outrider.protocol.errors import BackendError

MAGIC = b"GGUF"
EMBEDDINGS = "token_embd.weight"
_VERSIONS = (2, 3)
_ALIGNMENT = 32
_MOST_ENTRIES = 1 << 20
_MOST_TENSORS = 1 << 17
_MOST_DIMENSIONS = 4
_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
# ggml's tensor types: name, values in a block, bytes of a block.
_TENSOR_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
}
# What general.file_type says the file is mostly made of.
_FILE_TYPES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4",
}


class Place(NamedTuple):
    """Where a tensor lies in its file: bytes before it, its type, its shape (fastest first)."""

    offset: int
    kind: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """``facts``: every scalar and text of the header. ``lengths``: of every list, its length.

    ``lists`` has the short lists whole. ``parameters`` counts the weights' values, ``tensor_bytes``
    what they take in the file. ``embeddings``: where those of the tokens lie, if they are there.
    """

    path: Path
    version: int
    facts: dict[str, Any]
    lengths: dict[str, int]
    lists: dict[str, list[Any]]
    tensors: int
    parameters: int
    tensor_bytes: int
    types: dict[str, int] = field(default_factory=dict)
    embeddings: Place | None = None

    @property
    def architecture(self) -> str:
        """The family of the model: ``llama``, ``qwen2``..."""
        return str(self.facts.get("general.architecture", "unknown"))

    @property
    def quantization(self) -> str:
        """By the file's own account, else the type that most values have."""
        stated = _FILE_TYPES.get(int(self.facts.get("general.file_type", -1)) & 0x3FF)
        return stated or (max(self.types, key=self.types.__getitem__) if self.types else "unknown")

    def number(self, key: str) -> int | None:
        """A number under the architecture's own name; of a list (one a layer) the largest."""
        full = f"{self.architecture}.{key}"
        value = self.facts.get(full)
        if value is None and self.lists.get(full):
            value = max(self.lists[full])
        return int(value) if isinstance(value, int | float) else None


def read_header(path: str | Path) -> GgufHeader:
    """Read the header and check that the file holds all the weights that it announces.

    Raises:
        BackendError: no such file, a folder, not GGUF, a version that nobody reads, cut short.
    """
    path = Path(path)
    if path.is_dir():
        raise BackendError(f"{path} is a folder; give the .gguf file inside it")
    if not path.exists():
        raise BackendError(f"no such file: {path}")
    try:
        size = path.stat().st_size
        if size == 0:
            raise BackendError(f"{path} is empty")
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view,
        ):
            return _read(path, _Reader(view, path), size)
    except OSError as error:
        raise BackendError(f"cannot read {path}: {error.strerror or error}") from error


class _Reader:
    """A place in the file that moves on as values are read."""

    def __init__(self, view: mmap.mmap, path: Path) -> None:
        self.at = 0
        self._view = view
        self._path = path

    def take(self, form: str) -> Any:
        end = self._reach(struct.calcsize(form))
        (value,) = struct.unpack_from(form, self._view, self.at)
        self.at = end
        return value

    def text(self) -> str:
        end = self._reach(self.take("<Q"))
        value = self._view[self.at : end].decode("utf-8", "replace")
        self.at = end
        return value

    def skip_texts(self, count: int) -> None:
        for _ in range(count):
            self.at = self._reach(self.take("<Q"))

    def skip(self, count: int) -> None:
        self.at = self._reach(count)

    def _reach(self, count: int) -> int:
        end = self.at + int(count)
        if end > len(self._view):
            raise BackendError(
                f"{self._path} is cut short: its header goes on past the end of the file "
                f"({len(self._view)} bytes); get the file again"
            )
        return end


def _read(path: Path, reader: _Reader, size: int) -> GgufHeader:
    magic = reader._view[:4]
    if magic != MAGIC:
        raise BackendError(f"{path} is not a GGUF file (it starts with {magic!r}, not {MAGIC!r})")
    reader.skip(4)
    version = reader.take("<I")
    if version not in _VERSIONS:
        big = " (it was written for a big-endian machine)" if version & 0xFFFF == 0 else ""
        raise BackendError(f"{path} is GGUF version {version}{big}; versions 2 and 3 are read")
    tensors, entries = reader.take("<Q"), reader.take("<Q")
    if entries > _MOST_ENTRIES or tensors > _MOST_TENSORS:
        raise BackendError(f"{path} is broken: {entries} entries and {tensors} tensors announced")
    facts: dict[str, Any] = {}
    lengths: dict[str, int] = {}
    lists: dict[str, list[Any]] = {}
    for _ in range(entries):
        key, kind = reader.text(), reader.take("<I")
        if kind == _ARRAY:
            _read_list(path, reader, key, lengths, lists)
        else:
            facts[key] = _read_value(path, reader, kind)
    places: dict[str, Place] = {}
    parameters, end, types = _read_tensors(path, reader, tensors, places)
    alignment = int(facts.get("general.alignment", _ALIGNMENT)) or _ALIGNMENT
    start = -(-reader.at // alignment) * alignment
    if tensors and size < start + end:
        raise BackendError(
            f"{path} is cut short: {size} bytes of {start + end}; get the file again"
        )
    table = places.get(EMBEDDINGS)
    if table is not None:
        table = table._replace(offset=start + table.offset)
    return GgufHeader(
        path, version, facts, lengths, lists, tensors, parameters, size - start, types, table
    )


def _read_value(path: Path, reader: _Reader, kind: int) -> Any:
    if kind == _STRING:
        return reader.text()
    if kind not in _SCALARS:
        raise BackendError(f"{path} is broken: a value of the unknown type {kind} in its header")
    return reader.take(_SCALARS[kind])


_SHORT = 512


def _read_list(
    path: Path,
    reader: _Reader,
    key: str,
    lengths: dict[str, int],
    lists: dict[str, list[Any]],
) -> None:
    """Keep the length; the values too where there are few, as for one number a layer."""
    kind, count = reader.take("<I"), reader.take("<Q")
    lengths[key] = count
    if kind == _STRING:
        reader.skip_texts(count)
    elif kind in _SCALARS and count <= _SHORT:
        lists[key] = [reader.take(_SCALARS[kind]) for _ in range(count)]
    elif kind in _SCALARS:
        reader.skip(count * struct.calcsize(_SCALARS[kind]))
    else:
        raise BackendError(f"{path} is broken: a list of the unknown type {kind} in its header")


def _read_tensors(
    path: Path, reader: _Reader, count: int, places: dict[str, Place]
) -> tuple[int, int, dict[str, int]]:
    """(values, bytes of data needed, values by type). Fills ``places``, from the data's start."""
    parameters, end = 0, 0
    types: dict[str, int] = {}
    for _ in range(count):
        name, dimensions = reader.text(), reader.take("<I")
        if dimensions > _MOST_DIMENSIONS:
            raise BackendError(f"{path} is broken: tensor {name!r} has {dimensions} dimensions")
        shape = tuple(reader.take("<Q") for _ in range(dimensions))
        values = math.prod(shape)
        kind, offset = reader.take("<I"), reader.take("<Q")
        # A type that is newer than this table: its size is not known, its place is.
        label, block, block_bytes = _TENSOR_TYPES.get(kind, (f"type {kind}", 1, 0))
        places[name] = Place(offset, label, shape)
        parameters += values
        types[label] = types.get(label, 0) + values
        end = max(end, offset + values // block * block_bytes)
    return parameters, end, types
