"""How a model is named: an alias, ``owner/repo``, ``owner/repo:QUANT``, or a path."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from outrider.protocol.errors import SettingError

Role = Literal["drafter", "target"]
ROLES: tuple[Role, ...] = ("drafter", "target")
_REPO = re.compile(r"[\w.-]+/[\w.-]+")
_QUANT = re.compile(r"[A-Za-z0-9_]+")


@dataclass(frozen=True, slots=True)
class Pair:
    """The hub's repositories of a target and of a drafter made for it."""

    drafter: str
    target: str


ALIASES = {
    "qwen2.5-coder": Pair(
        drafter="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
        target="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
    ),
}
"""Names that stand for a pair; each half is taken where it is asked for."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A model on the hub. ``quant`` None: the preferred one. ``alias``: by which it was named."""

    repo: str
    quant: str | None
    role: Role | None = None
    alias: str | None = None

    def __str__(self) -> str:
        return f"{self.repo}:{self.quant}" if self.quant else self.repo


def parse(name: str) -> list[Wanted]:
    """What a name on the hub stands for: one model, or the two of a pair, drafter first.

    Raises:
        SettingError: it is no such name.
    """
    base, colon, quant = name.partition(":")
    if colon and not _QUANT.fullmatch(quant):
        raise SettingError(f"model {name!r}: after the colon comes a quantization, as in :Q4_K_M")
    if pair := ALIASES.get(base.lower()):
        repos = {"drafter": pair.drafter, "target": pair.target}
        return [Wanted(repos[role], quant or None, role, base.lower()) for role in ROLES]
    if _REPO.fullmatch(base) and ".." not in base:
        return [Wanted(base, quant or None)]
    raise SettingError(
        f"model {name!r} is no name on the hub: give owner/repo, owner/repo:QUANT or "
        f"one of {', '.join(ALIASES)}"
    )


def is_path(name: str) -> bool:
    """Whether a name means a place on this machine, there or not."""
    return (
        Path(name).expanduser().exists()
        or name.startswith((".", "~", os.sep))
        or name.endswith((".gguf", ".onnx", os.sep))
        or name.count("/") > 1
    )
