"""Small binary pieces of the hot frames: varints, packed ids, short times, prefix hashes."""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Iterable, Sequence

from outrider.protocol.errors import DecodeError

HASH_BYTES = 4
TIME_UNIT = 32e-6
"""Seconds per step of a 16-bit time: 32 microseconds, so that it holds up to 2.09 s."""

_MAX_VARINT = 2**63 - 1


def id_bits(size: int) -> int:
    """Bits that an id of a vocabulary of ``size`` needs: ceil(log2(size)), at least 1."""
    return max(1, (size - 1).bit_length())


def frame_size(payload: int, *, masked: bool) -> int:
    """Bytes of a WebSocket frame with this payload: RFC 6455, section 5.2. Clients mask."""
    length = 0 if payload < 126 else 2 if payload < 1 << 16 else 8
    return 2 + length + (4 if masked else 0) + payload


def prefix_digest(ids: Sequence[int]) -> bytes:
    """4-byte BLAKE2b of the ids as little-endian 32-bit words: names the text before a position."""
    return hashlib.blake2b(array("I", ids).tobytes(), digest_size=HASH_BYTES).digest()


class PrefixDigest:
    """:func:`prefix_digest` of a list that grows at its end, without hashing it all each time.

    Whoever shortens the list must say so (:meth:`cut`).
    """

    def __init__(self, ids: list[int]) -> None:
        self._ids = ids
        self._hash = hashlib.blake2b(digest_size=HASH_BYTES)
        self._done = 0

    def at(self, length: int) -> bytes:
        """Digest of the first ``length`` ids."""
        if length < self._done:
            return prefix_digest(self._ids[:length])
        self._hash.update(array("I", self._ids[self._done : length]).tobytes())
        self._done = length
        return self._hash.copy().digest()

    def cut(self, length: int) -> None:
        """The list was cut to its first ``length`` ids."""
        if length < self._done:
            self._hash = hashlib.blake2b(digest_size=HASH_BYTES)
            self._done = 0


class Writer:
    """Appends fields to a frame."""

    def __init__(self) -> None:
        self.data = bytearray()

    def byte(self, value: int) -> None:
        """One byte; the value must fit."""
        self.data.append(value)

    def u16(self, value: int) -> None:
        """Two bytes, little endian."""
        self.data += value.to_bytes(2, "little")

    def varint(self, value: int) -> None:
        """LEB128: seven bits a byte, least significant first."""
        while value > 0x7F:
            self.data.append(value & 0x7F | 0x80)
            value >>= 7
        self.data.append(value)

    def raw(self, value: bytes) -> None:
        """Bytes as they are."""
        self.data += value

    def ids(self, tokens: Iterable[int], bits: int) -> None:
        """Ids of ``bits`` bits each, first id in the lowest bits, zero padding to a whole byte."""
        packed = count = 0
        for token in tokens:
            packed |= token << (count * bits)
            count += 1
        self.data += packed.to_bytes((count * bits + 7) // 8, "little")


class Reader:
    """Takes fields from a frame; anything short or out of range is a :class:`DecodeError`."""

    def __init__(self, data: bytes | memoryview, start: int = 0) -> None:
        self._data = bytes(data)
        self._at = start

    @property
    def left(self) -> int:
        """Bytes not yet taken."""
        return len(self._data) - self._at

    def raw(self, count: int) -> bytes:
        """The next ``count`` bytes."""
        if count > self.left:
            raise DecodeError(f"message ends {count - self.left} bytes early")
        self._at += count
        return self._data[self._at - count : self._at]

    def byte(self) -> int:
        """One byte."""
        if not self.left:
            raise DecodeError("message ends 1 bytes early")
        self._at += 1
        return self._data[self._at - 1]

    def u16(self) -> int:
        """Two bytes, little endian."""
        return int.from_bytes(self.raw(2), "little")

    def varint(self, limit: int = _MAX_VARINT) -> int:
        """A LEB128 number of at most ``limit``; only its shortest form is accepted."""
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 56:
                raise DecodeError("a number of more than 63 bits")
        if byte == 0 and shift:
            raise DecodeError("a number with needless zero bytes")
        if value > limit:
            raise DecodeError(f"a count or number of {value} where at most {limit} is allowed")
        return value

    def ids(self, count: int, bits: int) -> tuple[int, ...]:
        """``count`` packed ids; the padding bits must be zero."""
        size = (count * bits + 7) // 8
        packed = int.from_bytes(self.raw(size), "little")
        mask = (1 << bits) - 1
        if packed >> (count * bits):
            raise DecodeError("padding after packed ids is not zero")
        if count <= 64:  # hot frames: a handful of ids
            return tuple((packed >> (i * bits)) & mask for i in range(count))
        return _unpack_long(packed.to_bytes(size + 8, "little"), count, bits, mask)

    def end(self) -> None:
        """Nothing may follow."""
        if self.left:
            raise DecodeError(f"{self.left} bytes after the end of the message")


def _unpack_long(data: bytes, count: int, bits: int, mask: int) -> tuple[int, ...]:
    """Ids of a prompt, each from its own few bytes: linear where one big integer is quadratic."""
    return tuple(
        int.from_bytes(data[i * bits >> 3 : (i * bits >> 3) + 8], "little") >> (i * bits & 7) & mask
        for i in range(count)
    )


def pack_long(tokens: Sequence[int], bits: int) -> bytes:
    """Same bytes as :meth:`Writer.ids`, in linear time: eight ids fill a whole number of bytes."""
    out = Writer()
    for start in range(0, len(tokens), 8):
        out.ids(tokens[start : start + 8], bits)
    return bytes(out.data)


def time_steps(seconds: float) -> int:
    """A time as 16 bits of ``TIME_UNIT``; longer ones saturate, and mean "at least"."""
    return min(0xFFFF, max(0, round(seconds / TIME_UNIT)))


def short_time(seconds: float) -> int:
    """A time as one byte on a log scale: within 2.2% from 32 us to 1.9 s, for load figures."""
    steps = seconds / TIME_UNIT
    return 0 if steps < 1 else min(255, 1 + round(16 * math.log2(steps)))


def long_time(code: int) -> float:
    """The seconds that a byte of :func:`short_time` stands for."""
    return 0.0 if code == 0 else float(TIME_UNIT * 2 ** ((code - 1) / 16))
