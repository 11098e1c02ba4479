from __future__ import annotations

import json
import random
import tracemalloc
import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.protocol import fingerprint, messages
from outrider.protocol.codec import COLD_TYPES, Codec
from outrider.protocol.decoding import sampling, sparse
from outrider.protocol.errors import DecodeError, LocalProtocolError
from outrider.protocol.messages import (
    Attached,
    Draft,
    EpochStart,
    Goodbye,
    Hello,
    Open,
    Opened,
    Part,
    Segment,
    Verdict,
)
from outrider.protocol.pacing import cap_rate
from outrider.protocol.packing import TIME_UNIT, Writer, long_time

FILE = Path(__file__).parents[1] / "data" / "wire" / "messages.json"
WHOLE = json.loads(FILE.read_text(encoding="utf-8"))
SIZE: int = WHOLE["vocabulary_size"]
VECTORS: list[dict[str, Any]] = WHOLE["vectors"]
CODEC = Codec(SIZE)

vectors = pytest.mark.parametrize("vector", VECTORS, ids=[v["name"] for v in VECTORS])


def built(value: Any) -> Any:
    """The message that a vector describes."""
    if isinstance(value, list):
        return tuple(built(item) for item in value)
    if not isinstance(value, dict):
        return value
    if "hex" in value:
        return bytes.fromhex(value["hex"])
    if "map" in value:
        return {built(k): built(v) for k, v in value["map"]}
    modules = (messages, fingerprint, sampling, sparse)
    kind = next(getattr(mod, value["type"]) for mod in modules if hasattr(mod, value["type"]))
    return kind(**{name: built(v) for name, v in value.items() if name != "type"})


@vectors
def test_vector_written(vector: dict[str, Any]) -> None:
    assert CODEC.encode(built(vector["message"])).hex() == vector["hex"]


@vectors
def test_vector_read(vector: dict[str, Any]) -> None:
    assert CODEC.decode(bytes.fromhex(vector["hex"])) == built(vector["message"])


def test_every_message_has_a_vector() -> None:
    kinds = {vector["message"]["type"] for vector in VECTORS}
    assert kinds == {kind.__name__ for kind in (*COLD_TYPES, Draft, Verdict)}


# --- round trips --------------------------------------------------------------------------------

bytes8 = st.integers(0, 255)
ids = st.lists(st.integers(0, SIZE - 1), max_size=80).map(tuple)
digests = st.binary(min_size=4, max_size=4)
starts = st.builds(EpochStart, answer=bytes8, base=st.integers(0, 2**40), digest=digests)
acks = st.builds(
    messages.Ack,
    frame=bytes8,
    since=st.integers(0, 0xFFFF).map(lambda steps: steps * TIME_UNIT),
    queue=bytes8.map(long_time),
    target=bytes8.map(long_time),
    load=bytes8.map(lambda load: load / 255),
)


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    tokens = draw(ids)
    tree = bool(tokens) and draw(st.booleans())
    count = len(tokens)
    deltas = draw(st.lists(st.integers(0, 2**63 - 1), min_size=count, max_size=count))
    return Draft(
        handle=draw(st.integers(0, 0xFFFF)),
        epoch=draw(bytes8),
        start=draw(st.none() | starts),
        tokens=tokens,
        deltas=tuple(deltas) if tree else (),
        more=draw(st.booleans()),
        full=draw(st.booleans()),
    )


@st.composite
def verdicts(draw: st.DrawFn) -> Verdict:
    node = draw(st.none() | st.integers(0, 2**63 - 1))
    return Verdict(
        handle=draw(st.integers(0, 0xFFFF)),
        answer=draw(bytes8),
        at=draw(st.integers(0, 0xFFFF)),
        epoch=0 if node is None else draw(bytes8),
        node=node,
        ids=draw(ids),
        ack=draw(st.none() | acks),
        cap=draw(st.none() | bytes8.map(cap_rate)),
    )


samplings = st.builds(
    sampling.Sampling,
    temperature=st.sampled_from((0.0, 0.5, 1.0)),
    seed=st.integers(0, 2**64 - 1),
    logit_bias=st.lists(st.tuples(st.integers(0, 99), st.floats(-9, 9)), max_size=1).map(tuple),
)
chats = st.lists(st.dictionaries(st.text(), st.text() | st.booleans(), max_size=3), max_size=3)


BOUNDED: dict[Any, st.SearchStrategy[Any]] = {
    messages.Count: st.integers(0, 2**63 - 1),
    messages.Handle: st.integers(0, 0xFFFF),
    messages.Digest: digests,
    messages.SessionKey: st.binary(min_size=8, max_size=8),
    messages.Secret: st.binary(min_size=16, max_size=16),
    int: st.integers(-(2**63), 2**63 - 1),
}
bounded_limits = st.builds(
    messages.Limits,
    **dict.fromkeys(messages.Limits.__struct_fields__[:-1], BOUNDED[messages.Count]),
    detached_seconds=st.floats(0, 1e9),
)


def cold(kind: type[messages.Message]) -> st.SearchStrategy[messages.Message]:
    """Any message of a cold type."""
    special: dict[str, st.SearchStrategy[Any]] = {
        "ids": ids,
        "sampling": st.just(sampling.Sampling()) | samplings,
        "messages": st.none() | chats.map(tuple),
        "limits": bounded_limits,
        "eos": st.lists(st.integers(0, 2**31)).map(tuple),
        "text_bytes": st.integers(-1, 2**40),
        "logprobs": st.none() | st.integers(0, 20),
        "objective": st.sampled_from(("latency", "cost")),
        "weight": st.floats(1e-9, 1e3),
        "pass_times": st.lists(st.tuples(st.floats(1, 64), st.floats(0, 9))).map(tuple),
        "fingerprint": st.builds(fingerprint.Fingerprint, size=st.integers(0, 2**63 - 1)),
        "specials": st.none() | st.dictionaries(st.integers(0, 2**31), st.binary(), max_size=3),
    }
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        if hint in BOUNDED:
            special[name] = BOUNDED[hint]
    known = {name: special[name] for name in special if name in kind.__struct_fields__}
    return st.builds(kind, **known)


anything = drafts() | verdicts() | st.sampled_from(COLD_TYPES).flatmap(cold)


@settings(max_examples=300)
@given(anything)
def test_round_trip(message: messages.Message) -> None:
    assert CODEC.decode(CODEC.encode(message)) == message


# --- hostile bytes ------------------------------------------------------------------------------


def decodes_or_refuses(codec: Codec, data: bytes) -> None:
    try:
        message = codec.decode(data)
    except DecodeError:
        return
    assert isinstance(message, messages.Message)


@vectors
def test_truncation_at_every_length(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    for length in range(len(data)):
        with pytest.raises(DecodeError):
            CODEC.decode(data[:length])


@vectors
def test_nothing_may_follow(vector: dict[str, Any]) -> None:
    with pytest.raises(DecodeError):
        CODEC.decode(bytes.fromhex(vector["hex"]) + b"\0")


@vectors
def test_flipped_bits(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    for i in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[i // 8] ^= 1 << i % 8
        decodes_or_refuses(CODEC, bytes(flipped))


@settings(max_examples=1000)
@given(st.binary(max_size=64))
def test_random_bytes(data: bytes) -> None:
    decodes_or_refuses(CODEC, data)


def test_random_bodies_of_every_type() -> None:
    rng = random.Random(1)
    for _ in range(3000):
        first = 0x80 | rng.randrange(len(COLD_TYPES)) | rng.choice((0, 0x40))
        decodes_or_refuses(CODEC, bytes([first]) + rng.randbytes(rng.randrange(40)))


@pytest.mark.parametrize("size", [1, 2, 64, 2**31 - 1])
def test_random_bytes_with_other_vocabularies(size: int) -> None:
    rng = random.Random(size)
    codec = Codec(size)
    for _ in range(2000):
        decodes_or_refuses(codec, rng.randbytes(rng.randrange(1, 30)))


def counted(first: int, count: int, rest: bytes = b"") -> bytes:
    out = Writer()
    out.byte(first)
    out.raw(rest)
    out.varint(count)
    return bytes(out.data)


HUGE = 2**60
BOMB = zstandard.ZstdCompressor().compress(bytes(50 << 20))
STREAMED = zstandard.ZstdCompressor().compressobj()
UNSIZED = STREAMED.compress(bytes(300)) + STREAMED.flush()
CLAIMS = {
    "draft of 2^60 nodes": counted(0x04, HUGE, b"\0"),
    "tree of 2^60 nodes": counted(0x0C, HUGE, b"\0"),
    "verdict of 2^60 ids": counted(0x44, HUGE, b"\0\0\0"),
    "open with a body of 2^60 bytes": counted(0x87, HUGE),
    "open with 2^60 ids": CODEC.encode(
        Open(
            **{
                **msgspec.structs.asdict(
                    built(next(v for v in VECTORS if v["name"] == "open with ids")["message"])
                ),
                "ids": (),
            }
        )
    )[:-1]
    + counted(0, HUGE)[1:],
    "array of 2^32 segments": b"\x82\x92\x01\xdd\xff\xff\xff\xff",
    "bytes of 2^32": b"\x8e\x92\xc3\xc6\xff\xff\xff\xff",
    "map of 2^32": b"\x81\x98\x01\xa0\xa0\x01\x90\x90\xc3\xdf\xff\xff\xff\xff",
    "compressed 50 MB": b"\xc5" + BOMB,
    "compressed, size unsaid": b"\xc5" + UNSIZED,
    "compressed rubbish": b"\xc5rubbish",
    "deep nesting": b"\x87\x81\x10" + b"\x91" * 100_000,
}


@pytest.mark.parametrize("name", CLAIMS)
def test_claims_allocate_nothing(name: str) -> None:
    data = CLAIMS[name]
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            CODEC.decode(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 256 * 1024 + 2 * len(data)


def test_limit_on_size() -> None:
    codec = Codec(SIZE, max_message=1000)
    noise = random.Random(2).randbytes(2000)
    with pytest.raises(DecodeError, match="1000") as refused:
        codec.decode(CODEC.encode(Segment(index=0, entries=(noise,))))
    assert refused.value.code == "size"
    small = CODEC.encode(Segment(index=0, entries=(bytes(2000),)))  # fits only while compressed
    assert len(small) < 100
    with pytest.raises(DecodeError) as refused:
        codec.decode(small)
    assert refused.value.code == "size"


def test_compressed_body_with_a_tail() -> None:
    data = CODEC.encode(Segment(index=0, entries=(bytes(2000),)))
    assert data[0] & 0x40
    with pytest.raises(DecodeError, match="compressed"):
        CODEC.decode(data + b"x")


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "empty"),
        (b"\x80", "Hello"),
        (bytes([0x80 | len(COLD_TYPES)]), "unknown type"),
        (b"\x10\x00\x00", "rows belong"),
        (b"\x18\x00\x01\x01\x00\x01\x00", "rows belong"),
        (b"\x10\x00\x01\x0d\x01\x00", "levels"),
        (b"\x10\x00\x01\x04\x01\x01\x00", "needless"),
        (b"\x10\x00\x01\x00\x02\x01\x01", "in 1 levels"),
        (b"\x10\x00\x01\x00\x01\x03\xff\xff\xff", "bits left"),
        (b"\x60\x00\x00\x00", "1 bytes early"),
        (b"\x08\x00\x00", "without nodes"),
        (b"\x01\x00\x00\x00", "handle 0"),
        (b"\x44\x00\x00\x00\x00", "has none"),
        (b"\x04\x00\x01\xff\xff\x03", "vocabulary"),
    ],
)
def test_named_refusals(data: bytes, match: str) -> None:
    with pytest.raises(DecodeError, match=match):
        CODEC.decode(data)


def test_ids_inside_the_body_are_refused() -> None:
    body = msgspec.msgpack.encode(Attached(handle=0, answer=1, n=1, start=0, ids=(1,)))
    out = Writer()
    out.byte(0x80 | COLD_TYPES.index(Attached))
    out.varint(len(body))
    out.raw(body)
    out.varint(0)
    with pytest.raises(DecodeError, match="after the body"):
        CODEC.decode(bytes(out.data))


def test_fields_of_a_later_version_are_ignored() -> None:
    data = bytearray(CODEC.encode(Goodbye(code="a", message="b")))
    data[1] += 1  # an array of one more
    assert CODEC.decode(bytes(data) + b"\xc0") == Goodbye(code="a", message="b")


def test_fields_of_a_later_version_may_be_missing() -> None:
    """A welcome as it was before passes were timed."""
    (vector,) = (v for v in VECTORS if v["name"] == "welcome")
    data = bytearray(bytes.fromhex(vector["hex"]))
    data[1] -= 1  # an array of one less
    assert data.pop() == 0x90  # the empty list at its end
    assert CODEC.decode(bytes(data)) == built(vector["message"])


def test_a_hello_of_another_version_is_told_by_its_code() -> None:
    with pytest.raises(DecodeError) as other:
        CODEC.decode(b"\x80" + msgspec.msgpack.encode([2, {"unlike": "ours"}]))
    assert other.value.code == "version"
    with pytest.raises(DecodeError) as same:
        CODEC.decode(b"\x80" + msgspec.msgpack.encode([1, {"unlike": "ours"}]))
    assert same.value.code == "decode"
    with pytest.raises(DecodeError) as rubbish:
        CODEC.decode(b"\x80\xc1")
    assert rubbish.value.code == "decode"


@pytest.mark.parametrize(
    "message",
    [
        Draft(epoch=0, tokens=(SIZE,)),
        Draft(epoch=0, tokens=(-1,)),
        Draft(epoch=0, tokens=(1, 2), deltas=(1,)),
        Draft(epoch=0, start=EpochStart(answer=0, base=0, digest=b"abc")),
        Verdict(answer=0, at=0, ids=(SIZE,)),
        Opened(handle=0, answer=1, n=1, prompt_len=1, start=0, ids=(SIZE,)),
        Opened(handle=0, answer=2**64, n=1, prompt_len=1, start=0),
    ],
)
def test_our_own_mistakes_are_local(message: messages.Message) -> None:
    with pytest.raises(LocalProtocolError):
        CODEC.encode(message)


def test_handle_of_a_session_costs_nothing_if_it_is_the_first() -> None:
    assert len(CODEC.encode(Draft(epoch=1, tokens=(5,)))) == 6
    assert len(CODEC.encode(Draft(handle=1, epoch=1, tokens=(5,)))) == 7


def test_ids_before_the_hello_are_not_read() -> None:
    with pytest.raises(DecodeError):
        Codec().decode(CODEC.encode(Draft(epoch=1, tokens=(5,))))
    hello = next(vector for vector in VECTORS if vector["name"] == "hello")
    assert isinstance(Codec().decode(CODEC.encode(built(hello["message"]))), Hello)


def test_parts_are_never_compressed() -> None:
    assert not CODEC.encode(Part(last=False, data=bytes(5000)))[0] & 0x40
