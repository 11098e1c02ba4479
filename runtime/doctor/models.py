"""The draft model: its files, its memory, whether it runs, how it cuts texts into tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from outrider.protocol.errors import OutriderError
from outrider.runtime.doctor import child
from outrider.runtime.doctor.check import Check, ok, problem, warning
from outrider.runtime.hub.describe import describe, memory_facts
from outrider.runtime.hub.need import advice, estimate, mib
from outrider.runtime.lm import memory
from outrider.runtime.lm.factory import choose
from outrider.runtime.text.tokenizer import Tokenizer, load_tokenizer

CORPUS = {
    "accents": "Ärger über naïve façades in Łódź; Ελλάδα, Привет",
    "digits": "0 12 345 6789 3.14159 1e-9 0xFF 2026-11-30 ١٢٣",
    "emoji": "🙂🎉👍🏽🇩🇪",
    "joined emoji": "👩‍👩‍👧‍👦 ❤️‍🔥 e\u0301 \u200b",
    "CJK": "从前有一座山。日本語のテキスト、한국어 문장",
    "code": "for (int i = 0; i < n; ++i) {\n\tif (a[i] != b->c) return f(x)[1:-1];\n}\n",
    "white space": " a  b   c    d\t\te\n\n\n   f\r\n\u00a0g\u3000h ",
}
"""Texts on which tokenizers of one name are known to differ."""

_RUN = """
import json, sys, time
from outrider.runtime.lm.factory import load_lm
started = time.monotonic()
lm = load_lm(sys.argv[1], n_ctx=int(sys.argv[2])).lm
loaded = time.monotonic()
lm.feed([1, 2, 3])
steps = 8
begun = time.monotonic()
for token in range(steps):
    lm.feed([token + 4])
step = (time.monotonic() - begun) / steps
print(json.dumps({"load_seconds": loaded - started, "step_seconds": step}))
"""
SLOW_STEP = 0.2
"""Seconds a token from which drafting can hardly pay."""


def check_model(path: Path, n_ctx: int) -> Iterator[Check]:
    """Files, memory, a few steps in a child process, then the tokenizer."""
    try:
        facts = describe(path, n_ctx)
        _, kind, note = choose(path)
    except OutriderError as error:
        yield problem("draft model", str(error), "give a model: a path, or outrider pull NAME")
        return
    yield from _files(path, facts, note)
    fits = _fits(path, n_ctx)
    yield fits
    if fits.state != "problem":  # loading it would be the harm that the check is there to prevent
        yield _runs(path, n_ctx, kind)
    yield from check_tokens(path)


def needed_module(path: Path) -> str | None:
    """The module that a model needs; None if it cannot be told."""
    try:
        return "onnxruntime" if choose(path)[1] == "onnx" else "llama_cpp"
    except OutriderError:
        return None


def _files(path: Path, facts: dict[str, Any], note: str) -> Iterator[Check]:
    warnings = [*facts["warnings"]]
    for part in facts.get("models", ()):
        warnings += [f"{Path(part['path']).name} {text}" for text in part["warnings"]]
    if warnings:
        for text in warnings:
            yield warning("draft model", f"{path.name}: {text}", "get another file of this model")
        return
    yield ok("draft model", f"{path} ({note})", path=str(path))


def _fits(path: Path, n_ctx: int) -> Check:
    need, free = estimate(path, n_ctx), memory.available()
    facts = {"need": memory_facts(need), "available": free}
    if free is None:
        return ok("draft model's memory", f"needs {need}", **facts)
    says = f"needs {need}; {mib(free)} are available"
    if need.total > free:
        return problem("draft model's memory", says, advice(need, free), **facts)
    if need.total > 0.8 * free:
        return warning("draft model's memory", says, advice(need, int(0.8 * free)), **facts)
    return ok("draft model's memory", says, **facts)


def _runs(path: Path, n_ctx: int, kind: str) -> Check:
    """Load it and take a few steps, at a small context: this is about instructions and speed."""
    outcome = child.run(_RUN, str(path), str(min(n_ctx or 512, 512)))
    if outcome.killed_by is not None:
        other = "llama" if kind == "onnx" else "onnx"
        return problem(
            "draft model runs",
            f"running it ended by {outcome.killed_by}",
            f"install a build of its library for this processor, or use a drafter for {other}",
            killed_by=outcome.killed_by,
        )
    if outcome.failure is not None:
        text = outcome.failure.rpartition("Error: ")[2]
        return problem("draft model runs", text, "see the line above; the file may be broken")
    step = outcome.facts["step_seconds"]
    says = f"loads in {outcome.facts['load_seconds']:.1f} s, {1000 * step:.1f} ms a token"
    if step > SLOW_STEP:
        return warning(
            "draft model runs",
            says,
            "use a smaller drafter: this one can hardly pay",
            **outcome.facts,
        )
    return ok("draft model runs", says, **outcome.facts)


def check_tokens(path: Path) -> Iterator[Check]:
    """The tokenizer on the probe corpus; where a pack has two, both must agree."""
    try:
        tokenizers = _tokenizers(path)
    except OutriderError as error:
        yield problem("tokenizer", str(error), "get the model again, with its tokenizer")
        return
    for name, tokenizer in tokenizers.items():
        for text in tokenizer.warnings:
            yield warning("tokenizer", text, "convert or get the model again")
        lost = [kind for kind, text in CORPUS.items() if not _returns(tokenizer, text)]
        if lost:
            yield problem(
                "tokenizer",
                f"{name}: {', '.join(lost)} do not come back as they were written",
                "use another file of this model: its tokenizer loses text",
                lost=lost,
            )
        else:
            yield ok("tokenizer", f"{name}: {len(CORPUS)} kinds of text come back as written")
    if len(tokenizers) == 2:
        yield _agree(tokenizers)


def _returns(tokenizer: Tokenizer, text: str) -> bool:
    return tokenizer.decode(tokenizer.encode(text)) == text


def _tokenizers(path: Path) -> dict[str, Tokenizer]:
    found = {path.name: load_tokenizer(path)}
    if path.is_dir() and (path / "tokenizer.json").exists():
        ggufs = sorted(path.glob("*.gguf"))
        if len(ggufs) == 1 and choose(path)[1] == "llama":
            found = {"tokenizer.json": found[path.name], ggufs[0].name: load_tokenizer(ggufs[0])}
    return found


def _agree(tokenizers: dict[str, Tokenizer]) -> Check:
    (first, one), (second, two) = tokenizers.items()
    differ = {
        kind: (one.encode(text), two.encode(text))
        for kind, text in CORPUS.items()
        if one.encode(text) != two.encode(text)
    }
    if not differ:
        return ok("tokenizers agree", f"{first} and {second} give the same ids")
    kind, (here, there) = next(iter(differ.items()))
    at = next(
        (i for i, (a, b) in enumerate(zip(here, there, strict=False)) if a != b),
        min(len(here), len(there)),
    )
    return problem(
        "tokenizers agree",
        f"{first} and {second} cut {', '.join(differ)} into different tokens (first: {kind}, "
        f"token {at}: {here[at : at + 3]} and {there[at : at + 3]})",
        "convert the GGUF file again with a current converter",
        differ=sorted(differ),
    )
