"""What one key may ask: told at the welcome, enforced whatever the edge does."""

from __future__ import annotations

import pytest

from outrider.protocol.errors import SessionError
from outrider.protocol.events import AnswerOpened, AnswerRefused
from outrider.protocol.messages import Draft, EpochStart
from outrider.protocol.packing import prefix_digest
from outrider.protocol.quota import NO_QUOTA, Meter, Quota
from outrider.simulator.pair import LIMITS, ConnectionPair
from outrider.simulator.steps import refusals


def limited(**quota: object) -> ConnectionPair:
    pair = ConnectionPair()
    pair.table.quotas = {"": Quota(**quota)}  # type: ignore[arg-type]
    pair.connect()
    pair.settle()
    return pair


def test_limits_are_told_in_the_welcome() -> None:
    welcome = limited(sessions=2, draft=3, objective="balanced").machine.welcome
    assert welcome is not None
    assert welcome.limits.max_sessions == 2
    assert welcome.limits.max_nodes_per_frame == 3
    assert welcome.limits.max_nodes_in_flight == 32  # what every edge may assume
    assert welcome.objective == "balanced"
    assert NO_QUOTA.limits(LIMITS) == LIMITS


@pytest.mark.parametrize(
    ("allowed", "own", "granted"),
    [("latency", "cost", "cost"), ("cost", "latency", "cost"), ("balanced", None, "balanced")],
)
def test_the_cheaper_objective_is_granted(allowed: str, own: str | None, granted: str) -> None:
    assert Quota(objective=own).dearest(allowed) == granted  # type: ignore[arg-type]


def test_sessions_of_a_key() -> None:
    pair = limited(sessions=2)
    first, _, _ = (pair.open(1) for _ in range(3))
    (refused,) = [e for e in pair.settle() if isinstance(e, AnswerRefused)]
    assert (refused.code, refused.retry_after) == ("quota", 2.0)
    pair.machine.close(first)
    pair.open(1)
    assert refusals(pair.settle()) == []


def test_a_detached_session_of_the_key_makes_room_for_its_next() -> None:
    pair = limited(sessions=1)
    old = pair.open(1)
    pair.settle()
    pair.lose()
    pair.machine.close(old)
    pair.connect()
    pair.open(2)
    assert refusals(pair.settle()) == []
    assert len(pair.table.sessions) == 1


def test_another_key_is_not_touched() -> None:
    pair = ConnectionPair()
    pair.table.quotas = {"other": Quota(sessions=1, draft=1)}
    pair.connect()
    pair.open(1)
    pair.open(2)
    assert refusals(pair.settle()) == []


def test_an_edge_that_sends_longer_frames_than_its_key_may_is_sent_away() -> None:
    pair = limited(draft=9)
    session = pair.open(1, 2)
    pair.settle()
    start = EpochStart(answer=session.answer, base=2, digest=prefix_digest([1, 2]))
    pair.tell_cloud(Draft(epoch=1, start=start, tokens=(1,) * 9))
    assert not pair.connection.wants_close
    pair.tell_cloud(Draft(epoch=1, tokens=(1,) * 10))
    assert pair.connection.wants_close


def test_tokens_a_minute() -> None:
    pair = limited(tokens_per_minute=60)
    session = pair.open(*range(1, 11))
    pair.settle()
    cloud = pair.cloud_session(session)
    cloud.commit([1] * 80)  # 90 of 60: 30 in debt
    pair.table.expire(pair.now)
    cloud.finish("stop", 80, None)
    pair.settle()
    pair.open(1)
    (refused,) = [e for e in pair.settle() if isinstance(e, AnswerRefused)]
    assert (refused.code, refused.retry_after) == ("rate", 31.0)
    pair.now += 31.0
    pair.open(1)
    assert any(isinstance(event, AnswerOpened) for event in pair.settle())


def test_the_bucket_is_a_minute_deep() -> None:
    meter, quota = Meter(), Quota(tokens_per_minute=60)
    meter.charge("a", 50, quota, 0.0)
    meter.check("a", quota, 0.0)
    meter.charge("a", 60, quota, 1000.0)  # full again, no more than full
    with pytest.raises(SessionError, match="60 tokens a minute"):
        meter.check("a", quota, 1000.0)
    meter.check("b", quota, 1000.0)
    meter.check("a", quota, 1001.0)
    meter.check("a", NO_QUOTA, 1000.0)


def test_an_idle_connection_is_closed_and_a_busy_one_is_not() -> None:
    pair = ConnectionPair()
    pair.connect()
    session = pair.open(1)
    pair.settle()
    idle = pair.table.config.idle_seconds
    assert pair.connection.next_timeout() == idle
    pair.connection.handle_timeout(idle)
    assert not pair.connection.wants_close  # an answer runs, however quiet the edge
    pair.cloud_session(session).finish("stop", 0, None)
    pair.now = idle
    pair.settle()
    pair.machine.close(session)
    pair.settle()  # the last that is heard of this edge
    pair.connection.handle_timeout(2 * idle - 1)
    assert not pair.connection.wants_close
    pair.connection.handle_timeout(2 * idle)
    assert pair.connection.wants_close
    pair.settle()
    assert pair.machine.failure is not None
    assert pair.machine.failure.code == "idle"
