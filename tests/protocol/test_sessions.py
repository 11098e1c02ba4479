"""Answers from open to end, on one connection and over several: what both ends hold and tell."""

from __future__ import annotations

import random

import msgspec
import pytest

from outrider.protocol.edge_session import EdgeSession, Phase, Request
from outrider.protocol.errors import LocalProtocolError
from outrider.protocol.events import (
    AnswerEnded,
    AnswerOpened,
    AnswerRefused,
    Committed,
    LinkFailed,
    LinkReady,
)
from outrider.protocol.messages import (
    Attached,
    Cancel,
    Draft,
    EpochStart,
    Finished,
    Hello,
    Open,
    Opened,
    Refused,
    Verdict,
)
from outrider.protocol.packing import prefix_digest
from outrider.protocol.session import judge
from outrider.simulator.pair import LIMITS, ConnectionPair, config, letters


def after(ids: list[int]) -> int:
    """The target's choice: a little arithmetic."""
    return (3 * ids[-1] + len(ids)) % 26


def right(session: EdgeSession, count: int) -> list[int]:
    """The next tokens that the target will choose."""
    ids = [*session.ids, *session.window.ahead]
    tokens = []
    for _ in range(count):
        tokens.append(after([*ids, *tokens]))
    return tokens


def committed(events: list[object]) -> list[int]:
    return [t for event in events if isinstance(event, Committed) for t in event.tokens]


def refusals(events: list[object]) -> list[str]:
    return [event.code for event in events if isinstance(event, AnswerRefused)]


def opened(pair: ConnectionPair, *ids: int) -> EdgeSession:
    session = pair.open(*ids)
    pair.settle()
    assert session.phase is Phase.LIVE
    return session


class TestOneConnection:
    def test_an_answer(self, pair: ConnectionPair) -> None:
        session = pair.open(1, 2, 3)
        (event,) = pair.settle()
        assert event == AnswerOpened(session, 1, prompt_len=3, cached=0)
        session.guess(right(session, 3))
        pair.settle()
        tokens = pair.verify(session, after)
        assert len(tokens) == 4
        (event,) = pair.settle()
        assert isinstance(event, Committed)
        assert (event.start, event.tokens, event.accepted) == (3, tuple(tokens), 3)
        assert event.refused == ()
        pair.cloud_session(session).finish("stop", 4, 7)
        assert pair.settle() == [AnswerEnded(session, 1, "stop", 4, 7, 0)]
        assert session.ids == pair.cloud_session(session).ids
        assert session.phase is Phase.IDLE

    def test_a_refused_guess(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1, 2)
        good = right(session, 1)
        session.guess([*good, 25, 24])
        pair.settle()
        tokens = pair.verify(session, after)
        (event,) = pair.settle()
        assert isinstance(event, Committed)
        assert (event.tokens, event.accepted, event.refused) == (tuple(tokens), 1, (25, 24))
        assert tokens[0] == good[0]
        assert tokens[1] != 25
        assert session.window.current.number == 2

    def test_waiting_verdicts_merge(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1)
        for _ in range(3):
            pair.verify(session, after)
        (event,) = pair.settle()
        assert isinstance(event, Committed)
        assert len(event.tokens) == 3

    def test_times_of_the_frame_that_is_answered(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1)
        session.guess([5])
        pair.pull_up()
        pair.now = 0.1
        pair.deliver_up()
        pair.now = 0.4
        pair.verify(session, after)
        pair.pull_down()
        pair.now = 0.5
        pair.deliver_down()
        assert pair.machine.link.srtt == pytest.approx(0.2, abs=1e-4)
        (event,) = pair.settle()
        assert isinstance(event, Committed)
        assert event.ack is not None
        assert event.ack.since == pytest.approx(0.3, abs=1e-4)
        pair.verify(session, after)
        (event,) = pair.settle()
        assert isinstance(event, Committed)
        assert event.ack is None  # said once

    def test_times_that_overflow_are_no_samples(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1)
        session.guess([5])
        pair.settle()
        pair.now = 10.0
        pair.verify(session, after)
        pair.settle()
        assert pair.machine.link.srtt is None

    def test_an_ack_of_a_frame_that_is_forgotten(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1)
        session._sent_at.clear()
        session.guess([5])
        pair.settle()
        session._sent_at.clear()
        pair.verify(session, after)
        pair.settle()
        assert pair.machine.link.srtt is None

    def test_frames_of_a_refused_open_do_not_confuse_the_count(self) -> None:
        pair = ConnectionPair(config(limits=msgspec.structs.replace(LIMITS, max_sessions=1)))
        pair.connect()
        other = opened(pair, 1)
        session = pair.open(1)
        session.guess([5, 6])  # in the same flight as an open that is refused
        assert refusals(pair.settle()) == ["full"]
        pair.machine.close(other)
        pair.machine.open(session, Request(ids=(1,), max_tokens=9))
        pair.settle()
        pair.now = 1.0
        session.guess([5])
        pair.settle()
        pair.now = 1.25
        pair.verify(session, after)
        pair.settle()
        assert pair.machine.link.srtt == pytest.approx(0.0, abs=1e-4)

    def test_how_long_the_edge_takes(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1)
        cloud = pair.cloud_session(session)
        session.guess([(right(session, 1)[0] + 1) % 26])
        pair.settle()
        assert cloud.reply_time is None
        for now, reply in ((10.0, 0.5), (20.0, 1.3)):
            pair.now = now
            pair.verify(session, after)
            pair.settle()
            pair.now = now + reply
            session.guess([(right(session, 1)[0] + 1) % 26])
            pair.settle()
        assert cloud.reply_time == pytest.approx(0.5 + (1.3 - 0.5) / 8)

    def test_what_a_driver_is_told(self, pair: ConnectionPair) -> None:
        assert not pair.machine.has_cold_messages
        assert not pair.connection.has_cold_messages
        pair.open(1)
        assert pair.machine.has_cold_messages
        pair.pull_up()
        pair.deliver_up()
        assert not pair.machine.has_cold_messages
        assert pair.connection.has_cold_messages
        pair.connection.close("x", "", 0.0)
        pair.settle()
        assert pair.connection.has_cold_messages  # it is over

    def test_limits_on_nodes_are_kept(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1)
        session.guess([i % 26 for i in range(100)])
        session.stop_riding()
        pair.settle()
        frames = session.frames_sent
        assert session.nodes_sent == session.window.in_flight == 64
        assert frames == 4
        assert pair.cloud_session(session).riding  # it has not said the last yet

    def test_before_the_welcome_the_least_limits_hold(self) -> None:
        pair = ConnectionPair()
        pair.connect()
        session = pair.open(1)
        session.guess(range(20))
        assert all(pair.pull_up() for _ in range(5))
        frames = [pair.codec.decode(data) for data in pair.up]
        assert [len(frame.tokens) for frame in frames if isinstance(frame, Draft)] == [8, 8, 4]

    def test_sessions_take_turns(self, pair: ConnectionPair) -> None:
        one, two = opened(pair, 1), opened(pair, 2)
        for session in (one, two):
            session.guess(range(25))
        while pair.pull_up():
            pass
        frames = [pair.codec.decode(data) for data in pair.up]
        assert [frame.handle for frame in frames if isinstance(frame, Draft)] == [0, 1, 0, 1]
        pair.settle()
        pair.verify(one, after)
        pair.verify(two, after)
        while pair.pull_down():
            pass
        assert len(pair.down) == 2

    def test_a_frame_waits_for_the_open_before_it(self, pair: ConnectionPair) -> None:
        session = pair.machine.session()
        stop = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz", k=3000))
        pair.machine.open(session, Request(ids=(1, 2), stops=(stop,), max_tokens=9))
        session.guess([1])
        first = pair.machine.next_message(0.0, 100)
        assert first is not None
        assert not isinstance(pair.codec.decode(first), Draft)
        pair.connection.receive(first, 0.0)
        kinds = []
        while (data := pair.machine.next_message(0.0, 100)) is not None:
            kinds.append(type(pair.codec.decode(data)).__name__)
            pair.connection.receive(data, 0.0)
        assert kinds.index("Draft") == len(kinds) - 1
        assert len(kinds) > 4

    def test_riding(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1)
        cloud = pair.cloud_session(session)
        session.ride()
        pair.settle()
        assert cloud.riding
        session.ride()
        assert not pair.pull_up()  # said once
        session.guess([5], full=True)
        pair.settle()
        assert cloud.full
        session.stop_riding()
        pair.settle()
        assert not cloud.riding
        session.stop_riding()
        assert not pair.pull_up()
        session.ride()
        session.stop_riding()
        assert not pair.pull_up()  # taken back before it left
        session.guess([6])
        session.stop_riding()
        pair.settle()
        assert not cloud.riding  # the frame with the last guess said so

    def test_withdrawal(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1)
        session.guess([5, 6])
        pair.settle()
        session.withdraw()
        session.guess(right(session, 1))
        pair.settle()
        assert pair.cloud_session(session).window.chain(9) == right_of(pair, session)

    def test_a_verdict_may_name_an_epoch_that_was_withdrawn(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1)
        guesses = right(session, 2)
        session.guess(guesses)
        pair.settle()
        tokens = pair.verify(session, after)
        session.withdraw()
        session.guess([25])
        assert committed(pair.settle()) == tokens
        assert session.ids == pair.cloud_session(session).ids

    def test_too_many_guesses_in_flight(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1)
        session.max_in_flight = 1000
        session.guess([i % 26 for i in range(65)])
        (event,) = pair.settle()
        assert isinstance(event, LinkFailed)
        assert event.error.code == "limit"

    def test_too_many_guesses_in_a_frame(self, pair: ConnectionPair) -> None:
        opened(pair, 1)
        start = EpochStart(answer=1, base=1, digest=prefix_digest([1]))
        pair.tell_cloud(Draft(epoch=1, start=start, tokens=tuple(range(17))))
        (event,) = pair.settle()
        assert isinstance(event, LinkFailed)
        assert "17 nodes in a frame; at most 16" in str(event.error)


def right_of(pair: ConnectionPair, session: EdgeSession) -> list[int]:
    return [after(pair.cloud_session(session).ids)]


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


class TestConnections:
    def test_an_answer_goes_on_at_the_exact_token(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1, 2)
        session.guess(right(session, 2))
        pair.settle()
        told = pair.verify(session, after)
        pair.settle()
        missed = pair.verify(session, after)
        pair.lose()
        assert not pair.cloud_session(session).active
        assert session.window.in_flight == 0
        pair.connect()
        events = pair.settle()
        assert committed(events) == missed
        assert session.ids == [1, 2, *told, *missed]
        session.guess(right(session, 1))
        pair.settle()
        pair.verify(session, after)
        assert len(committed(pair.settle())) == 2

    def test_the_end_is_told_again(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1)
        pair.verify(session, after)
        pair.cloud_session(session).finish("stop", 1, None)
        while pair.pull_down():
            pass
        pair.lose()
        pair.connect()
        events = pair.settle()
        assert [type(e) for e in events] == [LinkReady, Committed, AnswerEnded]

    def test_late_bytes_of_a_connection_that_was_replaced(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1)
        session.guess([5])
        pair.machine.cancel(session)
        while pair.pull_up():
            pass
        session_again = Request(ids=(2,), base=1, max_tokens=9)
        pair.machine.open(session, session_again)
        late = pair.connect()
        pair.settle()
        cloud = pair.cloud_session(session)
        assert (cloud.answer, cloud.ids) == (2, [1, 2])
        while late:
            pair.old.receive(late.popleft(), 0.0)
        pair.old.receive(pair.codec.encode(Draft(epoch=9, tokens=(1,))), 0.0)
        pair.old.connection_lost(0.0)
        assert (cloud.answer, cloud.ids, cloud.running) == (2, [1, 2], True)
        assert cloud.link is pair.connection
        pair.verify(session, after)
        assert len(committed(pair.settle())) == 1

    def test_attaches_race(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1)
        pair.connect()
        while pair.pull_up():
            pass
        late = pair.connect()  # the attach of the second is under way when the third attaches
        pair.settle()
        while late:
            pair.old.receive(late.popleft(), 0.0)
        said = [pair.codec.decode(d) for d in iter(lambda: pair.old.next_message(0.0), None)]
        assert [m.code for m in said if isinstance(m, Refused)] == ["superseded"]
        assert pair.cloud_session(session).link is pair.connection

    def test_an_open_races(self, pair: ConnectionPair) -> None:
        pair.open(1)
        while pair.pull_up():
            pass
        late = pair.connect()
        pair.settle()
        pair.old.receive(late.popleft(), 0.0)
        (said,) = [pair.codec.decode(d) for d in iter(lambda: pair.old.next_message(0.0), None)]
        assert isinstance(said, Refused)
        assert said.code == "superseded"

    def test_somebody_else_serves_the_session(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1)
        pair.cloud_session(session).n = 100
        pair.lose()
        pair.connect()
        assert refusals(pair.settle()) == ["superseded"]
        assert session.phase is Phase.IDLE

    def test_a_verifier_that_forgot_everything(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1, 2)
        told = pair.verify(session, after)
        pair.settle()
        pair.table.sessions.clear()
        pair.lose()
        pair.connect()
        events = pair.settle()
        assert committed(events) == []
        cloud = pair.cloud_session(session)
        assert cloud.ids == session.ids == [1, 2, *told]
        assert cloud.prompt_len == 2
        assert cloud.request is not None
        assert cloud.request.max_tokens == 100

    def test_a_verifier_that_keeps_forgetting(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1)
        for _ in range(4):
            pair.tell_edge(Refused(handle=0, answer=1, code="session_lost", message="again"))
        assert refusals(pair.machine.events()) == ["session_lost"]
        assert session.phase is Phase.IDLE

    def test_the_edges_copy_wins(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1, 2)
        pair.verify(session, after)
        pair.settle()
        pair.cloud_session(session).ids[-1] += 1
        pair.cloud_session(session).digests.cut(0)
        pair.lose()
        pair.connect()
        pair.settle()
        assert pair.cloud_session(session).ids == session.ids

    def test_guesses_that_hang_from_another_text(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1, 2)
        cloud = pair.cloud_session(session)
        cloud.ids[-1] = 7
        cloud.digests.cut(0)
        session.guess([5])
        pair.settle()
        assert cloud.ids == session.ids == [1, 2]
        assert session.phase is Phase.LIVE
        session.guess(right(session, 1))
        pair.settle()
        assert pair.verify(session, after)

    def test_an_end_on_another_text(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1)
        ended = Finished(
            handle=0,
            answer=1,
            reason="stop",
            tokens=0,
            text_bytes=-1,
            length=1,
            digest=prefix_digest([2]),
        )
        pair.tell_edge(ended)
        assert "another text" in str(pair.machine.failure)
        assert session.phase is Phase.LIVE  # the next connection tells

    def test_a_verdict_that_starts_elsewhere(self, pair: ConnectionPair) -> None:
        opened(pair, 1)
        pair.tell_edge(Verdict(answer=1, at=5, ids=(1,)))
        assert "verdict at 5, the text ends at 1" in str(pair.machine.failure)

    def test_messages_about_nothing_are_ignored(self, pair: ConnectionPair) -> None:
        opened(pair, 1)
        for message in (
            Verdict(handle=9, answer=1, at=1, ids=(1,)),
            Verdict(answer=2, at=1, ids=(1,)),
            Opened(handle=9, answer=1, n=1, prompt_len=1, start=1),
            Attached(handle=0, answer=1, n=9, start=9),
            Refused(handle=9, answer=1, code="x", message=""),
            Refused(handle=0, answer=9, code="x", message=""),
        ):
            pair.tell_edge(message)
        assert pair.machine.failure is None
        assert pair.machine.events() == []

    def test_an_open_while_down_waits(self) -> None:
        pair = ConnectionPair()
        session = pair.open(1)
        assert not pair.pull_up()
        pair.machine.cancel(session)
        pair.machine.open(session, Request(ids=(2,), max_tokens=3))
        pair.connect()
        pair.settle()
        assert session.ids == [2]
        assert session.phase is Phase.LIVE

    def test_a_session_without_an_answer_is_not_attached(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1)
        pair.machine.cancel(session)
        pair.settle()
        pair.lose()
        pair.connect()
        kinds = set()
        while pair.pull_up():
            kinds.add(type(pair.codec.decode(pair.up[-1])))
        assert kinds == {Hello}
        pair.machine.cancel(session)
        pair.machine.close(session)  # not known on this connection: nothing is said
        assert [type(pair.codec.decode(data)) for data in pair.up] == [Hello]


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
        pair.cloud_session(session).commit([i % 26 for i in range(1500)])
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
        ({"logprobs": 5}, "unsupported"),
        ({"grammar": "x"}, "unsupported"),
        ({"collaborators": ("x",)}, "unsupported"),
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
