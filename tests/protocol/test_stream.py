"""One answer on one connection: guesses, verdicts, times, riding."""

from __future__ import annotations

import random

import msgspec
import pytest

from outrider.protocol.edge_session import Phase
from outrider.protocol.events import (
    AnswerEnded,
    AnswerOpened,
    Committed,
    LinkFailed,
)
from outrider.protocol.messages import (
    Draft,
    EpochStart,
)
from outrider.protocol.packing import prefix_digest
from outrider.protocol.request import Request
from outrider.simulator.pair import LIMITS, ConnectionPair, config
from outrider.simulator.steps import after, committed, opened, refusals, right, right_of


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
        session._sent.clear()
        session.guess([5])
        pair.settle()
        session._sent.clear()
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
