"""What the adaptive policy makes of a cap on what its edge may send."""

from __future__ import annotations

import math

import pytest

from outrider.edge_client.adaptive import Adaptive
from outrider.edge_client.policy import Observed, Plan
from outrider.edge_client.ratio import Rows
from outrider.protocol.codec import Codec
from outrider.protocol.link import LinkEstimator
from outrider.protocol.messages import Draft
from outrider.protocol.pacing import FRAME_BYTES
from outrider.protocol.packing import frame_size
from outrider.simulator.pair import ConnectionPair
from tests.edge_client.test_policy import MS, seen, settled

GUESS = 2.5


def plan(**more) -> tuple[Plan, Plan, str]:
    """Without a cap, with it, and why."""
    policy = Adaptive(gated=False)
    free = settled(policy, seen(**{k: v for k, v in more.items() if k != "cap"}))
    capped = settled(policy, seen(guess_bytes=GUESS, **more))
    return free, capped, policy.reason


def rate(plan: Plan, observed: Observed) -> float:
    """Bytes a second that guessing without a pause comes to."""
    assert observed.draft_step is not None
    return (FRAME_BYTES + GUESS * plan.gather) / (plan.gather * observed.draft_step)


def test_the_bytes_of_a_frame_are_those_of_the_codec() -> None:
    for count in (1, 8):
        data = Codec(1 << 20).encode(Draft(epoch=1, tokens=(7,) * count))
        assert frame_size(len(data), masked=True) == FRAME_BYTES + count * GUESS + (count == 1) / 2


def test_without_a_cap_nothing_changes() -> None:
    free, capped, reason = plan()
    assert free == capped
    assert "cap" not in reason


def test_a_wide_cap_changes_nothing() -> None:
    free, capped, _ = plan(cap=1e5)
    assert free == capped


@pytest.mark.parametrize("cap", [300.0, 360.0, 440.0])
def test_guesses_share_frames_until_they_fit(cap: float) -> None:
    free, capped, reason = plan(cap=cap, rtt=60 * MS)
    assert rate(free, seen()) > cap >= rate(capped, seen())
    assert capped.window == free.window
    assert "at a time under a cap" in reason


def test_frames_grow_as_the_cap_shrinks() -> None:
    sizes = [plan(cap=cap, rtt=60 * MS)[1].gather for cap in (1e5, 440.0, 360.0, 300.0)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]


def test_where_no_frame_is_long_enough_fewer_are_guessed() -> None:
    free, capped, reason = plan(cap=190.0, rtt=60 * MS)
    assert 1 <= capped.window < free.window
    trip = (60 + 30) * MS
    assert FRAME_BYTES + GUESS * capped.window <= 190.0 * trip
    assert FRAME_BYTES + GUESS * (capped.window + 1) > 190.0 * trip
    assert "at most" in reason


def test_a_cap_that_carries_no_guess_a_trip_ends_guessing() -> None:
    _, capped, reason = plan(cap=30.0, rtt=60 * MS)
    assert capped.frame == 0
    assert "do not carry one" in reason


@pytest.mark.parametrize("objective", ["balanced", "cost"])
def test_under_the_ratio_rule_rows_that_a_cap_would_hold_back_are_not_made(objective: str) -> None:
    """The cloud waits for them, a second for each token."""
    rows, policy = Rows(), Adaptive(gated=False)
    for cap in (math.inf, 1e6, 16.0):
        plan = rows.plan(seen(objective=objective, cap=cap), policy)
        assert plan is not None
        assert bool(plan.frame) == (cap > 1e3), rows.reason


def test_rows_get_poorer_under_a_cap() -> None:
    pair = ConnectionPair()
    session, link = pair.open(1, 2), LinkEstimator()
    keeps = []
    for cap in (1e6, 10e3, 1e3):
        session.pacer.limit(cap)
        keeps.append(Rows().budget(session, link).keep)
    assert keeps == sorted(keeps, reverse=True)
    assert len(set(keeps)) == 3
