"""How answers begin, and how the next one follows the last."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.protocol.edge_session import Phase
from outrider.protocol.errors import LocalProtocolError, SessionError
from outrider.protocol.events import (
    AnswerEnded,
    AnswerOpened,
    LinkReady,
)
from outrider.protocol.messages import (
    Cancel,
    Opened,
)
from outrider.protocol.request import Request
from outrider.simulator.pair import ConnectionPair, config, letters
from outrider.simulator.steps import after, committed, opened, refusals, right


class TestOpen:
    def test_messages_are_rendered_by_the_cloud(self, pair: ConnectionPair) -> None:
        session = pair.machine.session()
        chat = ({"role": "user", "content": "four"}, {"role": "user", "content": "five!"})
        pair.machine.open(session, Request(messages=chat, max_tokens=9))
        with pytest.raises(LocalProtocolError, match="without an answer"):
            session.guess([1])
        assert session.emitted == 0
        (event,) = pair.settle()
        assert event == AnswerOpened(session, 1, prompt_len=2, cached=0)
        assert session.ids == [4, 5]
        session.guess(right(session, 1))
        pair.settle()
        pair.verify(session, after)
        pair.settle()
        assert session.nodes_accepted == 1

    def test_text_is_rendered_again_after_a_loss(self, pair: ConnectionPair) -> None:
        session = pair.machine.session()
        pair.machine.open(session, Request(text="to be or", max_tokens=9))
        while pair.pull_up():
            pass
        while pair.deliver_up():
            pass
        tokens = pair.verify(session, after)  # it runs, but the edge has not heard of it
        pair.lose()
        pair.connect()
        events = pair.settle()
        assert committed(events) == tokens
        assert session.ids[:3] == [2, 2, 2]
        assert session.prompt_len == 3

    def test_templates_that_differ(self) -> None:
        pair = ConnectionPair(config(letters(template="a")), edge=letters(template="b"))
        pair.connect()
        session = pair.machine.session()
        chat = ({"role": "user", "content": "four"},)
        request = Request(ids=(9, 9), messages=chat, templated=True, max_tokens=9)
        pair.machine.open(session, request)
        session.guess([7])
        events = pair.settle()
        assert [type(event) for event in events] == [LinkReady, AnswerOpened]
        assert session.ids == [4]  # the cloud's rendering, not the edge's
        session.guess(right(session, 1))
        pair.settle()
        assert pair.verify(session, after)
        pair.settle()
        assert session.ids == pair.cloud_session(session).ids

    def test_templated_ids_without_messages_are_refused(self) -> None:
        pair = ConnectionPair(config(letters(template="a")), edge=letters(template="b"))
        pair.connect()
        session = pair.machine.session()
        pair.machine.open(session, Request(ids=(9, 9), templated=True, max_tokens=9))
        assert refusals(pair.settle()) == ["template"]

    def test_what_cannot_be_opened(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1)
        with pytest.raises(LocalProtocolError, match="under way"):
            pair.machine.open(session, Request(ids=(1,), max_tokens=1))
        pair.machine.cancel(session)
        with pytest.raises(LocalProtocolError, match="beyond"):
            pair.machine.open(session, Request(ids=(1,), base=2, max_tokens=1))
        for request in (Request(max_tokens=1), Request(text="a", base=1, max_tokens=1)):
            with pytest.raises(LocalProtocolError, match="needs ids"):
                pair.machine.open(session, request)

    def test_an_open_is_idempotent(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1, 2)
        tokens = pair.verify(session, after)
        pair.tell_cloud(session.open_message())
        events = pair.settle()
        assert committed(events) == tokens  # in the second reply, once
        assert pair.verify(session, after)
        pair.settle()
        assert session.ids == pair.cloud_session(session).ids
        assert session.phase is Phase.LIVE

    def test_a_second_reply_that_is_older_than_the_text(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1, 2)
        (token,) = pair.verify(session, after)
        pair.settle()
        again = Opened(handle=0, answer=1, n=1, prompt_len=2, start=2, ids=(token, 7))
        pair.tell_edge(again)
        assert pair.machine.failure is None
        assert session.ids == [1, 2, token, 7]  # what was known is not repeated
        pair.tell_edge(Opened(handle=0, answer=1, n=1, prompt_len=2, start=2, ids=(25, 25)))
        assert "another text" in str(pair.machine.failure)

    @pytest.mark.parametrize("start", [1, 4])
    def test_a_reply_that_starts_elsewhere(self, pair: ConnectionPair, start: int) -> None:
        session = pair.open(1, 2, 3)
        pair.tell_edge(Opened(handle=0, answer=1, n=1, prompt_len=3, start=start, ids=(9,)))
        assert "another text" in str(pair.machine.failure)
        assert session.ids == [1, 2, 3]

    @pytest.mark.parametrize(("prompt_len", "start"), [(0, 0), (3, 0), (1, 1)])
    def test_a_rendered_prompt_that_makes_no_sense(
        self, pair: ConnectionPair, prompt_len: int, start: int
    ) -> None:
        session = pair.machine.session()
        pair.machine.open(session, Request(text="a b", max_tokens=9))
        reply = Opened(handle=0, answer=1, n=1, prompt_len=prompt_len, start=start, ids=(1, 1))
        pair.tell_edge(reply)
        assert "without its prompt" in str(pair.machine.failure)


class TestTheNextAnswer:
    def test_on_top_of_the_last(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1, 2)
        pair.verify(session, after)
        pair.settle()
        pair.verify(session, after)  # the cloud is ahead of the edge
        pair.machine.cancel(session)
        assert session.phase is Phase.IDLE
        pair.machine.open(session, Request(ids=(9,), base=3, max_tokens=9))
        session.guess(right(session, 2))
        events = pair.settle()
        assert [type(e) for e in events] == [AnswerEnded, AnswerOpened]
        cloud = pair.cloud_session(session)
        assert cloud.ids == session.ids
        assert len(cloud.ids) == 4
        assert cloud.answer == 2
        pair.verify(session, after)
        events = pair.settle()
        assert len(committed(events)) == 3

    def test_a_cancel_ends_it_at_once(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1)
        pair.machine.cancel(session)
        assert pair.machine.events() == [AnswerEnded(session, 1, "cancel", 0, None, None)]
        pair.machine.cancel(session)
        assert pair.settle() == []
        cloud = pair.cloud_session(session)
        assert not cloud.running
        assert cloud.ended is not None
        assert cloud.ended.reason == "cancel"
        pair.tell_cloud(Cancel(handle=0, answer=1))  # again: nothing
        assert pair.settle() == []

    def test_late_replies_to_a_cancelled_answer_mean_nothing(self, pair: ConnectionPair) -> None:
        session = pair.open(1, 2)
        while pair.pull_up():
            pass
        while pair.deliver_up():
            pass
        pair.verify(session, after)
        while pair.pull_down():
            pass
        pair.machine.cancel(session)
        pair.machine.open(session, Request(ids=(1, 2), base=0, max_tokens=9))
        pair.deliver_down()
        assert session.phase is Phase.OPENING  # that was the reply to the first
        events = pair.settle()
        assert committed(events) == []
        assert session.ids == [1, 2]

    def test_a_handle_is_free_again_but_not_its_past(self, pair: ConnectionPair) -> None:
        first = pair.open(1, 2)
        while pair.pull_up():
            pass
        while pair.deliver_up():
            pass
        pair.verify(first, after)
        while pair.pull_down():
            pass
        pair.machine.close(first)
        second = pair.open(3, 4)  # same handle, same length, same connection
        assert second.handle == first.handle
        events = pair.settle()
        assert second.ids == [3, 4]
        assert [type(e) for e in events] == [AnswerEnded, AnswerOpened]
        assert first.key not in pair.table.sessions
        assert pair.machine.sessions == [second]

    def test_closing_twice(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1)
        pair.machine.close(session)
        pair.machine.close(session)
        assert pair.machine.failure is None
        pair.settle()
        assert pair.table.sessions == {}


class TestAnswersThatDoNotFit:
    """One connection carries many answers: what would break it for all of them never leaves."""

    def test_a_prompt_larger_than_a_message_is_refused_here(self, pair: ConnectionPair) -> None:
        other = pair.machine.session()
        pair.machine.open(other, Request(ids=(1, 2), max_tokens=9))
        pair.settle()
        session = pair.machine.session()
        limit = config().limits.max_message
        pair.machine.open(session, Request(text="ab" * limit, max_tokens=9))
        assert refusals(pair.settle()) == ["prompt_too_long"]
        assert session.phase is Phase.IDLE
        assert other.phase is Phase.LIVE
        assert pair.machine.failure is None

    def test_before_the_welcome_a_long_prompt_waits(self) -> None:
        pair = ConnectionPair()
        session = pair.machine.session()
        pair.machine.open(session, Request(text="ab" * (4 << 20), max_tokens=9))
        pair.connect()
        assert not session.bound
        assert refusals(pair.settle()) == ["prompt_too_long"]
        assert pair.machine.failure is None

    @pytest.mark.parametrize(
        "wrong",
        [{"max_tokens": 10**30}, {"max_tokens": 0}, {"stops": ("a" * 5000,)}, {"stops": ("",)}],
    )
    def test_values_that_no_cloud_takes(self, pair: ConnectionPair, wrong: dict[str, Any]) -> None:
        session = pair.machine.session()
        with pytest.raises(SessionError):
            pair.machine.open(session, Request(**{"ids": (1,), "max_tokens": 9} | wrong))
        assert session.phase is Phase.IDLE
