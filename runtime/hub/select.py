"""Which of a repository's files make up the model that is wanted, and why the others do not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch

from outrider.protocol.errors import BackendError
from outrider.runtime.lm.memory import MIB

PREFERRED = ("Q4_K_M", "Q4_K_S", "Q5_K_M", "Q4_0", "Q5_0", "Q8_0", "Q6_K", "F16", "BF16", "F32")
"""In this order where none is asked for."""

_LABEL = re.compile(r"(?:^|[-._])((?:I?Q\d|TQ\d|MXFP4|BF16|F16|F32)[A-Z0-9_]*)(?=[-.]|$)", re.I)
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})$")
_NOT_A_MODEL = {"mmproj": "a projector for images", "imatrix": "statistics of a quantization"}
_FOLDER = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One model among the files: a GGUF file or its shards in order."""

    quant: str
    files: tuple[str, ...]
    size: int

    def __str__(self) -> str:
        return f"{self.quant} ({self.size / MIB:.0f} MiB)" if self.size else self.quant


def quant_of(name: str) -> str | None:
    """The quantization that a file's name states, in capitals."""
    stem = _SHARD.sub("", name.rsplit("/", 1)[-1].removesuffix(".gguf"))
    found = _LABEL.findall(stem)
    return found[-1].upper() if found else None


def candidates(sizes: Mapping[str, int]) -> tuple[list[Candidate], dict[str, str]]:
    """(the models among these files, why each other GGUF file is none)."""
    groups: dict[str, list[str]] = {}
    refused: dict[str, str] = {}
    for name in sorted(sizes):
        if not name.endswith(".gguf"):
            continue
        base = name.rsplit("/", 1)[-1].lower()
        other = next((why for start, why in _NOT_A_MODEL.items() if start in base), None)
        if other:
            refused[name] = other
        else:
            groups.setdefault(_SHARD.sub("", name.removesuffix(".gguf")), []).append(name)
    found = []
    for stem, names in groups.items():
        if missing := _missing_shards(names):
            refused[names[0]] = f"its parts {missing} are missing"
            continue
        size = sum(sizes[name] for name in names)
        found.append(Candidate(quant_of(stem) or "unnamed", tuple(names), size))
    return found, refused


def _missing_shards(names: list[str]) -> str:
    shards = [_SHARD.search(name.removesuffix(".gguf")) for name in names]
    first = shards[0]
    if first is None:
        return ""
    there = {int(shard[1]) for shard in shards if shard}
    return ", ".join(str(i) for i in range(1, int(first[2]) + 1) if i not in there)


def choose(sizes: Mapping[str, int], quant: str | None, repo: str) -> Candidate:
    """The one with the quantization asked for, else the most preferred one.

    Raises:
        BackendError: there is none, or the name fits several; lists what there is.
    """
    found, refused = candidates(sizes)
    there = ", ".join(map(str, sorted(found, key=lambda c: c.size))) or "no GGUF model"
    why = "".join(f"; {name} is {reason}" for name, reason in refused.items())
    if quant is None:
        ranked = sorted(found, key=_rank)
        if not ranked:
            raise BackendError(f"{repo} has no GGUF model{why}")
        fitting = [c for c in ranked if _rank(c) == _rank(ranked[0])]
    else:
        fitting = [c for c in found if c.quant == quant.upper()]
        if not fitting:
            raise BackendError(f"{repo} has no {quant.upper()}; it has {there}{why}")
    if len(fitting) > 1:
        names = ", ".join(c.files[0] for c in fitting)
        raise BackendError(f"{repo} has several files {fitting[0].quant}: {names}; use --file")
    return fitting[0]


def _rank(candidate: Candidate) -> int:
    quant = candidate.quant
    return PREFERRED.index(quant) if quant in PREFERRED else len(PREFERRED)


def folder_files(names: Iterable[str]) -> list[str]:
    """The files of a Hugging Face model folder; empty if these are not one."""
    top = [name for name in names if "/" not in name]
    files = [name for name in top if any(fnmatch(name, pattern) for pattern in _FOLDER)]
    whole = "config.json" in files and any(name.endswith(".safetensors") for name in files)
    return sorted(files) if whole else []
