"""Shares against a numerical optimum, and the constraints for every association."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from outrider.cloud_server.placement import shares
from outrider.cloud_server.placement.association import POLICIES
from outrider.cloud_server.placement.problem import Placement, Problem, evaluate
from outrider.protocol.errors import SettingError


def case(devices: int, servers: int, seed: int, *, match: float = 1e-2) -> Problem:
    rng = np.random.default_rng(seed)
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
        match=match,
    )


@given(
    st.integers(1, 40),
    st.integers(1, 6),
    st.integers(0, 1000),
    st.sampled_from(sorted(POLICIES)),
    st.sampled_from([1e-2, 1.0, 50.0]),
)
@settings(max_examples=60, deadline=None)
def test_every_constraint_holds(
    devices: int, servers: int, seed: int, name: str, match: float
) -> None:
    problem = case(devices, servers, seed, match=match)
    server = POLICIES[name](problem, np.random.default_rng(seed))
    for split in (shares.equal, shares.optimised):
        split(problem, server).check(problem)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("server", [0, 1, 2]),  # there are two
        ("server", [0, -1, 1]),
        ("server", [0, 1]),  # a device without one
        ("band", [0.6, 0.5, 1.0]),  # more than all of a server's band, eq. 4 corrected
        ("band", [0.5, 0.0, 1.0]),
        ("compute", [0.7, 0.4, 1.0]),
        ("compute", [1.1, -0.1, 1.0]),
    ],
)
def test_a_broken_constraint_is_seen(name: str, value: list[float]) -> None:
    """Each constraint alone: what the property above checks can fail."""
    problem = case(3, 2, 0)
    good = {
        "server": np.array([0, 0, 1]),
        "band": np.array([0.5, 0.5, 1.0]),
        "compute": np.array([0.3, 0.7, 1.0]),
    }
    Placement(**good).check(problem)
    with pytest.raises(AssertionError):
        Placement(**good | {name: np.array(value)}).check(problem)


@pytest.mark.parametrize("seed", range(6))
def test_compute_shares_are_the_numerical_optimum(seed: int) -> None:
    problem = case(5, 1, seed)
    server = np.zeros(5, np.int64)

    def cost(z: np.ndarray) -> float:
        return float((problem.work / (z * problem.speed[0])).sum())

    found = minimize(
        cost,
        np.full(5, 0.2),
        bounds=[(1e-3, 1)] * 5,
        constraints={"type": "eq", "fun": lambda z: z.sum() - 1},
        options={"ftol": 1e-12, "maxiter": 500},
    )
    ours = shares.compute_shares(problem, server)
    np.testing.assert_allclose(ours, found.x, atol=2e-3)
    assert cost(ours) <= found.fun * (1 + 1e-9)
    assert cost(np.full(5, 0.2)) > found.fun * 1.001  # equal shares are not the optimum


@pytest.mark.parametrize("match", [1e-2, 1.0, 100.0])
@pytest.mark.parametrize("seed", range(4))
def test_bands_are_the_numerical_optimum(seed: int, match: float) -> None:
    """scipy from many starts; where the matching term is strong the cost has several valleys."""
    problem = case(4, 1, seed, match=match)
    server, device = np.zeros(4, np.int64), np.arange(4)

    def cost(y: np.ndarray) -> float:
        return float(problem.band_cost(problem.uplink(y, device, server), device).sum())

    rng = np.random.default_rng(seed)
    best = min(
        minimize(
            cost,
            rng.dirichlet(np.ones(4)) * rng.uniform(0.3, 1.0) + 1e-3,
            bounds=[(1e-4, 1)] * 4,
            constraints={"type": "ineq", "fun": lambda y: 1 - y.sum()},
            options={"ftol": 1e-13, "maxiter": 300},
        ).fun
        for _ in range(12)
    )
    exact = cost(shares.exact_bands(problem, server))
    priced = cost(shares.priced_bands(problem, server))
    assert exact <= best * (1 + 1e-3)
    assert exact <= priced * (1 + 1e-9)
    if match <= 1e-2:  # the weight that is used; strong matching needs the exact way
        assert priced <= best * 1.05
    else:
        assert priced <= cost(np.full(4, 0.25))


def test_a_share_may_better_be_left_unused() -> None:
    """Sending that would end long before drafting does costs mismatch."""
    problem = case(2, 1, 0, match=100.0)
    server = np.zeros(2, np.int64)
    assert shares.exact_bands(problem, server).sum() < 0.95


def test_more_devices_than_least_shares() -> None:
    problem = case(1500, 1, 0)
    server = np.zeros(1500, np.int64)
    band = shares.priced_bands(problem, server)
    assert band.sum() <= 1 + 1e-9
    assert (band > 0).all()


def test_evaluate_by_hand() -> None:
    problem = Problem(
        gain=np.array([[1.0]]),
        power=np.array([1.0]),
        band=np.array([2.0]),
        bits=np.array([4.0]),
        draft=np.array([1.0]),
        work=np.array([6.0]),
        speed=np.array([3.0]),
        queue=np.array([0.5]),
        battery=np.array([10.0]),
        noise=0.5,
        match=0.1,
        thrift=2.0,
        amplifier=3.0,
    )
    outcome = evaluate(problem, Placement(np.array([0]), np.array([0.5]), np.array([0.5])))
    rate = 1.0 * np.log2(1 + 1 / (0.5 * 1.0))  # half of the band: 1 Hz
    up = 4.0 / rate
    energy = 3.0 * up
    assert outcome.latency[0] == pytest.approx(1.0 + 0.5 + 4.0 + max(0, up - 1.0))
    assert outcome.energy[0] == pytest.approx(energy)
    assert outcome.cost[0] == pytest.approx(5.5 + 0.1 * (1 - up) ** 2 + 2.0 * energy / 10)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("power", np.ones(3), r"power has shape \(3,\)"),
        ("bits", np.array([1.0, 0.0]), "bits holds 0.0; all must be finite and more than 0"),
        ("queue", np.array([-1.0]), "queue holds -1.0; all must be finite and not negative"),
        ("speed", np.array([np.nan]), "speed holds nan"),
    ],
)
def test_what_is_no_problem_is_refused(name: str, value: np.ndarray, words: str) -> None:
    from dataclasses import replace

    with pytest.raises(SettingError, match=words):
        replace(case(2, 1, 0), **{name: value})


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.floats(5, 200), st.floats(0.001, 2)), min_size=1, max_size=8),
    st.floats(20, 5000),
)
def test_bands_of_a_wired_link_are_the_best_there_are(
    devices: list[tuple[float, float]], band: float
) -> None:
    size, draft = (np.array(column) for column in zip(*devices, strict=True))

    def late(share: np.ndarray) -> float:
        return float(np.maximum(0.0, size / (share * band) - draft).sum())

    found = shares.linear_bands(size, draft, band)
    assert (found > 0).all()
    assert found.sum() <= 1 + 1e-9
    others = minimize(
        late,
        np.full(len(size), 1 / len(size)),
        bounds=[(1e-4, 1)] * len(size),
        constraints=[{"type": "ineq", "fun": lambda share: 1 - share.sum()}],
        method="SLSQP",
        options={"maxiter": 300},
    )
    for share in (others.x / max(1.0, others.x.sum()), np.full(len(size), 1 / len(size))):
        assert late(found) <= late(share) * (1 + 1e-6) + 1e-9


def test_root_shares_are_the_closed_form_of_one_server() -> None:
    problem = case(7, 1, 3)
    server = np.zeros(7, np.int64)
    root = np.sqrt(problem.work)
    assert shares.root_shares(problem.work, server) == pytest.approx(root / root.sum())
