"""The messages between a lead and a drafter on another machine: one small one each way a step.

A *lead* is an edge whose group has a member elsewhere. It holds up to so many texts (*streams*) at
the member; a step says how much of a stream's text stays, what follows, and how many proposals are
wanted after it. Messages are MessagePack arrays that begin with their type; ``docs/cosine.md`` has
them in a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from outrider.protocol.decoding.rules import Proposal
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.errors import DecodeError
from outrider.protocol.fingerprint import Fingerprint

DRAFTING_VERSION = 1

MAX_STREAMS = 64
"""Texts that a lead may hold at one member; the member may allow fewer."""

MAX_WIDTH = 8
"""Proposals of one step at most."""

MAX_TEXT = 1 << 18
"""Ids of a text at most; a member's context is the closer limit."""

Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
StreamNumber = Annotated[int, msgspec.Meta(ge=0, lt=MAX_STREAMS)]
Token = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
Said = Annotated[str, msgspec.Meta(max_length=2000)]


class Greet(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=1):
    """Lead to member, first: who asks, and what its ids mean."""

    version: Number = DRAFTING_VERSION
    agent: Said = ""
    tokenizer: Fingerprint


class Greeted(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=2):
    """The member's answer. ``member`` tells it apart from others, by whatever address it is met.

    ``streams`` texts of ``n_ctx`` ids at most may be held.
    """

    agent: Said
    model: Said
    member: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    n_ctx: Annotated[int, msgspec.Meta(ge=1, le=MAX_TEXT)]
    streams: Annotated[int, msgspec.Meta(ge=1, le=MAX_STREAMS)]


class Refused(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=3):
    """The member will not work with this lead; the connection ends."""

    code: Said
    message: Said


class Terms(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What a stream's proposals are made with, beside its text."""

    prompt_len: Annotated[int, msgspec.Meta(ge=0, le=MAX_TEXT)]
    sampling: Sampling
    never: Annotated[tuple[Token, ...], msgspec.Meta(max_length=4096)] = ()


class Step(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=4):
    """Of the stream's text ``keep`` ids stay and ``ids`` follow; ``width`` proposals after it.

    0 proposals: it is to be read, and no more. ``terms`` are those of the step before if missing.
    """

    number: Number
    stream: StreamNumber
    keep: Annotated[int, msgspec.Meta(ge=0, le=MAX_TEXT)]
    ids: Annotated[tuple[Token, ...], msgspec.Meta(max_length=MAX_TEXT)]
    width: Annotated[int, msgspec.Meta(ge=0, le=MAX_WIDTH)]
    terms: Terms | None = None


class Named(msgspec.Struct, frozen=True, array_like=True):
    """One proposal; see :class:`outrider.protocol.decoding.rules.Proposal`."""

    id: Token
    confidence: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]


class Proposed(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=5):
    """The answer to a step: its proposals, best first.

    It waited ``waited`` microseconds and the model took ``worked``. ``load``: steps of other leads
    that were there at the time, as a share of what the member takes at once.
    """

    number: Number
    proposals: Annotated[tuple[Named, ...], msgspec.Meta(max_length=MAX_WIDTH)] = ()
    waited: Number = 0
    worked: Number = 0
    load: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.0


class Failed(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=6):
    """The step could not be made. ``code``: busy, context, backend."""

    number: Number
    code: Said
    message: Said


class Forget(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=7):
    """The stream's text is not wanted any more."""

    stream: StreamNumber


Message = Greet | Greeted | Refused | Step | Proposed | Failed | Forget

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """The bytes of a message."""
    return _encoder.encode(message)


def decode(data: bytes) -> Message:
    """The message in some bytes.

    Raises:
        DecodeError: they are none, or a field is out of range.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise DecodeError(f"not a message between lead and drafter: {error}") from error


def named(proposals: Sequence[Proposal]) -> tuple[Named, ...]:
    """Proposals as they travel."""
    return tuple(Named(p.id, min(1.0, max(0.0, float(p.confidence)))) for p in proposals)


def proposals(message: Proposed, width: int, usable: int, never: frozenset[int]) -> list[Proposal]:
    """The proposals of an answer, which a member may have made up.

    Raises:
        DecodeError: none or too many, an id twice, one that is no token or must not be drafted.
    """
    ids = [one.id for one in message.proposals]
    if not 1 <= len(ids) <= width or len(set(ids)) < len(ids):
        raise DecodeError(f"{len(ids)} proposals of {width} that were asked for, or one twice")
    if max(ids) >= usable or not never.isdisjoint(ids):
        raise DecodeError("a proposal that is no token of this vocabulary, or must not be drafted")
    return [Proposal(one.id, one.confidence) for one in message.proposals]
