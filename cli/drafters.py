"""The drafter that the flags ask for: one model, or several that draft as a group."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.protocol.errors import HandshakeError, SettingError

if TYPE_CHECKING:
    from outrider.edge_client.group.routing import Similarity
    from outrider.runtime.lm.drafter import DraftSource
    from outrider.runtime.lm.factory import Loaded
    from outrider.runtime.text.tokenizer import Tokenizer

DraftModels = Annotated[
    list[Path] | None,
    typer.Option(
        "--draft-model",
        "-md",
        metavar="PATH",
        rich_help_panel="Drafting",
        help="Drafter: a .gguf file, an .onnx file, a draft pack folder, or the name or alias of a "
        "model that was pulled (default: the embedded drafter). Given several times: these draft "
        "together as a group, the better ones for a text more often.",
    ),
]


def split(given: Sequence[Path] | None) -> tuple[Path | None, tuple[Path, ...]]:
    """The first model, whose tokenizer is the edge's, and those that draft with it."""
    return (given[0], tuple(given[1:])) if given else (None, ())


def load_drafter(
    packs: Sequence[Path], tokenizer: Tokenizer, backend: str, *, n_ctx: int, threads: int
) -> tuple[DraftSource, list[Loaded]]:
    """Load one drafter, or a group of them; and what was loaded.

    Raises:
        SettingError: the same model twice, or settings that contradict each other.
        HandshakeError: a model of another tokenizer. BackendError: one does not load.
    """
    from outrider.runtime.lm.drafter import Drafter
    from outrider.runtime.lm.factory import load_lm

    _check_different(packs)
    for path in packs[1:]:
        _check_tokenizer(path, packs[0], tokenizer)
    loaded = [load_lm(path, backend, n_ctx=n_ctx, threads=threads) for path in packs]
    drafters = [Drafter(one.lm, tokenizer.size, tokenizer.eos) for one in loaded]
    if len(drafters) == 1:
        return drafters[0], loaded
    from outrider.edge_client.group.group import Group
    from outrider.edge_client.group.members import Member, Table

    members = [
        Member(f"{one.path.parent.name}/{one.path.name}", drafter)
        for one, drafter in zip(loaded, drafters, strict=True)
    ]
    return Group(Table(members), tokenizer.eos, similarity=_similarity(loaded)), loaded


def _similarity(loaded: Sequence[Loaded]) -> Similarity:
    """How alike two tokens are, by the first member that lets its embeddings be read."""
    from outrider.edge_client.group.routing import same
    from outrider.runtime.lm.embeddings import TokenEmbeddings

    for one in loaded:
        found = TokenEmbeddings.open(one.path) if one.path.suffix == ".gguf" else None
        if found is not None:
            return found.similarity
    return same


def _check_different(packs: Sequence[Path]) -> None:
    seen: set[Path] = set()
    for path in packs:
        place = path.expanduser().resolve()
        if place in seen:
            raise SettingError(f"--draft-model {path} is given twice: members of a group differ")
        seen.add(place)


def _check_tokenizer(path: Path, first: Path, tokenizer: Tokenizer) -> None:
    """Members speak in ids: an id must mean the same to all of them."""
    from outrider.runtime.text.fingerprint import describe
    from outrider.runtime.text.tokenizer import load_tokenizer

    mine, theirs = describe(tokenizer).fingerprint(), describe(load_tokenizer(path)).fingerprint()
    if (mine.ordinary, mine.size) != (theirs.ordinary, theirs.size):
        raise HandshakeError(
            f"{path} has another tokenizer than {first}: drafters of a group must share one",
            code="fingerprint",
        )


def place(given: Path) -> Path:
    """Where a model that was named lies."""
    from outrider.runtime.hub.resolve import resolve

    return resolve(str(given))
