"""Frames of every type, bent in every way that a fuzzer thinks of: nothing is raised, nothing
grows, and nobody else's answer is touched. 4,000 by default, 200,000 with ``-m slow``."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from outrider.protocol.cloud import CloudConnection
from outrider.protocol.codec import COLD_TYPES, Codec
from outrider.protocol.messages import Draft, Verdict
from outrider.protocol.request import Request
from outrider.simulator.pair import LIMITS, ConnectionPair
from outrider.simulator.steps import after, opened, right

VECTORS = Path(__file__).parents[1] / "data" / "wire" / "messages.json"
SLOW = (pytest.mark.slow, pytest.mark.timeout(1800))
COUNTS = [4_000, pytest.param(200_000, marks=SLOW)]

EXTREMES = [
    (2**60).to_bytes(9, "little"),
    b"\xff" * 9 + b"\x01",
    b"\x80" * 12,
    b"\xdd\xff\xff\xff\xff",  # MessagePack: an array of 2^32 - 1
    b"\xc6\xff\xff\xff\xff",  # and so many bytes
    b"\x28\xb5\x2f\xfd\xe0" + b"\xff" * 8,  # zstandard: a frame of 2^64 - 1 bytes
]


class Recorded:
    """A whole conversation, of which every frame that went either way is kept."""

    def __init__(self) -> None:
        self.up: list[bytes] = []
        self.down: list[bytes] = []
        pair = ConnectionPair()
        pair.connect()
        self._settle(pair)
        self.hello = self.up[0]
        session = opened_by(pair, 1, 2, 3)
        self._settle(pair)
        for _ in range(3):
            session.guess(right(session, 4))
            self._settle(pair)
            pair.verify(session, after)
            self._settle(pair)
        pair.lose()
        pair.connect()
        self._settle(pair)
        pair.machine.cancel(session)
        self._settle(pair)
        pair.machine.open(session, Request(text="a few words of text", max_tokens=9, stops=("x",)))
        self._settle(pair)
        pair.machine.close(session)
        for _ in range(LIMITS.max_sessions + 1):
            opened_by(pair, 1)
        self._settle(pair)
        vectors = json.loads(VECTORS.read_text("utf-8"))["vectors"]
        self.all = [*self.up, *self.down, *(bytes.fromhex(v["hex"]) for v in vectors)]

    def _settle(self, pair: ConnectionPair) -> None:
        while True:
            moved = [pair.pull_up(), pair.pull_down()]
            self.up += pair.up
            self.down += pair.down
            while pair.deliver_up() or pair.deliver_down():
                pass
            if not any(moved):
                return


def opened_by(pair: ConnectionPair, *ids: int):
    session = pair.machine.session()
    pair.machine.open(session, Request(ids=ids, max_tokens=100))
    return session


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    return Recorded()


def bent(dice: random.Random, frames: list[bytes]) -> bytes:
    """One frame, changed in one to four ways."""
    data = bytearray(dice.choice(frames))
    for _ in range(dice.randint(1, 4)):
        place = dice.randrange(len(data) + 1)
        kind = dice.randrange(7)
        if kind == 0 and data:
            data[min(place, len(data) - 1)] ^= 1 << dice.randrange(8)
        elif kind == 1 and data:
            data[min(place, len(data) - 1)] = dice.randrange(256)
        elif kind == 2:
            del data[place : place + dice.randint(1, 8)]
        elif kind == 3:
            data[place:place] = dice.randbytes(dice.randint(1, 8))
        elif kind == 4:
            data[place:place] = dice.choice(EXTREMES)
        elif kind == 5:
            other = dice.choice(frames)
            data[place:] = other[dice.randrange(len(other)) :]
        elif data:
            data[0] = dice.randrange(256)
    return bytes(data)


def test_every_type_is_among_the_frames(recorded: Recorded) -> None:
    read = Codec(151_936)
    vectors = json.loads(VECTORS.read_text("utf-8"))["vectors"]
    kinds = {type(read.decode(bytes.fromhex(v["hex"]))) for v in vectors}
    assert kinds == {*COLD_TYPES, Draft, Verdict}
    assert len(recorded.up) > 10
    assert len(recorded.down) > 10


def same_memory(work: Callable[[int], None], count: int) -> None:
    """Run ``work(i)`` so often; the second half must leave no more behind than 1 MiB."""
    for i in range(count // 2):
        work(i)
    tracemalloc.start()
    try:
        for i in range(count // 2, count):
            work(i)
        left, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert left < 1 << 20
    assert most < 24 << 20


@pytest.mark.parametrize("count", COUNTS)
def test_a_cloud(recorded: Recorded, count: int) -> None:
    pair = ConnectionPair()
    pair.connect()
    pair.settle()
    witness = opened(pair, 7, 8)
    theirs = pair.cloud_session(witness)
    dice = random.Random(1)
    attacker = CloudConnection(pair.table, "attacker", 0.0)
    greeted = [0, 0]

    def one(i: int) -> None:
        nonlocal attacker
        if attacker.wants_close or i % 50 == 0:
            attacker.connection_lost(0.0)
            attacker = CloudConnection(pair.table, "attacker", 0.0)
            attacker.receive(recorded.hello, 0.0)
            greeted[0] += 1
            if dice.random() < 0.7:
                attacker.receive(recorded.up[1], 0.0)
        attacker.receive(bent(dice, recorded.all), 0.0)
        while attacker.next_message(0.0) is not None:
            greeted[1] += 1
        pair.table.expire(i * 1.0)

    same_memory(one, count)
    assert greeted[0] > count // 100
    assert greeted[1] > count // 4  # it got through to where work is done
    assert len(pair.table.sessions) <= LIMITS.max_sessions
    assert pair.table.sessions[witness.key] is theirs
    assert theirs.ids == [7, 8]
    assert theirs.owner == ""
    assert theirs.link is pair.connection
    witness.guess(right(witness, 3))
    pair.settle()
    assert len(pair.verify(witness, after)) == 4
    pair.settle()
    assert witness.ids == theirs.ids


@pytest.mark.parametrize("count", COUNTS)
def test_an_edge(recorded: Recorded, count: int) -> None:
    dice = random.Random(2)
    pair = ConnectionPair()

    def one(i: int) -> None:
        if pair.machine.wants_close or i % 50 == 0:
            for session in pair.machine.sessions:
                pair.machine.close(session)
            pair.connection.connection_lost(0.0)  # or the cloud's end would be a cycle of garbage
            pair.table.sessions.clear()
            pair.table.expire(0.0)
            pair.connect()
            pair.settle()
            opened_by(pair, 1, 2, 3)
            pair.settle()
        pair.machine.receive(bent(dice, recorded.all), 0.0)
        pair.machine.events()
        while pair.machine.next_message(0.0) is not None:
            pass

    same_memory(one, count)
