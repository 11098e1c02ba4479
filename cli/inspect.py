"""``outrider inspect``: what a model file or folder is, without loading it."""

from __future__ import annotations

import json as jsonlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli import logs
from outrider.cli import options as o

if TYPE_CHECKING:
    from rich.console import Console


def inspect(
    model: Annotated[
        str, typer.Argument(help="A GGUF or ONNX file, a folder, or a model that was pulled.")
    ],
    ctx_size: Annotated[
        int,
        typer.Option(
            "--ctx-size", "-c", min=0, help="Estimate memory for this context; 0: its own."
        ),
    ] = 0,
    *,
    json: o.Json = False,
    verbose: o.Verbose = False,
    config: o.Config = None,  # noqa: ARG001 - its callback reads it
) -> None:
    """Show what a model is: family, size, quantization, tokenizer, context, memory.

    Nothing is loaded: all is read from the headers.

    Example: outrider inspect drafter-q4_k_m.gguf --ctx-size 4096
    """
    logs.configure(verbose)
    from outrider.runtime.hub.describe import describe
    from outrider.runtime.hub.names import is_path, parse
    from outrider.runtime.hub.resolve import resolve

    if not is_path(model) and len(parse(model)) > 1:  # the alias of a pair
        parts = [describe(resolve(model, role), ctx_size) for role in ("drafter", "target")]
        facts = {"kind": "pair", "path": model, "models": parts}
    else:
        facts = describe(resolve(model), ctx_size)
    if json:
        print(jsonlib.dumps(facts))
        return
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    for number, part in enumerate(_parts(facts)):
        if number:
            console.print()
        _print(console, part)


def _print(console: Console, part: dict[str, Any]) -> None:
    """One model: its place, then what is known, a line each; wrapped on a terminal only."""
    from rich.table import Table
    from rich.text import Text

    console.print(Text(part["path"], style="bold"))
    rows = [(label, Text(value)) for label, value in _lines(part)]
    rows += [("warning", Text(text, "yellow")) for text in part.get("warnings", ())]
    if not console.is_terminal:
        for label, value in rows:
            console.print(Text(f"{label:<12}").append(value))
        return
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in rows:
        table.add_row(label, value)
    console.print(table)


def _parts(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """A folder first, then each model in it."""
    return [facts, *facts.get("models", ())]


def _lines(part: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Label and value of what is known."""
    kinds = {"gguf": "GGUF file", "onnx": "ONNX file", "hugging face": "Hugging Face weights"}
    if part["kind"] == "pair":
        yield "what", "a pair: drafter and target"
        return
    if part["kind"] == "folder":
        yield "what", f"folder with {len(part['models'])} model files"
        if tokenizer := part["tokenizer"]:
            template = "with" if tokenizer["template"] else "no"
            yield "tokenizer", f"{tokenizer['vocabulary']:,} tokens, {template} chat template"
            yield "end tokens", _ids(tokenizer["end_tokens"])
        yield "drafts with", part["drafts_with"] or "none of them"
        if pack := part["pack"]:
            yield "pack", f"made from {pack['source']}, licence {pack['licence'] or 'not stated'}"
        return
    yield "what", kinds[part["kind"]] + f", {_size(part['bytes'])}"
    family = [part.get("architecture"), part.get("name"), part.get("size_label")]
    if any(family):
        yield "model", ", ".join(str(word) for word in family if word)
    if part.get("parameters"):
        count = part["parameters"]
        shown = f"{count / 1e9:.2f} billion" if count > 1e8 else f"{count / 1e6:.1f} million"
        kind = part.get("quantization") or part.get("dtype")
        yield "weights", f"{shown} values, {kind}"
    if part.get("license"):
        yield "license", str(part["license"])
    yield "context", f"{part['context']:,} tokens" if part.get("context") else "not stated"
    if part.get("vocabulary"):
        yield "vocabulary", f"{part['vocabulary']:,} entries"
    if part["kind"] == "gguf":
        yield "tokenizer", f"{part['tokenizer'] or 'none'}, pre-tokenizer {part['pre_tokenizer']}"
        yield "template", "yes" if part["template"] else "no"
        yield "end tokens", _ids(part["end_tokens"])
    if memory := part.get("memory"):
        yield (
            "memory",
            f"about {_size(memory['total'])} at {memory['n_ctx']:,} tokens: weights "
            f"{_size(memory['weights'])}, cache {_size(memory['cache'])}, buffers "
            f"{_size(memory['buffers'])}, program {_size(memory['base'])}",
        )


def _ids(ids: list[int]) -> str:
    return ", ".join(map(str, ids)) or "none"


def _size(count: int) -> str:
    mib = count / 2**20
    return f"{mib:,.0f} MiB" if mib >= 10 else f"{mib:.1f} MiB"
