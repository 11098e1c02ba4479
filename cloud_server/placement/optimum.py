"""The best association and shares of a small case, by enumeration; and a check by another method.

What a server costs depends on who is there alone. So each set of devices is solved once a server,
and the best way to deal the devices out is found over sets: every association is covered without
being walked through.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from outrider.cloud_server.placement.problem import Floats, Ints, Placement, Problem, evaluate
from outrider.cloud_server.placement.shares import exact_bands, optimised
from outrider.protocol.errors import BackendError, SettingError
from outrider.runtime.extras import hint

MOST = 20_000
"""Associations of a case that is called small."""


def optimum(problem: Problem) -> Placement:
    """The placement of least cost, shares being solved on the grid of :func:`exact_bands`.

    Raises:
        SettingError: the case has more than :data:`MOST` associations.
    """
    m, e = problem.devices, problem.servers
    if e**m > MOST:
        raise SettingError(
            f"{m} devices and {e} servers have {e}**{m} associations; at most {MOST}"
        )
    cost = np.array([[_set_cost(problem, mask, j) for mask in range(1 << m)] for j in range(e)])
    best = cost[0].copy()
    chosen = [np.arange(1 << m)]
    for j in range(1, e):
        taken = np.zeros(1 << m, np.int64)
        grown = np.full(1 << m, np.inf)
        for mask in range(1 << m):
            part = mask
            while True:  # every subset of mask goes to server j
                total = best[mask ^ part] + cost[j, part]
                if total < grown[mask]:
                    grown[mask], taken[mask] = total, part
                if part == 0:
                    break
                part = (part - 1) & mask
        best = grown
        chosen.append(taken)
    return optimised(problem, _dealt(chosen, m, e), exact=True)


def _dealt(chosen: list[Ints], m: int, e: int) -> Ints:
    server = np.zeros(m, np.int64)
    left = (1 << m) - 1
    for j in range(e - 1, 0, -1):
        part = int(chosen[j][left])
        server[[i for i in range(m) if part >> i & 1]] = j
        left ^= part
    return server


def _set_cost(problem: Problem, mask: int, j: int) -> float:
    members = np.array([i for i in range(problem.devices) if mask >> i & 1], np.int64)
    if not len(members):
        return 0.0
    alone = only(problem, members, j)
    server = np.zeros(len(members), np.int64)
    shares = Placement(server, exact_bands(alone, server), _roots(alone))
    return evaluate(alone, shares).total


def _roots(problem: Problem) -> Floats:
    root = np.sqrt(problem.work)
    return np.asarray(root / root.sum())


def only(problem: Problem, members: Ints, j: int) -> Problem:
    """The same slot with one server and some of the devices."""
    return Problem(
        gain=problem.gain[members][:, [j]],
        power=problem.power[members],
        band=problem.band[[j]],
        bits=problem.bits[members],
        draft=problem.draft[members],
        work=problem.work[members],
        speed=problem.speed[[j]],
        queue=problem.queue[[j]],
        battery=problem.battery[members],
        noise=problem.noise,
        match=problem.match,
        thrift=problem.thrift,
        amplifier=problem.amplifier,
    )


def by_programming(problem: Problem, points: int = 24) -> tuple[Ints, float]:
    """(association, bound) by a mixed-integer programme on a grid of shares (HiGHS).

    One binary for each device, server and point of the bandwidth share; compute costs are convex in
    the share and enter as their tangents, so the value is a bound from below up to the grid of the
    bandwidth shares. For cross-checks of :func:`optimum`.

    Raises:
        BackendError: scipy is missing, or HiGHS finds no solution.
    """
    try:
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import coo_matrix
    except ImportError as error:
        raise BackendError(f"scipy is not installed: {hint('sim')}") from error
    m, e, k = problem.devices, problem.servers, points
    grid = np.arange(1, k + 1) / k
    shape = (m, e, k)
    pick = np.arange(m * e * k).reshape(shape)
    z = m * e * k + np.arange(m * e).reshape(m, e)
    time = z.max() + 1 + np.arange(m * e).reshape(m, e)
    size = int(time.max()) + 1
    objective = np.zeros(size)
    device, server = np.arange(m)[:, None, None], np.arange(e)[None, :, None]
    up = problem.uplink(grid, device, server)
    fixed = problem.draft[:, None, None] + problem.queue[None, :, None]
    objective[pick] = problem.band_cost(up, device) + fixed
    objective[time] = 1.0
    rows: list[tuple[dict[int, float], float, float]] = []
    for i in range(m):
        rows.append(({int(v): 1.0 for v in pick[i].ravel()}, 1.0, 1.0))
        for j in range(e):
            rows.append(({int(z[i, j]): 1.0, **{int(v): -1.0 for v in pick[i, j]}}, -np.inf, 0.0))
            scale = float(problem.work[i] / problem.speed[j])
            rows += _tangents(scale, int(z[i, j]), int(time[i, j]), pick[i, j])
    for j in range(e):
        band = {int(pick[i, j, n]): float(grid[n]) for i in range(m) for n in range(k)}
        rows.append((band, -np.inf, 1.0))
        rows.append(({int(z[i, j]): 1.0 for i in range(m)}, -np.inf, 1.0))
    at = [(n, column, value) for n, (row, _, _) in enumerate(rows) for column, value in row.items()]
    matrix = coo_matrix(
        ([v for *_, v in at], ([n for n, *_ in at], [c for _, c, _ in at])), (len(rows), size)
    )
    limits = LinearConstraint(matrix.tocsr(), [low for _, low, _ in rows], [h for *_, h in rows])
    whole = np.zeros(size)
    whole[pick] = 1
    top = np.ones(size)
    top[time] = np.inf
    found = milp(objective, integrality=whole, bounds=Bounds(0.0, top), constraints=limits)
    if found.x is None:
        raise BackendError(f"HiGHS found no solution: {found.message}")
    return np.asarray(found.x[pick].sum(2).argmax(1)), float(found.fun)


def _tangents(
    scale: float, z: int, time: int, picks: Ints
) -> list[tuple[dict[int, float], float, float]]:
    """time >= work / (F z) where the device is there: tangents of a convex curve; else zero."""
    points = np.geomspace(0.02, 1.0, 24)
    rows = []
    for low, high in pairwise(points):
        at = (low + high) / 2
        # scale / at - scale / at^2 (z - at) = 2 scale / at - scale z / at^2, only if picked
        row = {time: 1.0, z: scale / at**2, **{int(v): -2 * scale / at for v in picks}}
        rows.append((row, 0.0, np.inf))
    return rows
