from __future__ import annotations

import random

import pytest

from outrider.protocol.codec import Codec
from outrider.protocol.errors import DecodeError
from outrider.protocol.messages import Cancel, Draft, Goodbye, Message, Part, Segment
from outrider.protocol.outbox import Assembler, Outbox

CODEC = Codec(100)


def long(index: int, size: int = 5000) -> Segment:
    return Segment(index=index, entries=(random.Random(index).randbytes(size),))


def received(pieces: list[bytes]) -> list[Message]:
    assembler = Assembler(CODEC)
    return [message for data in pieces if (message := assembler.receive(data)) is not None]


def drained(outbox: Outbox, part_bytes: int = 1000) -> list[bytes]:
    pieces = []
    while (data := outbox.next_control() or outbox.next_bulk(part_bytes)) is not None:
        pieces.append(data)
    return pieces


def test_short_messages_leave_before_long_ones() -> None:
    outbox = Outbox(CODEC)
    outbox.put(long(1), 1)
    outbox.put(Cancel(handle=2, answer=1), 2)
    assert received(drained(outbox)) == [Cancel(handle=2, answer=1), long(1)]


def test_one_session_keeps_its_order() -> None:
    outbox = Outbox(CODEC)
    sent = [long(1), Cancel(handle=1, answer=1), long(2), Cancel(handle=1, answer=2)]
    for message in sent:
        outbox.put(message, 1)
    assert received(drained(outbox)) == sent


def test_what_blocks_hot_frames() -> None:
    outbox = Outbox(CODEC)
    outbox.put(long(1), 1)
    outbox.put(Cancel(handle=2, answer=1), 2)
    assert outbox.blocks(1)
    assert outbox.blocks(2)
    assert not outbox.blocks(3)
    outbox.next_control()
    assert not outbox.blocks(2)
    while outbox.blocks(1):
        assert outbox.next_bulk(1000) is not None
    assert outbox.next_bulk() is None
    assert outbox.next_control() is None


def test_a_long_message_that_fits_a_part_is_sent_whole() -> None:
    outbox = Outbox(CODEC)
    outbox.put(long(1), 1)
    data = outbox.next_bulk(10_000)
    assert data is not None
    assert CODEC.decode(data) == long(1)


def test_hot_frames_pass_between_parts() -> None:
    outbox = Outbox(CODEC)
    outbox.put(long(1), 1)
    hot = Draft(handle=2, epoch=1, tokens=(5,))
    pieces = []
    for piece in drained(outbox):
        pieces += [piece, CODEC.encode(hot)]
    assert len(pieces) > 8
    messages = received(pieces)
    assert messages.count(hot) == len(pieces) // 2
    assert [m for m in messages if m != hot] == [long(1)]


def test_whether_anything_waits() -> None:
    outbox = Outbox(CODEC)
    assert not outbox
    outbox.put(Cancel(handle=2, answer=1))
    assert outbox
    outbox.next_control()
    outbox.put(long(1))
    assert outbox
    drained(outbox)
    assert not outbox


def test_a_goodbye_is_the_last() -> None:
    outbox = Outbox(CODEC)
    outbox.put(long(1), 1)
    assert outbox.next_bulk(1000) is not None
    outbox.put(Cancel(handle=2, answer=1), 2)
    outbox.close(Goodbye(code="a", message="b"))
    assert received(drained(outbox)) == [Cancel(handle=2, answer=1), Goodbye(code="a", message="b")]


def test_parts_of_more_than_the_limit() -> None:
    assembler = Assembler(Codec(100, max_message=1000))
    part = CODEC.encode(Part(last=False, data=bytes(600)))
    assert assembler.receive(part) is None
    with pytest.raises(DecodeError, match="1000") as refused:
        assembler.receive(part)
    assert refused.value.code == "size"


def test_a_part_inside_a_part() -> None:
    inner = CODEC.encode(Part(last=True, data=b"x"))
    with pytest.raises(DecodeError, match="inside"):
        Assembler(CODEC).receive(CODEC.encode(Part(last=True, data=inner)))
