"""Which models here draft for a target, and why the others do not."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.protocol.errors import OutriderError
from outrider.protocol.fingerprint import Vocabulary
from outrider.runtime.doctor.check import Check, ok, problem, warning
from outrider.runtime.hub.describe import describe
from outrider.runtime.hub.need import estimate, mib
from outrider.runtime.lm import memory
from outrider.runtime.text import fingerprint
from outrider.runtime.text.tokenizer import load_tokenizer

NAME = "drafters"

MOST = 0.6
"""A drafter larger than this share of its target is hardly quicker."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model on this machine. ``wrong`` says why it cannot be used at all, None if it can."""

    path: Path
    bytes: int
    family: str
    vocabulary: Vocabulary | None
    wrong: str | None

    @property
    def name(self) -> str:
        """What it is called in a list: a hub's snapshot goes by its repository."""
        folder = self.path.parent
        repository = folder.parent if folder.name == "snapshots" else folder.parent.parent
        if repository.name.startswith("models--"):
            name = repository.name.removeprefix("models--").replace("--", "/")
            return name if self.path.is_dir() else f"{name}: {self.path.name}"
        return f"{folder.name}/{self.path.name}" if self.path.is_dir() else self.path.name


def look(path: Path) -> Candidate:
    """What there is to know of a model without loading it."""
    try:
        facts = describe(path)
        vocabulary = fingerprint.describe(load_tokenizer(path))
    except OutriderError as error:
        return Candidate(path, 0, "", None, str(error))
    size, part = _weights(facts)
    return Candidate(path, size, _family(part), vocabulary, _unable(part))


def check_pairs(target: Path | None, models: Sequence[Path]) -> Iterator[Check]:
    """For the target, or without one for every model here: who drafts for it and who does not."""
    candidates = [look(path) for path in models]
    if target is not None:
        wanted = look(target)
        if wanted.vocabulary is None:
            yield problem(NAME, f"{target.name}: {wanted.wrong}", "name another target")
            return
        others = [c for c in candidates if c.path.resolve() != target.resolve()]
        yield _for(wanted, others, asked=True)
        return
    if not candidates:
        yield ok(NAME, "no models here but the embedded pair; outrider pull qwen2.5-coder gets two")
    for wanted in candidates:
        if wanted.vocabulary is not None:
            check = _for(wanted, [c for c in candidates if c is not wanted], asked=False)
            if check.facts["drafters"]:
                yield check


def _for(wanted: Candidate, others: Sequence[Candidate], *, asked: bool) -> Check:
    refused = {c.name: reason for c in others if (reason := refusal(c, wanted)) is not None}
    fit = sorted((c for c in others if c.name not in refused), key=lambda c: c.bytes)
    facts: dict[str, Any] = {
        "target": str(wanted.path),
        "drafters": [str(c.path) for c in fit],
        "refused": refused,
    }
    lines = [f"for {wanted.name}: " + (", ".join(c.name for c in fit) or "none of the models here")]
    lines += [f"not {name}: {reason}" for name, reason in refused.items()]
    says = "\n".join(lines)
    if not fit:
        do = "pull a smaller model of the same family and version as the target"
        return warning(NAME, says, do, **facts) if asked else ok(NAME, says, **facts)
    strangers = [c.name for c in fit if c.family != wanted.family]
    if len(strangers) == len(fit):
        return warning(
            NAME,
            says,
            "they have its tokenizer but another family or version, and may seldom be right: "
            "see the acceptance in outrider link",
            **facts,
        )
    return ok(NAME, says, **facts)


def refusal(candidate: Candidate, target: Candidate) -> str | None:
    """Why a model cannot or should not draft for a target; None if it can."""
    if candidate.wrong is not None:
        return candidate.wrong
    here, there = candidate.vocabulary, target.vocabulary
    assert here is not None  # nothing is wrong with either
    assert there is not None
    if (difference := _difference(here, there)) is not None:
        return difference
    if candidate.bytes > MOST * target.bytes:
        share = candidate.bytes / target.bytes
        return f"too large to be quicker: {share:.0%} of the target's size"
    need, free = estimate(candidate.path), memory.available()
    if free is not None and need.total > free:
        return f"needs {mib(need.total)}, {mib(free)} are available"
    return None


def _difference(here: Vocabulary, there: Vocabulary) -> str | None:
    """Where two tokenizers differ, special tokens aside: those are compared by role."""
    if here.size != there.size:
        return f"another tokenizer: {here.size:,} tokens, the target has {there.size:,}"
    for index, (mine, theirs) in enumerate(zip(here.entries, there.entries, strict=True)):
        if mine != theirs:
            return f"another tokenizer: token {index} is {mine!r}, the target's is {theirs!r}"
    return None


def _weights(facts: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Bytes of the weights, and what is known of the file (in a pack: of its largest)."""
    parts = [facts, *facts.get("models", ())]
    part = max(parts, key=lambda p: p.get("bytes") or 0)
    return int(part.get("bytes") or 0), part


def _unable(facts: dict[str, Any]) -> str | None:
    for text in facts.get("warnings", ()):
        if any(word in text for word in ("cannot be rewound", "encoder", "no weights")):
            return str(text)
    return None


def _family(facts: dict[str, Any]) -> str:
    """Architecture and name without the size: what models that were made together share."""
    name = str(facts.get("family") or facts.get("name") or "").lower()
    name = re.sub(r"\b\d+(\.\d+)?[bm]\b", "", name)
    return " ".join([str(facts.get("architecture")), *re.findall(r"[a-z0-9.]+", name)])
