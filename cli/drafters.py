"""The drafter that the flags ask for: one model, or several that draft as a group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from outrider.cli import logs
from outrider.protocol.errors import HandshakeError, SettingError

if TYPE_CHECKING:
    import ssl

    from outrider.edge_client.group.members import Member
    from outrider.edge_client.group.routing import Similarity
    from outrider.runtime.lm.drafter import DraftSource
    from outrider.runtime.lm.factory import Loaded
    from outrider.runtime.text.tokenizer import Tokenizer

DraftModels = Annotated[
    list[str] | None,
    typer.Option(
        "--draft-model",
        "-md",
        metavar="PATH",
        rich_help_panel="Drafting",
        help="Drafter: a .gguf file, an .onnx file, a draft pack folder, or the name or alias of a "
        "model that was pulled (default: the embedded drafter). Given several times: these draft "
        "together as a group, the better ones for a text more often; with --collaborate each has "
        "its part in the text. One on another machine (outrider drafter serve): ws://, wss:// or "
        "an invitation.",
    ),
]
DraftKey = Annotated[
    str | None,
    typer.Option(
        "--draft-key",
        metavar="KEY",
        show_default=False,
        rich_help_panel="Drafting",
        help="Key for drafters on other machines; better in OUTRIDER_DRAFT_KEY or a file.",
    ),
]
DraftKeyFile = Annotated[
    Path | None,
    typer.Option(
        "--draft-key-file",
        metavar="FILE",
        rich_help_panel="Drafting",
        help="File with that key: its first line, KEY or NAME:KEY.",
    ),
]


class Given(TypedDict):
    """What the flags say of drafters, as fields of EdgeOptions."""

    draft_model: Path | None
    partners: tuple[Path, ...]
    remotes: tuple[str, ...]
    draft_key: str | None


@dataclass(frozen=True, slots=True)
class Remote:
    """A drafter on another machine, and what is shown to it."""

    url: str
    key: str | None
    context: ssl.SSLContext | None


def elsewhere(text: str) -> bool:
    """Whether this names a drafter on another machine."""
    return text.startswith(("ws://", "wss://"))


def given(models: Sequence[str] | None, key: str | None, key_file: Path | None) -> Given:
    """The flags apart: the first model here, whose tokenizer is the edge's, and its partners.

    Raises:
        SettingError: all of them are elsewhere, or two keys.
    """
    from outrider.cli.edge import plain_key

    here = [Path(text) for text in models or () if not elsewhere(text)]
    remotes = tuple(text for text in models or () if elsewhere(text))
    if remotes and not here:
        raise SettingError(
            f"--draft-model {remotes[0].partition(',')[0]}: at least one model has to be here, for "
            "its tokenizer and for when the others are away; name it with a further --draft-model"
        )
    if (twice := {url for url in remotes if remotes.count(url) > 1}) != set():
        named = twice.pop().partition(",")[0]
        raise SettingError(f"--draft-model {named} is given twice: members of a group differ")
    return Given(
        draft_model=here[0] if here else None,
        partners=tuple(here[1:]),
        remotes=remotes,
        draft_key=plain_key(key, key_file, "--draft-key") if remotes else None,
    )


def remote(text: str, key: str | None) -> Remote:
    """A drafter elsewhere, by its address or by the line of an invitation.

    Raises:
        SettingError: neither; or a key that would travel for everyone to see.
    """
    from outrider.runtime.net.client import check
    from outrider.runtime.net.invite import is_invite, read_invite
    from outrider.runtime.net.tls import client_context

    context = None
    if is_invite(text):
        invite = read_invite(text)
        text, key = invite.url, invite.key
        context = client_context(invite.fingerprint) if invite.fingerprint else None
    check(text, key, context)
    return Remote(text, key, context)


def load_drafter(
    packs: Sequence[Path],
    tokenizer: Tokenizer,
    backend: str,
    *,
    n_ctx: int,
    threads: int,
    remotes: Sequence[Remote] = (),
    together: bool = False,
) -> tuple[DraftSource, list[Loaded]]:
    """Load one drafter, or a group of them; and what was loaded. ``together``: for a text that is
    partly theirs, to which each gives its distribution.

    Raises:
        SettingError: the same model twice, or settings that contradict each other.
        HandshakeError: a model of another tokenizer, or a drafter elsewhere that refuses.
        BackendError: one does not load.
    """
    from outrider.runtime.lm.drafter import Drafter
    from outrider.runtime.lm.factory import load_lm

    check_together(packs, tokenizer, specials=together)
    loaded = [load_lm(path, backend, n_ctx=n_ctx, threads=threads) for path in packs]
    if together:
        from outrider.runtime.lm.together import Together

        return Together([one.lm for one in loaded], tokenizer.size, tokenizer.eos), loaded
    drafters = [Drafter(one.lm, tokenizer.size, tokenizer.eos) for one in loaded]
    if len(drafters) == 1 and not remotes:
        return drafters[0], loaded
    from outrider.edge_client.group.group import Group
    from outrider.edge_client.group.members import Member, Table

    members = [
        Member(f"{one.path.parent.name}/{one.path.name}", drafter)
        for one, drafter in zip(loaded, drafters, strict=True)
    ]
    members += meet(remotes, tokenizer)
    return Group(Table(members), tokenizer.eos, similarity=_similarity(loaded)), loaded


def meet(remotes: Sequence[Remote], tokenizer: Tokenizer) -> list[Member]:
    """Drafters elsewhere. One that is not there now joins when it is.

    Raises:
        HandshakeError: one refuses, or two are the same.
    """
    if not remotes:
        return []
    from outrider.edge_client.group.remote import OPEN, Lan, RemoteMember, RemoteSettings
    from outrider.runtime.text.fingerprint import describe

    lan, fingerprint = Lan(), describe(tokenizer).fingerprint()
    found = [
        RemoteMember(
            RemoteSettings(
                url=one.url,
                key=one.key,
                context=one.context,
                fingerprint=fingerprint,
                usable=tokenizer.size,
            ),
            lan,
        )
        for one in remotes
    ]
    try:
        for member in found:
            member.wait(2 * OPEN)
            if not member.there:
                logs.warn(f"a drafter is away and joins when it is back: {member.trouble}")
    except BaseException:
        for member in found:
            member.close()
        raise
    return list(found)


def _similarity(loaded: Sequence[Loaded]) -> Similarity:
    """How alike two tokens are, by the first member that lets its embeddings be read."""
    from outrider.edge_client.group.routing import same
    from outrider.runtime.lm.embeddings import TokenEmbeddings

    for one in loaded:
        found = TokenEmbeddings.open(one.path) if one.path.suffix == ".gguf" else None
        if found is not None:
            return found.similarity
    return same


def check_together(packs: Sequence[Path], tokenizer: Tokenizer, *, specials: bool = False) -> None:
    """Whether these models can make a group, or with the same ``specials`` too, one text.

    Raises:
        SettingError: the same model twice. HandshakeError: a model of another tokenizer.
    """
    _check_different(packs)
    for path in packs[1:]:
        _check_tokenizer(path, packs[0], tokenizer, specials=specials)


def _check_different(packs: Sequence[Path]) -> None:
    seen: set[Path] = set()
    for path in packs:
        place = path.expanduser().resolve()
        if place in seen:
            raise SettingError(f"--draft-model {path} is given twice: the models must differ")
        seen.add(place)


def _check_tokenizer(path: Path, first: Path, tokenizer: Tokenizer, *, specials: bool) -> None:
    """Members speak in ids: an id must mean the same to all of them."""
    from outrider.protocol.fingerprint import (
        describe_difference,
        differing_specials,
        first_segment,
    )
    from outrider.runtime.text.fingerprint import describe
    from outrider.runtime.text.tokenizer import load_tokenizer

    mine, theirs = describe(tokenizer), describe(load_tokenizer(path))
    index = first_segment(mine.segments(), theirs.segments())
    if index is not None:
        named = describe_difference(index, mine.segment(index), theirs.segment(index))
    elif specials and (differing := differing_specials(mine.specials, theirs.specials)):
        named = f"the special tokens {sorted(differing)[:8]} differ"
    else:
        return
    raise HandshakeError(
        f"{path} has another tokenizer than {first} (here: {first}, there: {path}): {named}. "
        "Models at one edge must share one",
        code="fingerprint",
    )


def place(given: Path) -> Path:
    """Where a model that was named lies."""
    from outrider.runtime.hub.resolve import resolve

    return resolve(str(given))
