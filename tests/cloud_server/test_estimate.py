"""What is measured, with invented numbers: acceptance, rate, arrivals."""

from __future__ import annotations

import itertools
import random

import pytest

from outrider.cloud_server.estimate import (
    Acceptance,
    SessionPace,
    arrivals,
    falling,
    reach_of_tree,
)


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


def test_a_chain_behind_unlikely_siblings_keeps_its_worth() -> None:
    comb = [-1, -1, -1, 0, 0, 0, 3, 3, 3]  # a chain of three, each with two guesses beside it
    reach = reach_of_tree(comb, 0.8)
    alone = [0.8, 0.2 / 2, 0.2 / 4]
    assert sum(reach) == pytest.approx(sum(alone) * (1 + 0.8 + 0.8**2))
    first, second = (0.1 + 0.05 + 0.64) / 3, (0.08 + 0.04 + 0.512) / 3
    assert reach == pytest.approx([0.8, *[first] * 3, *[second] * 3, 0.064, 0.032])
    assert reach_of_tree([-1, 0, 1], 0.8) == pytest.approx([0.8, 0.64, 0.512])


def test_falling_is_the_nearest_list_that_never_rises() -> None:
    rng = random.Random(5)
    for _ in range(40):
        values = [rng.randrange(8) / 8 for _ in range(5)]
        found = falling(values)
        assert all(a >= b for a, b in itertools.pairwise(found))
        assert sum(found) == pytest.approx(sum(values))
        # Of all ways to pool neighbours whose means fall, none is nearer.
        assert _distance(found, values) == pytest.approx(
            min(_distance(tried, values) for tried in _pooled(values))
        )


def _distance(found: list[float], values: list[float]) -> float:
    return sum((a - b) ** 2 for a, b in zip(found, values, strict=True))


def _pooled(values: list[float]) -> list[list[float]]:
    count = len(values)
    tries = []
    for cuts in itertools.product((False, True), repeat=count - 1):
        ends = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), count]
        parts = [values[a:b] for a, b in itertools.pairwise(ends)]
        tried = [sum(part) / len(part) for part in parts for _ in part]
        if all(a >= b for a, b in itertools.pairwise(tried)):
            tries.append(tried)
    return tries
