"""Streams of bytes become whole characters, and the same text as the whole would."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.runtime.text.utf8 import Utf8Stream

BROKEN = st.lists(
    st.sampled_from([b"a", b"\x80", b"\xc3", b"\xa9", b"\xe2", b"\x82", b"\xf0", b"\x9f", b"\xff"])
).map(b"".join)


@given(
    data=st.one_of(st.binary(max_size=40), st.text(max_size=20).map(str.encode), BROKEN),
    cuts=st.lists(st.integers(0, 40), max_size=8),
)
def test_any_cutting_gives_the_text_of_the_whole(data: bytes, cuts: list[int]) -> None:
    stream = Utf8Stream()
    edges = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    text = "".join(stream.feed(data[a:b]) for a, b in itertools.pairwise(edges))
    assert text + stream.flush() == data.decode("utf-8", "replace")


@pytest.mark.parametrize("character", ["é", "€", "👍", "\U0010ffff"])
def test_a_character_waits_for_its_last_byte(character: str) -> None:
    stream = Utf8Stream()
    *first, last = (bytes([byte]) for byte in character.encode())
    for i, byte in enumerate(first, start=1):
        assert stream.feed(byte) == ""
        assert stream.held == i
    assert stream.feed(last) == character
    assert stream.held == 0
    assert stream.flush() == ""


def test_certain_damage_shows_at_once_and_an_unfinished_end_at_the_flush() -> None:
    stream = Utf8Stream()
    assert stream.feed(b"a\xff") == "a\ufffd"
    assert stream.feed(b"\xe2\x82") == ""
    assert stream.feed(b"b") == "\ufffdb"
    assert stream.feed(b"\xf0\x9f\x91") == ""
    assert stream.flush() == "\ufffd"
    assert stream.feed(b"again") == "again"


def test_joined_emoji_may_arrive_in_parts_but_never_broken() -> None:
    family = "👩‍👩‍👧‍👦"
    stream = Utf8Stream()
    parts = [stream.feed(bytes([byte])) for byte in family.encode()]
    assert "".join(parts) == family
    assert all(len(part) <= 1 for part in parts)
