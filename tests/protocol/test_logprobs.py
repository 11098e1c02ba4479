"""Log-probabilities on the wire: ahead of their tokens, once, and again after a lost link."""

from __future__ import annotations

import itertools
import math
import struct

import msgspec
import numpy as np
import pytest

from outrider.protocol import logprobs
from outrider.protocol import messages as m
from outrider.protocol.decoding.logprob import logprob_of
from outrider.protocol.edge import State
from outrider.protocol.events import AnswerRefused, Committed, LinkFailed
from outrider.protocol.logprobs import MAX_TOKENS, TokenLogprob
from outrider.protocol.request import Request
from outrider.simulator.pair import ConnectionPair

PROMPT = (1, 2, 3)


def told(index: int) -> TokenLogprob:
    """Something different for every token, exact in float32."""
    return TokenLogprob(-index / 4, ((index % 26, -0.5), ((index + 1) % 26, -index / 8)))


def begin(pair: ConnectionPair, top: int | None = 2, max_tokens: int = 500):
    session = pair.machine.session()
    pair.machine.open(session, Request(max_tokens=max_tokens, ids=PROMPT, logprobs=top))
    events = pair.settle()
    return session, events


def commit(pair: ConnectionPair, count: int) -> None:
    """The cloud's target chooses so many tokens."""
    (session,) = pair.table.sessions.values()
    first = len(session.ids) - len(PROMPT)
    session.commit(
        [i % 26 for i in range(first, first + count)],
        0,
        [told(i) for i in range(first, first + count)],
    )


def test_definition() -> None:
    rng = np.random.default_rng(1)
    for size, count in itertools.product((1, 3, 9, 9000), (0, 2, 20)):
        row = rng.integers(-3, 3, size + 2).astype(np.float32)  # ties, and two columns of padding
        total = math.log(math.fsum(math.exp(z) for z in row[:size]))
        values = [float(z) - total for z in row[:size]]
        order = sorted(range(size), key=lambda i: (-values[i], i))[:count]
        found = logprob_of(row, size - 1, count, size)
        assert [i for i, _ in found.top] == order
        assert [v for _, v in found.top] == pytest.approx([values[i] for i in order])
        assert found.logprob == pytest.approx(values[-1])


def test_each_token_comes_with_its_own(pair: ConnectionPair) -> None:
    session, _ = begin(pair)
    seen: list[TokenLogprob] = []
    for count in (1, 3, 2 * MAX_TOKENS + 5, 1):
        commit(pair, count)
        events = [e for e in pair.settle() if isinstance(e, Committed)]
        assert sum(len(e.tokens) for e in events) == count
        seen += [value for event in events for value in event.logprobs]
    assert seen == [told(i) for i in range(len(seen))] == session.logprobs


def test_nobody_else_pays(pair: ConnectionPair) -> None:
    """An answer that did not ask has the same bytes as ever."""
    session, _ = begin(pair, top=None)
    (cloud,) = pair.table.sessions.values()
    cloud.commit([4, 5])
    assert pair.pull_down()
    assert pair.down[0][0] & 0xC0 == 0x40
    (event,) = [e for e in pair.settle() if isinstance(e, Committed)]
    assert event.logprobs == ()
    assert session.logprobs is None


@pytest.mark.parametrize("lost_at", range(6))
def test_a_lost_link_loses_none(pair: ConnectionPair, lost_at: int) -> None:
    """Whatever was delivered when it broke: after the next one both ends agree again."""
    session, _ = begin(pair)
    commit(pair, MAX_TOKENS + 3)
    while pair.pull_down():
        pass
    for _ in range(lost_at):
        pair.deliver_down()
    pair.lose()
    commit(pair, 2)
    pair.connect()
    events = [e for e in pair.settle() if isinstance(e, Committed)]
    assert session.logprobs == [told(i) for i in range(MAX_TOKENS + 5)]
    assert session.emitted == MAX_TOKENS + 5
    for event in events:
        first = event.start - len(PROMPT)
        assert list(event.logprobs) == [told(first + i) for i in range(len(event.tokens))]


def test_a_cloud_that_forgot_goes_on(pair: ConnectionPair) -> None:
    """It gets the text back, and tells only of what it adds: the edge has the rest."""
    session, _ = begin(pair)
    commit(pair, 3)
    pair.settle()
    pair.lose()
    pair.table.sessions.clear()
    pair.connect()
    pair.settle()
    commit(pair, 2)
    pair.settle()
    assert session.logprobs == [told(i) for i in range(5)]


def test_an_open_whose_reply_was_lost(pair: ConnectionPair) -> None:
    session = pair.machine.session()
    pair.machine.open(session, Request(max_tokens=500, ids=PROMPT, logprobs=2))
    while pair.pull_up():
        pair.deliver_up()
    commit(pair, 4)
    pair.lose()
    pair.connect()
    pair.settle()
    assert session.logprobs == [told(i) for i in range(4)]
    assert session.ids == [*PROMPT, 0, 1, 2, 3]


def test_a_prompt_that_the_cloud_renders(pair: ConnectionPair) -> None:
    session = pair.machine.session()
    pair.machine.open(session, Request(max_tokens=9, text="a bb ccc", logprobs=2))
    pair.settle()
    commit(pair, 2)
    pair.settle()
    assert session.logprobs == [told(0), told(1)]


@pytest.mark.parametrize(
    ("top", "words"), [(21, "at most 20"), (-1, "at most 20")], ids=["many", "negative"]
)
def test_refused(pair: ConnectionPair, top: int, words: str) -> None:
    _, events = begin(pair, top=top)
    (refused,) = [e for e in events if isinstance(e, AnswerRefused)]
    assert refused.code == "logprobs"
    assert words in refused.message


def test_a_cloud_without_them(pair: ConnectionPair) -> None:
    welcome = pair.machine.welcome
    assert welcome is not None
    pair.machine.welcome = msgspec.structs.replace(welcome, features=("ratio",))
    _, events = begin(pair)
    (refused,) = [e for e in events if isinstance(e, AnswerRefused)]
    assert refused.code == "unsupported"
    assert "'logprobs'" in refused.message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"at": 4}, "3 is next"),
        ({"data": b""}, "0 bytes"),
        ({"data": b"123"}, "3 bytes"),
        ({"top": 21}, "21 ids"),
        ({"top": 0}, "20 bytes"),
    ],
)
def test_a_cloud_that_breaks_the_rules(pair: ConnectionPair, change, words) -> None:
    session, _ = begin(pair, top=1)
    data = struct.pack("<fIf", -1.0, 3, -1.0)
    good = m.Logprobs(handle=0, answer=session.answer, at=3, top=1, data=data)
    if words == "20 bytes":
        good = msgspec.structs.replace(good, data=data + bytes(10))
        words = "22 bytes"
    pair.tell_edge(msgspec.structs.replace(good, **change))
    failed = [e for e in pair.settle() if isinstance(e, LinkFailed)]
    assert words in str(failed[0].error)
    assert pair.machine.state is State.FAILED


def test_tokens_without_theirs_are_a_fault(pair: ConnectionPair) -> None:
    session, _ = begin(pair)
    pair.tell_edge(m.Verdict(answer=session.answer, at=3, ids=(4,)))
    failed = [e for e in pair.settle() if isinstance(e, LinkFailed)]
    assert "before their log-probabilities" in str(failed[0].error)


def test_those_of_an_answer_that_is_over_are_dropped(pair: ConnectionPair) -> None:
    session, _ = begin(pair)
    commit(pair, 2)
    pair.pull_down()
    pair.machine.cancel(session)
    pair.settle()
    assert pair.machine.state is State.READY
    assert logprobs.MAX_TOP == 20
