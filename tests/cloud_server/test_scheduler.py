"""The rules on plain numbers: when to start a pass, how many guesses, whose."""

from __future__ import annotations

import pytest

from outrider.cloud_server.scheduler import (
    STANCES,
    own_count,
    own_rate,
    useful,
    wait,
    worth_drafting,
)

LATENCY, COST = STANCES["latency"], STANCES["cost"]


def every(gap: float, count: int = 12) -> list[float]:
    return [gap * (i + 1) for i in range(count)]


def closed_form(k: int, alpha: float, step: float, pass_time: float) -> float:
    return (1 - alpha ** (k + 1)) / (1 - alpha) / (k * step + pass_time)


def test_nothing_is_awaited_where_nothing_is_expected() -> None:
    assert wait(0, 0.0, 0.0, 0, alpha=0.8, pass_time=0.1, stance=COST) == 0.0


def test_a_slow_drafter_is_not_awaited_for_a_short_pass() -> None:
    assert wait(1, 0.055, 0.055, 12, alpha=0.8, pass_time=0.03, stance=LATENCY) == 0.0


def test_a_quick_drafter_is_awaited_for_a_long_pass() -> None:
    delay = wait(1, 0.005, 0.005, 12, alpha=0.8, pass_time=0.1, stance=LATENCY)
    assert 0.005 <= delay <= 0.05
    assert delay == pytest.approx(0.005 * round(delay / 0.005))


def test_the_wait_grows_with_the_price_of_a_pass_and_shrinks_with_what_is_there() -> None:
    delays = [
        wait(1, 0.005, 0.005, 12, alpha=0.8, pass_time=0.1, stance=STANCES[name])
        for name in ("latency", "balanced", "cost")
    ]
    assert delays == sorted(delays)
    assert delays[0] < delays[-1]
    few, many = (
        wait(live, 0.005, 0.005, 12, alpha=0.8, pass_time=0.1, stance=LATENCY) for live in (1, 8)
    )
    assert many < few


def test_a_bad_drafter_is_not_awaited() -> None:
    assert wait(0, 0.005, 0.005, 12, alpha=0.02, pass_time=0.03, stance=LATENCY) == 0.0


def test_all_guesses_go_along_that_cost_nothing() -> None:
    assert useful(0.8, each=0.0, rate=30.0, limit=64) == 64
    assert useful(0.8, each=0.0, rate=30.0, limit=0) == 0


def test_a_guess_has_to_save_more_than_its_share() -> None:
    # 0.8^k > 0.01 s * 30 tokens/s = 0.3: up to the fifth.
    assert useful(0.8, each=0.01, rate=30.0, limit=64) == 5
    assert useful(0.2, each=0.01, rate=30.0, limit=64) == 0


@pytest.mark.parametrize(
    ("alpha", "step", "pass_time"),
    [(0.8, 0.003, 0.03), (0.5, 0.01, 0.03), (0.9, 0.01, 0.1), (0.3, 0.02, 0.03)],
)
def test_own_guesses_are_those_of_the_best_co_located_length(
    alpha: float, step: float, pass_time: float
) -> None:
    rates = [closed_form(k, alpha, step, pass_time) for k in range(17)]
    best = max(rates)
    assert own_rate(alpha, step, pass_time, 16) == pytest.approx(best)
    count = own_count(1.0, alpha, step, best, 16)
    assert rates[count] == pytest.approx(best, rel=1e-9)


def test_own_guesses_behind_guesses_of_the_edge_are_fewer() -> None:
    rate = own_rate(0.8, 0.003, 0.03, 16)
    counts = [own_count(0.8**live, 0.8, 0.003, rate, 16) for live in range(8)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > 3
    assert counts[-1] == 0


def test_a_drafter_slower_than_the_target_makes_none() -> None:
    rate = own_rate(0.8, 0.04, 0.03, 16)
    assert rate == pytest.approx(1 / 0.03)
    assert own_count(1.0, 0.8, 0.04, rate, 16) == 0


def test_whose_guesses_are_worth_more() -> None:
    ours = (2.3, 0.015)  # five guesses of 3 ms each at 0.8
    assert worth_drafting(ours, [], 0.8, 80.0, 1.0)
    assert worth_drafting(ours, every(0.012), 0.8, 80.0, 1.0)  # the edge is slower
    assert not worth_drafting(ours, every(0.001), 0.8, 80.0, 1.0)  # it is quicker
    assert worth_drafting(ours, every(0.001), 0.1, 80.0, 1.0)  # quick, but bad
    assert worth_drafting(ours, every(0.001), 0.8, 80.0, 0.0)  # no time to wait
