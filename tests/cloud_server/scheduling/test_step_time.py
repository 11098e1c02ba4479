"""How long a step takes, fitted to invented figures."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.cloud_server.scheduling.step_time import RIDGE, StepTime, _least_squares


def observe(times: StepTime, tokens: int, seconds: float) -> None:
    """A step of one row."""
    times.observe(1, 100, tokens, seconds)


def test_it_finds_the_line() -> None:
    times = StepTime()
    for tokens in (1, 5, 3, 9, 1, 2, 17) * 3:
        observe(times, tokens, 0.02 + 0.001 * tokens)
    assert times.fixed == pytest.approx(0.02, abs=1e-6)
    assert times.each == pytest.approx(0.001, abs=1e-6)
    assert times.of(10) == pytest.approx(0.03, abs=1e-5)


def test_it_of_equal_times_is_their_mean() -> None:
    times = StepTime()
    for seconds in (0.02, 0.04):
        observe(times, 1, seconds)
    assert times.each == 0.0
    assert times.of(1) == times.of(50) == pytest.approx(0.03, abs=1e-3)


def test_it_is_never_negative_nor_falling() -> None:
    times = StepTime()
    observe(times, 1, 0.05)
    observe(times, 100, 0.01)
    assert times.each == 0.0
    assert times.fixed > 0


def test_it_forgets() -> None:
    times = StepTime()
    for _ in range(50):
        observe(times, 1, 0.1)
    for _ in range(150):
        observe(times, 1, 0.02)
    assert times.of(1) == pytest.approx(0.02, abs=0.002)


def test_it_remembers_sizes_that_are_not_seen_any_more() -> None:
    times = StepTime()
    for _ in range(20):
        observe(times, 1, 0.001)
    for _ in range(500):
        observe(times, 17, 0.005)
    assert times.of(17) == pytest.approx(0.005, rel=0.05)
    assert times.of(1) < 0.0015


@pytest.mark.parametrize("padded", [0.0, 4e-8, 1e-6])
def test_it_tells_rows_lengths_and_tokens_apart(padded: float) -> None:
    times, rng = StepTime(), random.Random(1)
    for _ in range(400):
        rows, longest = rng.randint(1, 100), rng.randint(100, 4000)
        tokens = rows * rng.randint(1, 8)
        seconds = 0.022 + rows * (0.000084 + padded * longest) + 0.00024 * tokens
        times.observe(rows, longest, tokens, seconds * rng.uniform(0.98, 1.02))
    for rows, longest, tokens in ((1, 500, 1), (50, 1000, 200), (100, 4000, 500)):
        truth = 0.022 + rows * (0.000084 + padded * longest) + 0.00024 * tokens
        assert times.of(tokens, rows, longest) == pytest.approx(truth, rel=0.1)
    assert times.each == pytest.approx(0.00024, rel=0.1)


def test_what_never_varied_is_part_of_the_fixed_cost() -> None:
    times = StepTime()
    for _ in range(50):
        times.observe(1, 200, 1, 0.03)
    assert times.fixed == pytest.approx(0.03)
    assert (times.row, times.padded, times.each) == (0.0, 0.0, 0.0)


@settings(max_examples=2000, deadline=None)
@given(
    st.lists(st.tuples(*[st.integers(0, 200)] * 4), min_size=2, max_size=8),
    st.lists(st.floats(0.01, 1.0), min_size=8, max_size=8),
)
def test_the_slopes_are_those_of_the_plain_formula(
    seen: list[tuple[int, ...]], weights: list[float]
) -> None:
    means, weight = np.array(seen, np.float64), np.array(weights[: len(seen)])
    mean = np.average(means, axis=0, weights=weight)
    moments = (means - mean).T @ np.diag(weight / weight.sum()) @ (means - mean)
    used = [i for i in range(3) if moments[i, i] > 1e-9 * max(1.0, mean[i] ** 2)]
    slopes = np.zeros(3)
    while used:
        part = moments[np.ix_(used, used)]
        found = np.linalg.solve(part + RIDGE * np.diag(np.diag(part)), moments[used, 3])
        if found.min() >= 0:
            slopes[used] = found
            break
        del used[int(found.argmin())]
    got = _least_squares(moments.tolist(), mean[:3].tolist())
    # Rounding may tip which of two slopes about 0 is dropped: what is explained stays the same.
    np.testing.assert_allclose(
        (means - mean)[:, :3] @ got, (means - mean)[:, :3] @ slopes, atol=1e-6
    )
