"""Whose turn it is: rows, memory, fairness between keys, and a bound with a hint."""

from __future__ import annotations

import contextlib
import random
from dataclasses import replace

import pytest

from outrider.protocol.errors import SessionError
from outrider.protocol.events import AnswerRefused
from outrider.protocol.queue import AnswerQueue, Capacity, need
from outrider.protocol.request import Request
from outrider.protocol.session import CloudSession
from outrider.simulator.pair import LIMITS, ConnectionPair, config
from outrider.simulator.steps import refusals

LINK = object()


class Crowd:
    """Sessions with answers of so many ids, and the queue that they are in."""

    def __init__(self, **capacity: int) -> None:
        self.queue = AnswerQueue(
            Capacity(**({"answers": 2, "ids": 2000, "waiting": 3, "n_ctx": 1000} | capacity))
        )
        self.sessions: dict[bytes, CloudSession] = {}
        self.now = 0.0

    def ask(self, owner: str = "", ids: int = 100) -> CloudSession:
        """One more answer: may be refused."""
        session = CloudSession(len(self.sessions).to_bytes(8, "big"), b"", owner)
        self.queue.check(self.sessions.values(), session)
        self.sessions[session.key] = session
        session.ids, session.prompt_len = [1] * ids, ids
        session.running, session.link = True, LINK
        session.begun += 1
        self.queue.join(session)
        return session

    def settle(self, seconds: float = 0.0) -> list[CloudSession]:
        self.now += seconds
        self.queue.settle(self.sessions, self.now)
        return [s for s in self.sessions.values() if s.active]


def test_without_a_capacity_everybody_works_at_once() -> None:
    crowd = Crowd()
    crowd.queue.capacity = None
    asked = [crowd.ask() for _ in range(50)]
    assert crowd.settle() == asked


def test_rows_are_the_limit_and_the_rest_waits_in_order() -> None:
    crowd = Crowd()
    first, second, third, fourth = [crowd.ask() for _ in range(4)]
    assert crowd.settle() == [first, second]
    assert crowd.queue.waiting(crowd.sessions.values()) == 2
    second.running = False
    assert crowd.settle() == [first, third]
    first.link = None  # its edge is gone: somebody else's turn
    assert crowd.settle() == [third, fourth]
    third.running = False
    first.link = LINK
    crowd.queue.join(first)
    assert set(crowd.settle()) == {first, fourth}


def test_memory_is_a_limit_and_nothing_smaller_overtakes() -> None:
    crowd = Crowd(answers=8, ids=1000)
    large, huge, small = crowd.ask(ids=600), crowd.ask(ids=900), crowd.ask(ids=10)
    assert crowd.settle() == [large]
    large.running = False
    assert crowd.settle() == [huge, small]


def test_what_an_answer_needs_is_prompt_and_most_tokens_within_the_context(
    pair: ConnectionPair,
) -> None:
    session = pair.open(*range(1, 11), max_tokens=50)
    pair.settle()
    cloud = pair.cloud_session(session)
    assert need(cloud, 1000) == 60
    assert need(cloud, 40) == 40
    cloud.commit([3])
    assert need(cloud, 1000) == 60


def test_the_key_with_the_fewest_answers_is_next() -> None:
    crowd = Crowd(answers=2, waiting=9)
    greedy = [crowd.ask("greedy") for _ in range(5)]
    assert crowd.settle() == greedy[:2]
    modest = crowd.ask("modest")
    greedy[0].running = False
    assert crowd.settle() == [greedy[1], modest]
    modest.running = False
    assert crowd.settle() == [greedy[1], greedy[2]]


def test_a_full_queue_refuses_with_a_hint_from_what_answers_take() -> None:
    crowd = Crowd(answers=2, waiting=1)
    first, *_ = [crowd.ask() for _ in range(3)]
    crowd.settle()
    with pytest.raises(SessionError, match="busy, and 1 answers are waiting") as caught:
        crowd.ask()
    assert caught.value.code == "busy"
    assert caught.value.retry_after == 5.0  # two in front of it, two rows, five seconds each
    for _ in range(60):  # answers come to take 20 seconds
        running = next(s for s in crowd.sessions.values() if s.active)
        running.running = False
        crowd.settle(10.0)
        crowd.ask()
        crowd.settle()
    with pytest.raises(SessionError) as caught:
        crowd.ask()
    assert 19.0 < (caught.value.retry_after or 0) < 21.0
    assert first not in crowd.settle()


def test_any_course_of_events_keeps_the_bounds() -> None:
    """Against what can be counted by hand: rows, ids, the queue, and nobody waits for nothing."""
    for seed in range(200):
        dice = random.Random(seed)
        crowd = Crowd(answers=3, ids=1500, waiting=4)
        for _ in range(120):
            crowd.now += 0.1
            live = [s for s in crowd.sessions.values() if s.running]
            if dice.random() < 0.5:
                with contextlib.suppress(SessionError):
                    crowd.ask(dice.choice("abc"), dice.choice([10, 300, 1000]))
            elif live:
                session = dice.choice(live)
                if dice.random() < 0.3:
                    session.link = None if session.link else LINK
                    if session.link:
                        crowd.queue.join(session)
                else:
                    session.running = False
            inside = crowd.settle()
            waiting = crowd.queue.waiting(crowd.sessions.values())
            assert len(inside) <= 3
            assert sum(need(s, 1000) for s in inside) <= 1500
            back = sum(1 for s in crowd.sessions.values() if s.link is None)
            assert waiting <= 3 + 4 + back + 4
            assert inside or not waiting


def test_refused_on_the_wire_with_the_hint() -> None:
    cloud = replace(config(), capacity=Capacity(answers=1, ids=2000, waiting=1, n_ctx=2000))
    pair = ConnectionPair(cloud)
    pair.connect()
    sessions = [pair.open(1, 2, 3) for _ in range(3)]
    events = pair.settle()
    pair.table.expire(pair.now)
    (refused,) = [e for e in events if isinstance(e, AnswerRefused)]
    assert refused.session is sessions[2]
    assert (refused.code, refused.retry_after) == ("busy", 10.0)
    assert pair.table.refused == {"busy": 1}
    assert [pair.cloud_session(s).active for s in sessions[:2]] == [True, False]
    pair.machine.close(sessions[0])
    pair.settle()
    pair.table.expire(pair.now)
    assert pair.cloud_session(sessions[1]).active


def test_an_answer_opened_twice_does_not_stand_in_its_own_way() -> None:
    cloud = replace(config(), capacity=Capacity(answers=1, ids=2000, waiting=0, n_ctx=2000))
    pair = ConnectionPair(cloud)
    pair.connect()
    session = pair.open(1, 2, 3)
    pair.settle()
    pair.table.expire(0.0)
    for _ in range(3):
        pair.lose()
        pair.connect()
        assert refusals(pair.settle()) == []
        pair.table.expire(0.0)
        assert pair.cloud_session(session).active


def test_the_sessions_of_all_are_bounded_as_before() -> None:
    pair = ConnectionPair(config(limits=LIMITS))
    pair.connect()
    for _ in range(LIMITS.max_sessions + 1):
        pair.open(1)
    assert refusals(pair.settle()) == ["full"]
    pair.machine.session()
    pair.machine.open(pair.machine.session(), Request(ids=(1,), max_tokens=5))
    assert refusals(pair.settle()) == ["full"]
