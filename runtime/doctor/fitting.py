"""Which of the models on this machine can draft for the target of a cloud that can be reached."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outrider.runtime.doctor.check import Check
from outrider.runtime.doctor.cloud import check_cloud
from outrider.runtime.doctor.pairs import Candidate, look
from outrider.runtime.hub.need import estimate, mib
from outrider.runtime.lm import memory
from outrider.runtime.text.tokenizer import load_tokenizer


@dataclass(frozen=True, slots=True)
class Fitting:
    """What came of asking a cloud about the models here.

    ``fit``: those that can draft, the smallest first. ``refused``: why each other cannot, by name.
    ``target``: what the cloud serves; None where no tokenizer here is its own, for a cloud tells
    that to no one else. ``unreachable``: what is wrong with the link itself, where something is.
    """

    fit: tuple[Candidate, ...]
    refused: dict[str, str]
    target: str | None = None
    unreachable: Check | None = None


def find_fitting(
    url: str,
    models: Sequence[Path],
    *,
    key: str | None = None,
    context: ssl.SSLContext | None = None,
) -> Fitting:
    """Shake hands once with each kind of tokenizer among ``models``, and weigh what is left."""
    fit: list[Candidate] = []
    refused: dict[str, str] = {}
    answers: dict[tuple[int, bytes], list[Check]] = {}
    target: str | None = None
    if (bad := _problem(check_cloud(url, None, key=key, context=context))) is not None:
        return Fitting((), {}, None, bad)
    for candidate in map(look, models):
        if candidate.wrong is not None or candidate.vocabulary is None:
            refused[candidate.name] = candidate.wrong or "it has no vocabulary"
            continue
        mark = candidate.vocabulary.fingerprint()
        kind = (mark.size, mark.ordinary)
        if kind not in answers:
            tokenizer = load_tokenizer(candidate.path)
            answers[kind] = check_cloud(url, tokenizer, key=key, context=context)
        bad = _problem(answers[kind])
        if bad is not None and bad.facts.get("code") != "tokenizer":
            return Fitting((), {}, None, bad)
        if bad is not None:
            refused[candidate.name] = "another tokenizer than the target's"
            continue
        target = next(c.facts["model"] for c in answers[kind] if c.name == "handshake")
        reason = _too_much(candidate, target)
        if reason is None:
            fit.append(candidate)
        else:
            refused[candidate.name] = reason
    fit.sort(key=lambda candidate: candidate.bytes)
    return Fitting(tuple(fit), refused, target)


def _problem(checks: Sequence[Check]) -> Check | None:
    return next((check for check in checks if check.state == "problem"), None)


def _too_much(candidate: Candidate, target: str) -> str | None:
    """Why a model with the right tokenizer is no drafter all the same; None if it is one."""
    if target in (candidate.path.name, candidate.path.stem):
        return "it is the target itself"
    need, free = estimate(candidate.path), memory.available()
    if free is not None and need.total > free:
        return f"needs {mib(need.total)}, {mib(free)} are available"
    return None
