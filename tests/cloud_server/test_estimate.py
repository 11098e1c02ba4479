"""What is measured, with invented numbers: acceptance, rate, arrivals."""

from __future__ import annotations

import pytest

from outrider.cloud_server.estimate import Acceptance, SessionPace, arrivals


def test_acceptance_starts_at_its_prior_and_learns() -> None:
    acceptance = Acceptance(0.7)
    assert acceptance.alpha == pytest.approx(0.7)
    for _ in range(100):
        acceptance.observe(1, True)  # one right, one wrong
    assert acceptance.alpha == pytest.approx(0.5, abs=0.02)
    for _ in range(100):
        acceptance.observe(0, True)
    assert acceptance.alpha < 0.05
    for _ in range(100):
        acceptance.observe(5, False)
    assert acceptance.alpha > 0.95


def test_acceptance_stays_off_the_ends() -> None:
    sure, never = Acceptance(1.0), Acceptance(0.0)
    assert (sure.alpha, never.alpha) == (0.99, 0.01)


def test_acceptance_of_nothing_judged_is_unchanged() -> None:
    acceptance = Acceptance(0.6)
    acceptance.observe(0, False)
    assert acceptance.alpha == pytest.approx(0.6)


def test_the_rate_is_of_tokens_committed() -> None:
    pace = SessionPace()
    pace.committed(3, 1.0)
    assert pace.rate is None
    pace.committed(3, 1.1)
    assert pace.rate == pytest.approx(30)
    for i in range(60):
        pace.committed(1, 1.2 + 0.1 * i)
    assert pace.rate == pytest.approx(10, abs=1)


def test_a_stream_goes_on_at_its_own_gap(desk) -> None:
    d = desk()
    session = d.open(b"a")
    assert arrivals(session, 0.0, 4) == []  # not riding
    d.step()
    d.guess(session, d.expected((1, 2, 3), 9)[1:3])
    session.node_gap = 0.01
    # Two are there, so the next is the third: one gap after the frame for each id it is ahead.
    found = arrivals(session, d.now, 3)
    assert found == pytest.approx([found[0] + 0.01 * i for i in range(3)])
    late = arrivals(session, d.now + 1.0, 2)
    assert late[0] == pytest.approx(1.0 - found[0])  # overdue: the longer, the later


def test_nothing_is_expected_of_a_full_window(desk) -> None:
    d = desk()
    session = d.open(b"a")
    d.step()
    session.node_gap = 0.01
    d.guess(session, d.expected((1, 2, 3), 9)[1:3], full=True)
    assert arrivals(session, d.now, 3) == []


def test_after_a_contradiction_the_edge_needs_its_usual_time(desk) -> None:
    d = desk()
    session = d.open(b"a")
    d.step()
    wrong = d.expected((1, 2, 3), 2)[1] ^ 1
    d.guess(session, [wrong, 0, 0])
    d.step()
    assert session.window.contradicted
    session.node_gap = 0.01
    assert arrivals(session, d.now, 3) == []  # its usual time is not known
    session.reply_time = 0.05
    session.told_log.append((len(session.ids), d.now))
    assert arrivals(session, d.now + 0.02, 2) == pytest.approx([0.03, 0.04])
