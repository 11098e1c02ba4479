from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.protocol.link import LinkEstimator


def test_unknown_at_first() -> None:
    link = LinkEstimator()
    assert (link.srtt, link.rttvar, link.min_rtt, link.goodput_up) == (None,) * 4


def test_first_sample_and_gains_of_rfc_6298() -> None:
    link = LinkEstimator()
    link.round_trip(0.150, 0.050)
    assert (link.srtt, link.rttvar, link.min_rtt) == pytest.approx((0.1, 0.05, 0.1))
    link.round_trip(0.300, 0.040)
    assert link.rttvar == pytest.approx(0.05 + (0.16 - 0.05) / 4)
    assert link.srtt == pytest.approx(0.1 + 0.16 / 8)
    assert link.min_rtt == pytest.approx(0.1)


def test_service_time_beyond_the_round_trip_is_no_negative_time() -> None:
    link = LinkEstimator()
    link.round_trip(0.1, 0.2)
    assert link.srtt == link.min_rtt == 0
    link.round_trip(-1.0, 0.0)
    assert link.srtt == 0


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), min_size=1))
def test_never_under_the_smallest(samples: list[tuple[float, float]]) -> None:
    link = LinkEstimator()
    for elapsed, service in samples:
        link.round_trip(elapsed, service)
        assert link.srtt is not None
        assert link.min_rtt is not None
        assert link.srtt >= link.min_rtt * (1 - 1e-9) >= 0
    assert link.min_rtt == min(max(0.0, e - s) for e, s in samples)


def test_goodput_needs_a_backlog_and_is_never_lowered_without_one() -> None:
    link = LinkEstimator()
    link.uploaded(100, 1.0, backlogged=False)
    assert link.goodput_up is None
    link.uploaded(1000, 1.0, backlogged=True)
    assert link.goodput_up == 1000
    link.uploaded(10, 1.0, backlogged=False)
    assert link.goodput_up == 1000
    link.uploaded(3000, 1.0, backlogged=False)
    assert link.goodput_up == 3000
    link.uploaded(1000, 1.0, backlogged=True)
    assert link.goodput_up == 2500
    link.uploaded(1000, 0.0, backlogged=True)
    assert link.goodput_up == 2500
    link.downloaded(500, 0.5, backlogged=True)
    assert link.goodput_down == 1000
