"""Quantization of a GGUF file by llama.cpp's own code, weighed by an importance matrix or not."""

from __future__ import annotations

import ctypes
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outrider.protocol.errors import BackendError, SettingError
from outrider.quantize.folder import saving
from outrider.quantize.gguf_file import PLAIN
from outrider.runtime.lm.llama_library import apart, complaints, library, reason

QUANTIZED = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_0", "IQ4_NL", "Q3_K_M", "Q2_K")
TYPES = (*PLAIN, *QUANTIZED)

Importance = Mapping[str, NDArray[np.float32]]
"""For each matrix by its name in the file: the mean square of each input, over some text."""


@dataclass(frozen=True, slots=True)
class Quantized:
    """``fallbacks``: matrices that took another type than a file of this kind would give them,

    because the length of their rows is no multiple of 256. ``types`` counts tensors by type.
    """

    path: Path
    kind: str
    bytes: int
    types: Mapping[str, int]
    fallbacks: int

    @property
    def note(self) -> str:
        """What a user should know; empty if all went as asked."""
        if not self.fallbacks:
            return ""
        return (
            f"{self.fallbacks} matrices have rows that {self.kind} cannot pack (no multiple of "
            "256) and took a wider type"
        )


def check_kind(kind: str) -> str:
    """The type by its proper name.

    Raises:
        SettingError: there is none of that name.
    """
    for known in TYPES:
        if known.lower() == kind.lower():
            return known
    raise SettingError(f"type {kind!r} is not known; types are {', '.join(TYPES)}")


def quantize_gguf(
    source: Path,
    out: Path,
    kind: str,
    *,
    importance: Importance | None = None,
    threads: int = 1,
    again: bool = False,
) -> Quantized:
    """Quantize an F32, F16 or BF16 file; with ``again`` also one that is quantized already.

    Raises:
        BackendError: llama.cpp refuses, in its own words, or there is no room on the disk.
    """
    api = library()
    params = api.llama_model_quantize_default_params()
    params.ftype = getattr(api, f"LLAMA_FTYPE_MOSTLY_{kind}")
    params.nthread = threads
    params.allow_requantize = again
    matrix = _matrix(importance) if importance else None
    if matrix is not None:
        params.imatrix = ctypes.cast(matrix, type(params.imatrix))
    with saving(out, source.stat().st_size // (1 if again else 2)) as part, complaints() as lines:
        failed = apart(
            lambda: api.llama_model_quantize(
                os.fsencode(source), os.fsencode(part), ctypes.byref(params)
            )
        )
        if failed:
            raise BackendError(f"llama.cpp cannot quantize {source} to {kind}{reason(lines)}")
    return describe_types(out, kind)


def describe_types(path: Path, kind: str) -> Quantized:
    """Count the tensors of a file by type."""
    import gguf

    types: Counter[str] = Counter()
    fallbacks = 0
    packs_256 = kind in QUANTIZED and "_K" in kind
    for tensor in gguf.GGUFReader(str(path)).tensors:
        name = tensor.tensor_type.name
        types[name] += 1
        if packs_256 and len(tensor.shape) > 1 and int(tensor.shape[0]) % 256:
            fallbacks += 1
    return Quantized(path, kind, path.stat().st_size, dict(types), fallbacks)


def _matrix(importance: Importance) -> ctypes.Array[ctypes.Structure]:
    """llama.cpp's array of named vectors, ended by one without a name."""
    api = library()
    entry = api.llama_model_imatrix_data
    array = (entry * (len(importance) + 1))()
    kept = []
    for slot, (name, values) in zip(array, importance.items(), strict=False):
        data = np.ascontiguousarray(values, np.float32)
        kept.append(data)
        slot.name = name.encode()
        slot.data = data.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        slot.size = data.size
    array.kept = kept  # the vectors live as long as the array
    found: ctypes.Array[ctypes.Structure] = array
    return found
