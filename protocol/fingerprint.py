"""The tokenizer fingerprint: do both ends mean the same thing by a token id?

Made from token *contents*, never from file hashes, so that a GGUF and a Hugging Face folder of one
model agree. Padding rows are left out. Ordinary tokens must be equal; special tokens are compared
by id and content and a difference only bars the id from being drafted; the template decides which
end renders chats. On a mismatch of the root the ends compare segment hashes, then one segment, so
that the first differing entries can be named.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import msgspec

from outrider.protocol.errors import HandshakeError

SEGMENT = 1024
"""Entries hashed together: 152k ids make 149 segment hashes, about 1.2 KB, once, on mismatch."""

NAMED = 3
"""How many differing entries an error names."""


class Fingerprint(msgspec.Struct, frozen=True, array_like=True):
    """What the hello carries. ``size`` counts usable ids; the hashes are 16-byte BLAKE2b."""

    size: int
    ordinary: bytes
    special: bytes
    template: bytes


class Vocabulary(msgspec.Struct, frozen=True):
    """A tokenizer reduced to what the ends must agree on.

    ``entries[i]`` is the exact bytes that ordinary token i stands for (empty where i is special or
    unused); ``specials`` maps special ids to their literal content.
    """

    entries: tuple[bytes, ...]
    specials: Mapping[int, bytes]
    template: str | None

    @property
    def size(self) -> int:
        """Usable ids: rows of padding above the last real token do not count."""
        return len(self.entries)

    def fingerprint(self) -> Fingerprint:
        """The four fields of the hello."""
        root = hashlib.blake2b(digest_size=16)
        for segment in self.segments():
            root.update(segment)
        special = hashlib.blake2b(digest_size=16)
        for token in sorted(self.specials):
            special.update(_framed(token, self.specials[token]))
        template = hashlib.blake2b((self.template or "").encode(), digest_size=16)
        return Fingerprint(self.size, root.digest(), special.digest(), template.digest())

    def segments(self) -> list[bytes]:
        """An 8-byte hash for each run of ``SEGMENT`` entries."""
        return [
            _segment_hash(start, self.segment(start // SEGMENT))
            for start in range(0, self.size, SEGMENT)
        ]

    def segment(self, index: int) -> tuple[bytes, ...]:
        """The entries of one segment; special ids read as empty, since they are compared apart."""
        start = index * SEGMENT
        return tuple(
            b"" if start + i in self.specials else entry
            for i, entry in enumerate(self.entries[start : start + SEGMENT])
        )


def first_segment(mine: Sequence[bytes], theirs: Sequence[bytes]) -> int | None:
    """Index of the first segment whose hash differs or that only one end has; None if equal."""
    for index in range(max(len(mine), len(theirs))):
        if index >= len(mine) or index >= len(theirs) or mine[index] != theirs[index]:
            return index
    return None


def describe_difference(index: int, mine: Sequence[bytes], theirs: Sequence[bytes]) -> str:
    """Name the first differing entries of a segment, both values each, for an error text."""
    found = []
    for i in range(max(len(mine), len(theirs))):
        here = mine[i] if i < len(mine) else None
        there = theirs[i] if i < len(theirs) else None
        if here != there:
            found.append(f"id {index * SEGMENT + i}: {_shown(here)} here, {_shown(there)} there")
        if len(found) == NAMED:
            break
    return "; ".join(found)


def tokenizers_differ(
    index: int, mine: Vocabulary, theirs: Sequence[bytes], size: int
) -> HandshakeError:
    """Segment ``index`` of a cloud's vocabulary of ``size`` ids is another than ours."""
    difference = describe_difference(index, mine.segment(index), theirs)
    return HandshakeError(
        f"the draft model and the target have different tokenizers ({mine.size} tokens here, "
        f"{size} there; first differences: {difference}). Use a draft model made for it: its "
        "tokenizer is needed even when nothing is drafted.",
        code="tokenizer",
    )


def differing_specials(mine: Mapping[int, bytes], theirs: Mapping[int, bytes]) -> frozenset[int]:
    """Special ids that mean different things at the two ends, or are special at one end only."""
    return frozenset(
        token for token in mine.keys() | theirs.keys() if mine.get(token) != theirs.get(token)
    )


def _shown(entry: bytes | None) -> str:
    if entry is None:
        return "no such id"
    return repr(entry.decode("utf-8", "backslashreplace")) if entry else "special or unused"


def _framed(token: int, content: bytes) -> bytes:
    """An id and its content, unambiguously: lengths first."""
    return token.to_bytes(4, "little") + len(content).to_bytes(4, "little") + content


def _segment_hash(start: int, entries: Sequence[bytes]) -> bytes:
    segment = hashlib.blake2b(digest_size=8)
    for i, entry in enumerate(entries):
        segment.update(_framed(start + i, entry))
    return segment.digest()
