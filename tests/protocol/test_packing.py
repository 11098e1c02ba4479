from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.protocol.errors import DecodeError
from outrider.protocol.packing import (
    TIME_UNIT,
    PrefixDigest,
    Reader,
    Writer,
    frame_size,
    id_bits,
    long_time,
    pack_long,
    prefix_digest,
    short_time,
    time_steps,
)


def varint(value: int) -> bytes:
    out = Writer()
    out.varint(value)
    return bytes(out.data)


@pytest.mark.parametrize(
    ("value", "data"),
    [(0, "00"), (1, "01"), (127, "7f"), (128, "8001"), (300, "ac02"), (2**63 - 1, "ff" * 8 + "7f")],
)
def test_varint_bytes(value: int, data: str) -> None:
    assert varint(value) == bytes.fromhex(data)


@given(st.integers(0, 2**63 - 1))
def test_varint_round_trip(value: int) -> None:
    reader = Reader(varint(value))
    assert reader.varint() == value
    reader.end()


@pytest.mark.parametrize(
    "data", ["8000", "ff00", "ac8200", "80", "", "ff" * 9 + "7f", "80" * 9 + "01"]
)
def test_varint_has_one_form_and_63_bits(data: str) -> None:
    with pytest.raises(DecodeError):
        Reader(bytes.fromhex(data)).varint()


def test_varint_limit() -> None:
    assert Reader(varint(9)).varint(9) == 9
    with pytest.raises(DecodeError, match="at most 8"):
        Reader(varint(9)).varint(8)


@pytest.mark.parametrize(
    ("size", "bits"),
    [(0, 1), (1, 1), (2, 1), (3, 2), (256, 8), (257, 9), (151936, 18), (2**32, 32)],
)
def test_id_bits(size: int, bits: int) -> None:
    assert id_bits(size) == bits


@pytest.mark.parametrize("bits", range(1, 33))
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 63, 64, 65, 200])
def test_ids_round_trip_long_and_short(bits: int, count: int) -> None:
    top = (1 << bits) - 1
    tokens = tuple((i * 2654435761 + i) & top for i in range(count))
    out = Writer()
    out.ids(tokens, bits)
    assert bytes(out.data) == pack_long(tokens, bits)
    assert len(out.data) == (count * bits + 7) // 8
    reader = Reader(bytes(out.data))
    assert reader.ids(count, bits) == tokens
    reader.end()


@pytest.mark.parametrize("count", [3, 65])
def test_padding_must_be_zero(count: int) -> None:
    data = bytearray((count * 3 + 7) // 8)
    data[-1] |= 0x80
    with pytest.raises(DecodeError, match="padding"):
        Reader(bytes(data)).ids(count, 3)


def test_short_data() -> None:
    with pytest.raises(DecodeError, match="2 bytes early"):
        Reader(b"ab").raw(4)
    with pytest.raises(DecodeError):
        Reader(b"a").u16()
    with pytest.raises(DecodeError):
        Reader(b"").byte()
    with pytest.raises(DecodeError, match="after the end"):
        Reader(b"a").end()


def test_times() -> None:
    assert time_steps(-1) == 0
    assert time_steps(1.0) == round(1 / TIME_UNIT)
    assert time_steps(99) == 0xFFFF
    assert short_time(0) == short_time(TIME_UNIT / 2) == 0
    assert long_time(0) == 0
    assert short_time(1e9) == 255


@given(st.floats(TIME_UNIT, 1.9))
def test_short_times_are_within_their_error(seconds: float) -> None:
    assert long_time(short_time(seconds)) == pytest.approx(seconds, rel=0.022)


@pytest.mark.parametrize(
    ("payload", "masked", "size"),
    [
        (0, False, 2),
        (125, True, 131),
        (126, False, 130),
        (65535, True, 65543),
        (65536, False, 65546),
    ],
)
def test_frame_size(payload: int, masked: bool, size: int) -> None:
    assert frame_size(payload, masked=masked) == size


@given(st.lists(st.integers(0, 2**31), max_size=40), st.data())
def test_growing_digest_equals_the_plain_one(ids: list[int], data: st.DataObject) -> None:
    grown: list[int] = []
    digest = PrefixDigest(grown)
    for token in ids:
        grown.append(token)
        if data.draw(st.integers(0, 9)) == 0:
            keep = data.draw(st.integers(0, len(grown)))
            del grown[keep:]
            digest.cut(keep)
        at = data.draw(st.integers(0, len(grown)))
        assert digest.at(at) == prefix_digest(grown[:at])
