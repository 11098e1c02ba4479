"""Policies of association: costs by another way, searches that never worsen, the optimum."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.cloud_server.placement import association, shares
from outrider.cloud_server.placement.association import POLICIES, Costs, improve, policy, swaps
from outrider.cloud_server.placement.optimum import by_programming, optimum
from outrider.cloud_server.placement.problem import Placement, Problem, evaluate
from outrider.protocol.errors import SettingError

RNG = np.random.default_rng


def case(devices: int, servers: int, seed: int) -> Problem:
    rng = RNG(seed)
    return Problem(
        gain=10 ** -rng.uniform(8, 12, (devices, servers)),
        power=10 ** ((rng.uniform(16, 24, devices) - 30) / 10),
        band=np.full(servers, 1e7 / servers),
        bits=rng.uniform(1e5, 6e5, devices),
        draft=rng.uniform(0.1, 1.2, devices),
        work=rng.uniform(1e11, 3e12, devices),
        speed=rng.choice([6e12, 1.6e13, 4e13], servers),
        queue=rng.integers(0, 3, servers) * 0.1,
        battery=rng.uniform(400, 4000, devices),
    )


def slow_total(problem: Problem, server: np.ndarray) -> float:
    """The cost that Costs keeps: the best compute shares, equal bandwidth shares."""
    equal = shares.equal(problem, server)
    chosen = Placement(server, equal.band, shares.compute_shares(problem, server))
    return evaluate(problem, chosen).total


@pytest.mark.parametrize("seed", range(5))
def test_costs_by_lookup_are_those_of_the_model(seed: int) -> None:
    problem, rng = case(9, 3, seed), RNG(seed)
    state = Costs(problem, rng.integers(0, 3, 9))
    for _ in range(20):
        assert state.total == pytest.approx(slow_total(problem, state.server))
        i, k = (int(x) for x in rng.choice(9, 2, replace=False))
        before, here = state.total, int(state.server[i])
        gain = state.swap_gain(i, k)
        assert state.swap_gains()[i, k] == pytest.approx(gain, abs=1e-12)
        alone = state.move_gains()[i]
        state.swap(i, k)
        assert before - state.total == pytest.approx(gain, abs=1e-9)
        state.swap(i, k)
        assert alone[here] == 0
        before, saved = state.total, state.removed(i)
        here = int(state.server[i])
        state.remove(i)
        j = int(rng.integers(0, 3))
        extra = state.added(i)
        assert extra[here] == pytest.approx(saved)
        np.testing.assert_allclose(saved - extra, alone, atol=1e-9)
        state.add(i, j)
        assert state.total - before == pytest.approx(extra[j] - saved, abs=1e-9)
        again = Costs(problem, state.server)
        np.testing.assert_allclose(again.bands, state.bands, atol=1e-9)
        assert again.total == pytest.approx(state.total)


@pytest.mark.parametrize("search", [improve, swaps])
@pytest.mark.parametrize("seed", range(8))
def test_searches_end_and_never_worsen(search: object, seed: int) -> None:
    problem = case(20, 4, seed)
    start = RNG(seed).integers(0, 4, 20)
    found = search(problem, start.copy())  # type: ignore[operator]
    assert slow_total(problem, found) <= slow_total(problem, start) + 1e-9
    if search is swaps:
        assert (np.bincount(found, minlength=4) == np.bincount(start, minlength=4)).all()


@given(st.integers(2, 8), st.integers(1, 4), st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_where_a_search_ends_nothing_helps(devices: int, servers: int, seed: int) -> None:
    """Every swap and every move from its end, priced by the reference, costs at least as much."""
    problem = case(devices, servers, seed)
    paper, ours = policy("tma")(problem, RNG(0)), policy("tma-moves")(problem, RNG(0))
    start = POLICIES["max-sinr"](problem, RNG(0))
    assert slow_total(problem, paper) <= slow_total(problem, start) + 1e-9
    for found in (paper, ours):
        here = slow_total(problem, found)
        for i, k in combinations(range(devices), 2):
            other = found.copy()
            other[[i, k]] = found[[k, i]]
            assert slow_total(problem, other) >= here - 1e-9
    here = slow_total(problem, ours)
    for i, j in product(range(devices), range(servers)):
        other = ours.copy()
        other[i] = j
        assert slow_total(problem, other) >= here - 1e-9


@pytest.mark.parametrize("seed", range(2))
def test_the_optimum_is_that_of_plain_enumeration(seed: int) -> None:
    problem = case(4, 2, seed)
    every = [np.array(server) for server in product(range(2), repeat=4)]
    costs = [evaluate(problem, shares.optimised(problem, s, exact=True)).total for s in every]
    best = optimum(problem)
    best.check(problem)
    assert evaluate(problem, best).total == pytest.approx(min(costs), rel=1e-9)
    chosen, bound = by_programming(problem)
    assert bound == pytest.approx(min(costs), rel=0.01)  # its grid of shares is coarse
    again = evaluate(problem, shares.optimised(problem, chosen, exact=True)).total
    assert again == pytest.approx(min(costs), rel=0.01)


@pytest.mark.parametrize("seed", range(2))
def test_the_default_is_near_the_optimum(seed: int) -> None:
    problem = case(5, 3, seed)
    best = evaluate(problem, optimum(problem)).total
    totals = {}
    for name in (association.DEFAULT, "max-sinr"):
        server = policy(name)(problem, RNG(0))
        totals[name] = evaluate(problem, shares.optimised(problem, server)).total
        assert totals[name] >= best * (1 - 1e-6)  # nothing is better than the best
    assert totals[association.DEFAULT] <= 1.03 * best
    assert totals["max-sinr"] > 1.03 * best  # a bad one is not that near


def test_better_policies_are_better() -> None:
    names = ("random", "max-sinr", "greedy", association.DEFAULT)
    totals = dict.fromkeys(names, 0.0)
    for seed in range(10):
        problem = case(30, 4, seed)
        for name in names:
            server = POLICIES[name](problem, RNG(seed))
            totals[name] += evaluate(problem, shares.optimised(problem, server)).total
    assert totals[association.DEFAULT] <= totals["greedy"] * 1.001
    assert totals["greedy"] < 0.9 * min(totals["random"], totals["max-sinr"])


def test_cases_too_large_and_unknown_names_are_refused() -> None:
    with pytest.raises(SettingError, match=r"4\*\*8 associations; at most 20000"):
        optimum(case(8, 4, 0))
    with pytest.raises(SettingError, match="placement 'best' is not one of random, max-sinr"):
        policy("best")
