"""One table for each machine: every message in every state, and what comes of it."""

from __future__ import annotations

import pytest

from outrider.protocol import cloud as cloud_module
from outrider.protocol import edge as edge_module
from outrider.protocol.codec import COLD_TYPES
from outrider.protocol.messages import (
    Attach,
    Attached,
    Cancel,
    Close,
    Draft,
    Finished,
    Goodbye,
    Hello,
    Logprobs,
    Message,
    Mismatch,
    Open,
    Opened,
    Part,
    Refused,
    Segment,
    SegmentAsk,
    Verdict,
    Weigh,
    Welcome,
)
from outrider.simulator.pair import LIMITS, ConnectionPair, letters

KEYS = {"handle": 0, "session": bytes(8), "secret": bytes(16), "n": 1, "answer": 1}
DIGEST = bytes(4)
MESSAGES: dict[type[Message], Message] = {
    Draft: Draft(epoch=1, tokens=(1,)),
    Verdict: Verdict(answer=1, at=0, ids=(1,)),
    Hello: Hello(version=1, agent="", fingerprint=letters().fingerprint(), max_message=1),
    Welcome: Welcome(
        version=1, agent="", model="", n_ctx=9, eos=(), limits=LIMITS, same_template=True
    ),
    Mismatch: Mismatch(size=1, segments=(bytes(8),)),
    SegmentAsk: SegmentAsk(index=0),
    Segment: Segment(index=0, entries=()),
    Goodbye: Goodbye(code="x", message=""),
    Attach: Attach(**KEYS, epoch=0, length=0, digest=DIGEST),
    Open: Open(**KEYS, base=0, digest=DIGEST, prompt_len=1, ids=(1,), max_tokens=1),
    Opened: Opened(handle=0, answer=1, n=1, prompt_len=1, start=0, ids=(1,)),
    Attached: Attached(handle=0, answer=1, n=1, start=0),
    Cancel: Cancel(handle=0, answer=1),
    Close: Close(handle=0),
    Finished: Finished(
        handle=0, answer=1, reason="stop", tokens=1, text_bytes=0, length=1, digest=DIGEST
    ),
    Refused: Refused(handle=0, answer=1, code="x", message=""),
    Logprobs: Logprobs(handle=0, answer=1, at=0, top=0, data=bytes(4)),
    Weigh: Weigh(handle=0, weight=2.0),
    Part: Part(last=False, data=b"x"),
}

GREETING, READY, COMPARING, CLOSED = cloud_module.State
OF_SESSIONS = (Cancel, Close, Weigh)
CLOUD: dict[cloud_module.State, dict[type[Message], cloud_module.State]] = {
    GREETING: {Hello: READY, Part: GREETING},
    READY: dict.fromkeys((Draft, Open, Attach, *OF_SESSIONS, Part), READY),
    COMPARING: dict.fromkeys((SegmentAsk, Draft, Open, Attach, *OF_SESSIONS, Part), COMPARING),
    CLOSED: {},
}
"""Where a message leads that the cloud expects; all others close the connection."""

DOWN, GREETS, UP, COMPARES, FAILED = edge_module.State
EDGE: dict[edge_module.State, dict[type[Message], edge_module.State]] = {
    DOWN: dict.fromkeys(MESSAGES, DOWN),
    GREETS: {Welcome: UP, Mismatch: COMPARES, Part: GREETS},
    UP: dict.fromkeys((Verdict, Opened, Attached, Finished, Refused, Logprobs, Part), UP),
    COMPARES: {Part: COMPARES},  # the segment that was asked for ends it, too
    FAILED: dict.fromkeys(MESSAGES, FAILED),
}


def cloud_in(state: cloud_module.State) -> ConnectionPair:
    cloud = ConnectionPair()
    if state is COMPARING:
        cloud = ConnectionPair(edge=letters(27))
    if state is CLOSED:
        cloud.connection.close("x", "", 0.0)
    elif state is not GREETING:
        cloud.connect()
        cloud.pull_up()
        cloud.deliver_up()
    while cloud.pull_down():
        pass
    cloud.down.clear()
    assert cloud.connection.state is state
    return cloud


def edge_in(state: edge_module.State) -> ConnectionPair:
    pair = ConnectionPair()
    if state is not DOWN:
        pair.connect()
    if state is UP:
        pair.settle()
    elif state is COMPARES:
        pair.tell_edge(MESSAGES[Mismatch])
    elif state is FAILED:
        pair.tell_edge(MESSAGES[Goodbye])
    while pair.pull_up():
        pass
    pair.up.clear()
    pair.machine.events()
    assert pair.machine.state is state
    return pair


def test_the_tables_are_complete() -> None:
    assert set(MESSAGES) == {Draft, Verdict, *COLD_TYPES}
    assert set(CLOUD) == set(cloud_module.State)
    assert set(EDGE) == set(edge_module.State)


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("state", CLOUD, ids=lambda state: state.value)
def test_cloud(state: cloud_module.State, kind: type[Message]) -> None:
    pair = cloud_in(state)
    pair.tell_cloud(MESSAGES[kind])
    expected = CLOUD[state].get(kind, CLOSED)
    assert pair.connection.state is expected
    assert pair.connection.wants_close == (expected is CLOSED)
    if expected is CLOSED:
        said = [pair.codec.decode(d) for d in iter(lambda: pair.connection.next_message(0.0), None)]
        told = [m.code for m in said if isinstance(m, Goodbye)]
        # Nobody answers a goodbye, or talks on a connection that is over.
        assert told == ([] if kind is Goodbye or state is CLOSED else [told[0]])
        assert len(said) == len(told)


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("state", EDGE, ids=lambda state: state.value)
def test_edge(state: edge_module.State, kind: type[Message]) -> None:
    pair = edge_in(state)
    pair.tell_edge(MESSAGES[kind])
    expected = EDGE[state].get(kind, FAILED)
    assert pair.machine.state is expected
    assert pair.machine.wants_close == (expected is FAILED)
    if expected is FAILED and state is not FAILED:
        said = [pair.codec.decode(d) for d in iter(lambda: pair.machine.next_message(0.0), None)]
        silent = kind is Goodbye or (state is COMPARES and kind is Segment)
        assert [type(message) for message in said] == ([] if silent else [Goodbye])
        assert len(pair.machine.events()) == 1
