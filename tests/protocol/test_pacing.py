"""A cap in bytes a second: its byte on the wire, who is told, and frames that wait for it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.protocol.codec import Codec
from outrider.protocol.errors import DecodeError
from outrider.protocol.messages import SHARES, Hello, Verdict, Weigh
from outrider.protocol.pacing import LEAST_CAP, Pacer, cap_code, cap_rate
from outrider.protocol.request import Request
from outrider.simulator.pair import ConnectionPair, config, letters


@pytest.mark.parametrize("code", range(256))
def test_codes(code: int) -> None:
    assert cap_code(cap_rate(code)) == code


@given(st.floats(LEAST_CAP, 6e10))
def test_a_cap_is_nearly_what_was_meant(cap: float) -> None:
    assert cap_rate(cap_code(cap)) == pytest.approx(cap, rel=0.045)


@pytest.mark.parametrize("cap", [0.0, 1e-9, 1.0, LEAST_CAP])
def test_the_least_cap_is_none_of_no_bytes(cap: float) -> None:
    assert cap_rate(cap_code(cap)) == LEAST_CAP


def test_a_verdict_that_ends_before_its_cap() -> None:
    codec = Codec(16)
    data = codec.encode(Verdict(answer=1, at=3, ids=(4,), cap=512.0))
    assert codec.decode(data) == Verdict(answer=1, at=3, ids=(4,), cap=512.0)
    with pytest.raises(DecodeError):
        codec.decode(data[:-1])


@given(
    st.floats(16, 1e4),
    st.lists(st.tuples(st.floats(0, 0.3), st.integers(8, 120)), min_size=1, max_size=40),
)
def test_no_more_leaves_than_the_cap_and_one_frame(
    cap: float, tries: list[tuple[float, int]]
) -> None:
    pacer = Pacer()
    pacer.limit(cap)
    now, left = 0.0, list[tuple[float, int]]()
    for pause, size in tries:
        now += pause
        if pacer.free(now):
            pacer.sent(size, now)
            left.append((now, size))
        else:
            assert pacer.held is not None
            assert pacer.held > now
    assert left[0][0] == tries[0][0]  # the first need not wait
    for i in range(len(left)):
        for j in range(i, len(left)):
            before = sum(size for _, size in left[i:j])  # the last one is the frame beyond it
            assert before <= cap * (left[j][0] - left[i][0]) * (1 + 1e-9) + 1e-6


def test_another_cap() -> None:
    pacer = Pacer()
    pacer.sent(100, 0.0)
    assert pacer.free(0.0)  # there is none
    pacer.limit(100.0)
    pacer.sent(100, 0.0)
    assert not pacer.free(0.5)
    assert pacer.held == 1.0
    pacer.limit(50.0)
    assert not pacer.free(0.9)
    pacer.limit(1000.0)  # a higher one helps at once
    assert pacer.free(0.5)
    pacer.sent(1000, 0.5)
    pacer.lift()
    assert pacer.free(0.6)
    assert pacer.held is None


@given(st.lists(st.sampled_from([16.0, 20.0, 40.0]), min_size=1, max_size=60))
def test_caps_that_go_up_and_down_let_no_more_leave_than_the_highest(caps: list[float]) -> None:
    pacer = Pacer()
    pacer.limit(16.0)
    left = 0
    for i, cap in enumerate(caps):
        pacer.limit(cap)
        if pacer.free(0.1 * i):
            pacer.sent(10, 0.1 * i)
            left += 10
    assert left <= max(16.0, *caps) * 0.1 * (len(caps) - 1) + 10 + 1e-6


def capped(cap: float = 100.0) -> ConnectionPair:
    """A session that rides, told of a cap with its first verdict."""
    pair = ConnectionPair()
    pair.connect()
    session = pair.open(1, 2, 3)
    pair.settle()
    pair.cloud_session(session).cap = cap
    pair.verify(session, lambda ids: ids[-1])
    pair.settle()
    assert session.pacer.cap == pytest.approx(cap, rel=0.045)
    return pair


def holding() -> ConnectionPair:
    """One guess has left, another one waits for its turn."""
    pair = capped()
    (session,) = pair.machine.sessions
    session.guess([5])
    pair.settle()
    session.guess([6])
    pair.settle()
    assert session.pacer.held is not None
    return pair


def test_guesses_wait_and_go_together() -> None:
    pair = capped()
    (session,) = pair.machine.sessions
    session.guess([5])
    assert pair.pull_up()  # the first may leave
    session.guess([6])
    assert not pair.pull_up()
    held = pair.machine.next_timeout()
    assert held is not None
    assert held == session.pacer.held
    session.guess([7, 8])
    pair.now = held
    pair.machine.handle_timeout(pair.now)  # says nothing of the link
    assert pair.pull_up()
    assert session.frames_sent == 2
    assert not pair.pull_up()
    assert pair.machine.next_timeout() is None
    pair.settle()
    assert pair.cloud_session(session).window.chain(9) == [5, 6, 7, 8]


def test_what_the_text_has_passed_never_leaves() -> None:
    pair = holding()
    (session,) = pair.machine.sessions
    pair.verify(session, lambda _: 9)  # neither
    pair.settle()
    assert not session.window.ahead
    pair.now += 10.0
    assert not pair.pull_up()
    assert pair.machine.next_timeout() is None


def test_the_closing_frame_does_not_wait() -> None:
    pair = capped()
    (session,) = pair.machine.sessions
    session.guess([5])
    pair.settle()
    assert pair.cloud_session(session).riding
    session.stop_riding()
    pair.settle()
    assert not pair.cloud_session(session).riding


def test_guesses_that_wait_do_not_hold_back_the_closing_frame() -> None:
    """A cloud that is not told goes on waiting for this edge, for as long as they do."""
    pair = capped(LEAST_CAP)
    (session,) = pair.machine.sessions
    session.guess([5])
    pair.settle()
    session.guess([6] * 40)
    pair.settle()
    assert session.pacer.held is not None
    session.stop_riding()
    pair.settle()
    assert not pair.cloud_session(session).riding
    assert pair.cloud_session(session).window.chain(9)[0] == 5
    assert pair.machine.next_timeout() is None
    session.guess([7])  # what left too early is made up for
    pair.settle()
    assert session.pacer.held is not None
    assert session.pacer.held > pair.now + 1.0


def test_a_cap_is_told_once_for_each_change() -> None:
    pair = capped()
    (session,) = pair.machine.sessions
    cloud = pair.cloud_session(session)
    for cap, said in ((cloud.cap, None), (math.inf, math.inf), (math.inf, None)):
        cloud.cap = cap
        pair.verify(session, lambda ids: ids[-1])
        news = cloud.news(0.0, 0.0)
        assert isinstance(news, Verdict)
        assert news.cap == said


def test_a_new_connection_knows_of_none_until_it_is_told() -> None:
    pair = holding()
    (session,) = pair.machine.sessions
    pair.lose()
    assert pair.machine.next_timeout() is None
    assert math.isinf(session.pacer.cap)
    pair.connect()
    pair.settle()
    pair.verify(session, lambda ids: ids[-1])
    pair.settle()
    assert session.pacer.cap == pytest.approx(100.0, rel=0.045)


def test_an_edge_that_does_not_know_of_caps_is_told_of_none() -> None:
    pair = ConnectionPair()
    pair.machine.connect(0.0)
    pair.machine.next_message(0.0)
    pair.tell_cloud(
        Hello(version=1, agent="old", fingerprint=letters().fingerprint(), max_message=1 << 20)
    )
    session = pair.machine.session()
    pair.machine.open(session, Request(ids=(1, 2), max_tokens=9))
    pair.settle()
    cloud = pair.cloud_session(session)
    cloud.cap = 100.0
    pair.verify(session, lambda ids: ids[-1])
    pair.settle()
    assert math.isinf(session.pacer.cap)


def test_weights() -> None:
    pair = ConnectionPair()
    session = pair.open(1, 2)
    pair.machine.weigh(session, 2.0)  # nobody is there yet
    pair.connect()
    pair.settle()
    assert pair.cloud_session(session).weight == 1.0
    pair.machine.weigh(session, 2.0)
    pair.settle()
    assert pair.cloud_session(session).weight == 2.0
    pair.tell_cloud(Weigh(handle=9, weight=3.0))  # nobody's
    pair.tell_cloud(Weigh(handle=session.handle, weight=float("nan")))
    assert pair.connection.wants_close
    assert pair.cloud_session(session).weight == 2.0


def test_a_cloud_that_forgot_a_session_is_told_its_weight_again() -> None:
    pair = ConnectionPair()
    session = pair.open(1, 2)
    pair.connect()
    pair.settle()
    pair.machine.weigh(session, 2.0)
    pair.settle()
    pair.table.sessions.clear()  # a restart, or room was needed
    pair.lose()
    pair.connect()
    pair.settle()
    assert pair.cloud_session(session).weight == 2.0


def test_a_cloud_that_knows_no_shares_is_told_no_weights() -> None:
    pair = ConnectionPair(config())
    session = pair.open(1, 2)
    pair.connect()
    pair.settle()
    welcome = pair.machine.welcome
    assert welcome is not None
    assert SHARES in welcome.features
    pair.machine.welcome = type(welcome)(
        **{f: getattr(welcome, f) for f in welcome.__struct_fields__ if f != "features"}
    )
    pair.machine.weigh(session, 2.0)
    assert not pair.pull_up()
