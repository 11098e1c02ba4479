"""Messages to bytes and back, with every size checked before anything is allocated.

The first byte says what follows. Below 128 it is a hot frame: bit 6 tells a verdict from a draft
and the low bits are flags that say which fields are there. From 128 on it is a cold message: the
low six bits are its type and bit 6 says that its body is zstandard-compressed.
"""

from __future__ import annotations

import msgspec
import zstandard

from outrider.protocol import messages as m
from outrider.protocol.decoding.row import SparseRow
from outrider.protocol.errors import DecodeError, LocalProtocolError
from outrider.protocol.pacing import cap_code, cap_rate
from outrider.protocol.packing import (
    TIME_UNIT,
    Reader,
    Writer,
    id_bits,
    long_time,
    pack_long,
    short_time,
    time_steps,
)
from outrider.protocol.row_code import put_rows, take_rows

# Flags of a hot frame's first byte: none is left over.
VERDICT = 0x40
HANDLE = 0x01
START, MORE, TREE, ROWS, FULL = 0x02, 0x04, 0x08, 0x10, 0x20  # of a draft
NODE, IDS, ACK, OFFER, CAP = 0x02, 0x04, 0x08, 0x10, 0x20  # of a verdict

COLD = 0x80
COMPRESSED = 0x40
COLD_TYPES: tuple[type[m.Message], ...] = (
    m.Hello, m.Welcome, m.Mismatch, m.SegmentAsk, m.Segment, m.Goodbye, m.Attach, m.Open,
    m.Opened, m.Attached, m.Cancel, m.Close, m.Finished, m.Refused, m.Part, m.Logprobs, m.Weigh,
)  # fmt: skip
"""Type codes are places in this list: append only."""

_CODES = {kind: code for code, kind in enumerate(COLD_TYPES)}
_WITH_IDS = (m.Open, m.Opened, m.Attached)

COMPRESS_FROM = 256
"""Bodies shorter than this are left alone: zstandard has nothing to gain on them."""

MAX_FRAME_COUNT = 4096
"""Nodes or ids in one hot frame: a codec bound; the cloud's own limits are tighter."""

_encoder = msgspec.msgpack.Encoder()
_decoders = {kind: msgspec.msgpack.Decoder(kind) for kind in COLD_TYPES}


class Codec:
    """Encodes and decodes for one vocabulary and one limit on message size.

    ``size`` is the number of usable ids, which fixes the bits of a packed id; before the hello it
    is unknown (1), and only messages without ids can be read. ``max_message`` bounds a decoded
    message in bytes, compressed bodies after decompression included.
    """

    def __init__(self, size: int = 1, max_message: int = 1 << 20) -> None:
        self.learn(size)
        self.max_message = max_message

    def learn(self, size: int) -> None:
        """From now on ids are those of a vocabulary of ``size``."""
        self.size = size
        self.bits = id_bits(size)

    def encode(self, message: m.Message) -> bytes:
        """The bytes of a message.

        Raises:
            LocalProtocolError: a field does not fit the layout.
        """
        if isinstance(message, m.Draft):
            return self._encode_draft(message)
        if isinstance(message, m.Verdict):
            return self._encode_verdict(message)
        return self._encode_cold(message)

    def decode(self, data: bytes) -> m.Message:
        """The message in ``data``.

        Raises:
            DecodeError: whatever is wrong with the bytes; nothing else is raised.
        """
        if not data:
            raise DecodeError("empty message")
        if len(data) > self.max_message:
            raise DecodeError(
                f"message of {len(data)} bytes; at most {self.max_message} are allowed", code="size"
            )
        if data[0] & COLD:
            return self._decode_cold(data)
        return self._decode_verdict(data) if data[0] & VERDICT else self._decode_draft(data)

    # --- hot --------------------------------------------------------------------------------

    def _encode_draft(self, draft: m.Draft) -> bytes:
        self._check_ids(draft.tokens)
        if draft.deltas and len(draft.deltas) != len(draft.tokens):
            raise LocalProtocolError("a draft needs one delta a node, or none for a chain")
        if draft.rows and (draft.deltas or len(draft.rows) != len(draft.tokens)):
            raise LocalProtocolError("rows belong to chains, one a token")
        if draft.scored is not None and not draft.rows:
            raise LocalProtocolError("only tokens with rows are proposals of the cloud")
        if draft.start and len(draft.start.digest) != m.HASH_BYTES:
            raise LocalProtocolError(f"a digest has {m.HASH_BYTES} bytes")
        out = Writer()
        out.byte(
            (HANDLE if draft.handle else 0)
            | (START if draft.start else 0)
            | (MORE if draft.more else 0)
            | (TREE if draft.deltas else 0)
            | (ROWS if draft.rows else 0)
            | (FULL if draft.full else 0)
        )
        if draft.handle:
            out.varint(draft.handle)
        out.byte(draft.epoch & 0xFF)
        if draft.start:
            out.byte(draft.start.answer & 0xFF)
            out.varint(draft.start.base)
            out.raw(draft.start.digest)
        out.varint(len(draft.tokens))
        for delta in draft.deltas:
            out.varint(delta)
        if draft.rows:
            put_rows(out, draft.rows, draft.tokens, self.size, draft.scored)
        else:
            out.ids(draft.tokens, self.bits)
        return bytes(out.data)

    def _decode_draft(self, data: bytes) -> m.Draft:
        flags = data[0]
        frame = Reader(data, 1)
        handle = _handle(frame, flags)
        epoch = frame.byte()
        start = None
        if flags & START:
            start = m.EpochStart(
                answer=frame.byte(), base=frame.varint(), digest=frame.raw(m.HASH_BYTES)
            )
        count = frame.varint(MAX_FRAME_COUNT)
        if flags & TREE and not count:
            raise DecodeError("a tree frame without nodes")
        deltas = tuple(frame.varint() for _ in range(count)) if flags & TREE else ()
        rows: tuple[SparseRow, ...] = ()
        scored = None
        if flags & ROWS:
            if not count or flags & TREE:
                raise DecodeError("rows belong to the nodes of a chain")
            rows, tokens, scored = take_rows(frame, count, self.size)
        else:
            tokens = self._ids(frame, count)
        frame.end()
        return m.Draft(
            handle=handle,
            epoch=epoch,
            start=start,
            tokens=tokens,
            deltas=deltas,
            rows=rows,
            more=bool(flags & MORE),
            full=bool(flags & FULL),
            scored=scored,
        )

    def _encode_verdict(self, verdict: m.Verdict) -> bytes:
        self._check_ids(verdict.ids)
        self._check_ids(verdict.offered)
        out = Writer()
        out.byte(
            VERDICT
            | (HANDLE if verdict.handle else 0)
            | (NODE if verdict.node is not None else 0)
            | (IDS if verdict.ids else 0)
            | (ACK if verdict.ack else 0)
            | (OFFER if verdict.offered else 0)
            | (CAP if verdict.cap is not None else 0)
        )
        if verdict.handle:
            out.varint(verdict.handle)
        out.byte(verdict.answer & 0xFF)
        out.u16(verdict.at & 0xFFFF)
        if verdict.node is not None:
            out.byte(verdict.epoch & 0xFF)
            out.varint(verdict.node)
        if verdict.ids:
            out.varint(len(verdict.ids))
            out.ids(verdict.ids, self.bits)
        if verdict.ack:
            out.byte(verdict.ack.frame & 0xFF)
            out.u16(time_steps(verdict.ack.since))
            out.byte(short_time(verdict.ack.queue))
            out.byte(short_time(verdict.ack.target))
            out.byte(round(255 * min(1.0, max(0.0, verdict.ack.load))))
        if verdict.offered:
            out.varint(verdict.offered_after)
            out.varint(len(verdict.offered))
            out.ids(verdict.offered, self.bits)
        if verdict.cap is not None:
            out.byte(cap_code(verdict.cap))
        return bytes(out.data)

    def _decode_verdict(self, data: bytes) -> m.Verdict:
        flags = data[0]
        frame = Reader(data, 1)
        handle = _handle(frame, flags)
        answer, at = frame.byte(), frame.u16()
        epoch, node = (frame.byte(), frame.varint()) if flags & NODE else (0, None)
        ids: tuple[int, ...] = ()
        if flags & IDS:
            count = frame.varint(MAX_FRAME_COUNT)
            if not count:
                raise DecodeError("a verdict that announces ids and has none")
            ids = self._ids(frame, count)
        ack = None
        if flags & ACK:
            ack = m.Ack(
                frame=frame.byte(),
                since=frame.u16() * TIME_UNIT,
                queue=long_time(frame.byte()),
                target=long_time(frame.byte()),
                load=frame.byte() / 255,
            )
        after, offered = self._offered(frame) if flags & OFFER else (0, ())
        cap = cap_rate(frame.byte()) if flags & CAP else None
        frame.end()
        return m.Verdict(
            handle=handle,
            answer=answer,
            at=at,
            epoch=epoch,
            node=node,
            ids=ids,
            ack=ack,
            offered_after=after,
            offered=offered,
            cap=cap,
        )

    def _offered(self, frame: Reader) -> tuple[int, tuple[int, ...]]:
        after, count = frame.varint(MAX_FRAME_COUNT), frame.varint(MAX_FRAME_COUNT)
        if not count:
            raise DecodeError("a verdict that announces proposals and has none")
        return after, self._ids(frame, count)

    # --- cold -------------------------------------------------------------------------------

    def weight(self, message: m.Message) -> int:
        """Bytes that a reader's limit on a message is compared with: packed or not, the larger."""
        ids = getattr(message, "ids", ())
        plain = msgspec.structs.replace(message, ids=()) if ids else message
        return max(len(self.encode(message)), len(_encoder.encode(plain)))

    def _encode_cold(self, message: m.Message) -> bytes:
        ids = getattr(message, "ids", ())
        self._check_ids(ids)
        try:
            body = _encoder.encode(msgspec.structs.replace(message, ids=()) if ids else message)
        except (OverflowError, TypeError, ValueError) as error:
            raise LocalProtocolError(f"{type(message).__name__}: {error}") from error
        code = COLD | _CODES[type(message)]
        if len(body) >= COMPRESS_FROM and not isinstance(message, m.Part):
            packed = zstandard.ZstdCompressor().compress(body)
            if len(packed) < len(body):
                body, code = packed, code | COMPRESSED
        out = Writer()
        out.byte(code)
        if not isinstance(message, _WITH_IDS):
            out.raw(body)
            return bytes(out.data)
        out.varint(len(body))
        out.raw(body)
        out.varint(len(ids))
        out.raw(pack_long(ids, self.bits))
        return bytes(out.data)

    def _decode_cold(self, data: bytes) -> m.Message:
        code = data[0] & 0x3F
        if code >= len(COLD_TYPES):
            raise DecodeError(f"message of unknown type {code}")
        kind = COLD_TYPES[code]
        if kind not in _WITH_IDS:
            return self._body(kind, data[1:], data[0])
        frame = Reader(data, 1)
        message = self._body(kind, frame.raw(frame.varint()), data[0])
        if getattr(message, "ids", ()):
            raise DecodeError(f"{kind.__name__}: ids belong after the body")
        count = frame.varint(frame.left * 8 // self.bits)
        ids = self._ids(frame, count)
        frame.end()
        return msgspec.structs.replace(message, ids=ids) if ids else message

    def _body(self, kind: type[m.Message], body: bytes, first: int) -> m.Message:
        if first & COMPRESSED:
            body = self._decompress(body)
        try:
            return _decoders[kind].decode(body)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            code = "version" if kind is m.Hello and _other_version(body) else "decode"
            raise DecodeError(f"{kind.__name__}: {error}", code=code) from error

    def _decompress(self, body: bytes) -> bytes:
        """Bounded: the size that a frame claims is checked before it is allocated."""
        try:
            declared = zstandard.frame_content_size(body)
            if declared > self.max_message:
                raise DecodeError("compressed body larger than a message may be", code="size")
            if declared < 0:
                raise DecodeError("compressed body does not declare its size")
            return zstandard.ZstdDecompressor().decompress(
                body, max_output_size=declared, allow_extra_data=False
            )
        except zstandard.ZstdError as error:
            raise DecodeError(f"compressed body: {error}") from error

    def _ids(self, frame: Reader, count: int) -> tuple[int, ...]:
        tokens = frame.ids(count, self.bits)
        if tokens and max(tokens) >= self.size:
            raise DecodeError(f"token id {max(tokens)}; the vocabulary has {self.size}")
        return tokens

    def _check_ids(self, tokens: tuple[int, ...]) -> None:
        if tokens and not (min(tokens) >= 0 and max(tokens) < self.size):
            raise LocalProtocolError(f"a token id outside the vocabulary of {self.size}")


def _other_version(body: bytes) -> bool:
    """A hello of another wire version, which need not have this one's fields behind the first."""
    try:
        fields = msgspec.msgpack.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return False
    return isinstance(fields, list) and bool(fields) and fields[0] != m.WIRE_VERSION


def _handle(frame: Reader, flags: int) -> int:
    """The session's handle; 0 has no bytes, so it must not be written out."""
    if not flags & HANDLE:
        return 0
    handle = frame.varint(0xFFFF)
    if not handle:
        raise DecodeError("handle 0 written out")
    return handle
