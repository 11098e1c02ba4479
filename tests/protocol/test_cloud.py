"""The cloud alone: handles, refusals, and the table of sessions."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from outrider.protocol.events import (
    AnswerEnded,
    AnswerRefused,
    Committed,
)
from outrider.protocol.guesses import judge
from outrider.protocol.messages import (
    Cancel,
    Draft,
    Open,
    Refused,
    Verdict,
)
from outrider.protocol.packing import prefix_digest
from outrider.protocol.request import Request
from outrider.simulator.pair import LIMITS, ConnectionPair, config
from outrider.simulator.steps import after, opened, refusals, right, right_of


class TestCloud:
    def test_a_session_without_a_link_says_nothing(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1)
        cloud = pair.cloud_session(session)
        pair.verify(session, after)
        assert cloud.has_news
        cloud.detach(0.0)
        assert not cloud.has_news
        assert cloud.news(0.0, 0.0) is None

    def test_a_goodbye_of_the_edge_detaches(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1)
        pair.tell_edge(Verdict(answer=1, at=9, ids=(1,)))  # the edge gives up, and says so
        pair.settle()
        assert pair.connection.wants_close
        assert not pair.cloud_session(session).active
        pair.connection.connection_lost(0.0)
        pair.connection.close("x", "", 0.0)
        assert pair.connection.next_message(0.0) is None

    def test_a_handle_that_named_another_session(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1)
        other = msgspec.structs.replace(session.open_message(), session=bytes(8))
        pair.tell_cloud(other)
        assert pair.cloud_session(session).link is None  # it would be lost for ever otherwise
        assert pair.table.sessions[bytes(8)].link is pair.connection

    def test_a_session_under_another_handle(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1)
        pair.tell_cloud(msgspec.structs.replace(session.open_message(), handle=5))
        cloud = pair.cloud_session(session)
        pair.verify(session, after)
        sent = [pair.codec.decode(d) for d in iter(lambda: pair.connection.next_message(0.0), None)]
        assert {getattr(message, "handle", None) for message in sent} == {5}
        pair.tell_cloud(Cancel(handle=0, answer=1))
        assert cloud.running

    def test_frames_for_an_unknown_handle_are_dropped(self, pair: ConnectionPair) -> None:
        pair.tell_cloud(Draft(handle=3, epoch=1, tokens=(1,)))
        pair.tell_cloud(Cancel(handle=3, answer=1))
        assert not pair.connection.wants_close

    def test_long_verdicts_come_in_pieces(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1)
        cloud = pair.cloud_session(session)
        session.request = replace(session.request, max_tokens=2000)
        cloud.commit([i % 26 for i in range(1500)])
        events = pair.settle()
        assert [len(e.tokens) for e in events if isinstance(e, Committed)] == [1024, 476]

    def test_judge(self) -> None:
        assert judge([1, 2, 3], [1, 2, 3, 4]) == [1, 2, 3, 4]
        assert judge([1, 2, 3], [1, 9, 3, 4]) == [1, 9]
        assert judge([], [5]) == [5]
        assert judge([1, 2, 3], [1, 2]) == [1, 2]

    def test_guesses_of_an_answer_that_was_refused(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1)
        pair.machine.cancel(session)
        pair.machine.open(session, Request(ids=(2,) * 1001, max_tokens=9))
        session.guess([5])
        while pair.pull_up():
            pass  # the guess leaves before the refusal comes
        assert refusals(pair.settle()) == ["prompt_too_long"]
        assert pair.cloud_session(session).window.chain(9) == []
        pair.machine.open(session, Request(ids=(3,), max_tokens=9))
        session.guess(right(session, 1))
        pair.settle()
        assert pair.cloud_session(session).window.chain(9) == right_of(pair, session)

    def test_an_answer_that_is_over(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1)
        first = session.open_message()
        pair.machine.cancel(session)
        pair.machine.open(session, Request(ids=(2,), max_tokens=9))
        pair.settle()
        pair.tell_cloud(first)
        data = pair.connection.next_message(0.0)
        assert data is not None
        said = pair.codec.decode(data)
        assert isinstance(said, Refused)
        assert said.code == "stale_answer"

    def test_given_back_when_the_context_was_full(self) -> None:
        settings = config()
        settings.n_ctx = 4
        pair = ConnectionPair(settings)
        pair.connect()
        session = opened(pair, 1, 2)
        pair.verify(session, after)
        pair.verify(session, after)  # four ids; the end is not told
        pair.settle()
        pair.table.sessions.clear()
        pair.lose()
        pair.connect()
        (ended,) = [e for e in pair.settle() if isinstance(e, AnswerEnded)]
        assert (ended.reason, ended.tokens) == ("length", 2)

    def test_shutting_down(self, pair: ConnectionPair) -> None:
        pair.table.closing = True
        pair.open(1)
        assert refusals(pair.settle()) == ["closing"]


class TestTable:
    def limited(self, count: int) -> ConnectionPair:
        pair = ConnectionPair(config(limits=msgspec.structs.replace(LIMITS, max_sessions=count)))
        pair.connect()
        pair.settle()
        return pair

    def test_a_full_verifier(self) -> None:
        pair = self.limited(1)
        opened(pair, 1)
        pair.open(2)
        (event,) = pair.settle()
        assert isinstance(event, AnswerRefused)
        assert event.code == "full"
        assert event.retry_after == 2.0

    def test_the_longest_detached_makes_room(self) -> None:
        pair = self.limited(2)
        first, second = opened(pair, 1), opened(pair, 2)
        pair.cloud_session(second).detach(5.0)
        pair.cloud_session(first).detach(6.0)
        third = opened(pair, 3)
        assert set(pair.table.sessions) == {first.key, third.key}

    def test_sessions_expire(self, pair: ConnectionPair) -> None:
        session, other = opened(pair, 1), opened(pair, 2)
        pair.cloud_session(session).detach(5.0)
        pair.table.expire(35.0)
        assert session.key in pair.table.sessions
        pair.table.expire(35.1)
        assert set(pair.table.sessions) == {other.key}

    def test_a_wrong_secret(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1)
        session.secret = bytes(16)
        pair.lose()
        pair.connect()
        # An attach does not say whether the session exists; the open that follows is refused.
        assert refusals(pair.settle()) == ["session_secret"]

    def test_another_owner(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1)
        pair.cloud_session(session).owner = "somebody"
        pair.lose()
        pair.connect()
        assert refusals(pair.settle()) == ["session_secret"]


OPEN = Open(
    handle=0,
    session=bytes(8),
    secret=bytes(16),
    n=1,
    answer=1,
    base=0,
    digest=prefix_digest([]),
    prompt_len=2,
    ids=(1, 2),
    max_tokens=10,
)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1001}, "max_tokens"),
        ({"prompt_len": 3}, "prompt"),
        ({"prompt_len": 0}, "prompt"),
        ({"ids": (), "text": ""}, "prompt_empty"),
        ({"ids": (1,) * 1001, "prompt_len": 1001}, "prompt_too_long"),
        ({"ids": (1,) * 2001, "prompt_len": 1000}, "prompt_too_long"),
        ({"stops": ("a", "")}, "stops"),
        ({"stops": ("a",) * 65}, "stops"),
        ({"stops": ("a" * 4097,)}, "stops"),
        ({"logprobs": 21}, "logprobs"),
        ({"grammar": "x"}, "unsupported"),
        ({"collaborators": ("x",)}, "collaborators"),
        ({"objective": "speed"}, "objective"),
        ({"base": 1}, "diverged"),
        ({"digest": b"abcd"}, "diverged"),
    ],
)
def test_opens_that_are_refused(
    pair: ConnectionPair, changes: dict[str, object], code: str
) -> None:
    pair.tell_cloud(msgspec.structs.replace(OPEN, **changes))
    data = pair.connection.next_message(0.0)
    assert data is not None
    said = pair.codec.decode(data)
    assert isinstance(said, Refused)
    assert said.code == code
    assert said.message
    assert not pair.connection.wants_close


def test_a_bias_on_a_token_that_does_not_exist(pair: ConnectionPair) -> None:
    sampling = msgspec.structs.replace(OPEN.sampling, logit_bias=((25, 1.0), (26, 1.0)))
    pair.tell_cloud(msgspec.structs.replace(OPEN, sampling=sampling))
    data = pair.connection.next_message(0.0)
    assert data is not None
    said = pair.codec.decode(data)
    assert isinstance(said, Refused)
    assert "logit_bias names token 26" in said.message


@pytest.mark.parametrize(
    ("asked", "allowed", "granted"),
    [(None, "latency", "balanced"), ("latency", "latency", "latency"), ("latency", "cost", "cost")],
)
def test_of_two_objectives_the_cheaper(asked: str | None, allowed: str, granted: str) -> None:
    settings = config()
    settings.objective = allowed
    pair = ConnectionPair(settings)
    pair.connect()
    session = pair.machine.session()
    pair.machine.open(session, Request(ids=(1,), max_tokens=3, objective=asked))
    pair.settle()
    assert pair.cloud_session(session).objective == granted
