"""How a server's bandwidth and compute are split among the devices that were given to it.

The two do not touch each other in the cost, so each is solved alone.

Compute: minimise sum(work_i / (z_i F)) with sum(z) = 1: z_i in proportion to the root of work_i,
with the value (sum sqrt(work_i))^2 / F.

Bandwidth: the matching term (draft - up)^2 is convex in the share only where sending takes at least
two thirds of drafting (or the term is absent); elsewhere the sum is not convex, a share may better
be left unused, and a local search can stick. So it is solved on a grid: the lower convex hull by a
price on bandwidth (fast, for the weak matching term of the paper), or exactly on the grid by
dynamic programming and then polished (what the optimum uses).
"""

from __future__ import annotations

import numpy as np

from outrider.cloud_server.placement.problem import Floats, Ints, Placement, Problem

GRID = 96
"""Points of a share, spaced by a constant factor."""

LEAST = 1e-3
PRICES = 40
UNITS = 400
"""Parts into which dynamic programming cuts a band."""


def equal(problem: Problem, server: Ints) -> Placement:
    """Everybody at a server gets the same share of both."""
    count = np.bincount(server, minlength=problem.servers)
    share = 1.0 / count[server]
    return Placement(server, share, share.copy())


def optimised(problem: Problem, server: Ints, *, exact: bool = False) -> Placement:
    """The best shares for an association; ``exact`` is slower (see the module)."""
    solve = exact_bands if exact else priced_bands
    return Placement(server, solve(problem, server), compute_shares(problem, server))


def compute_shares(problem: Problem, server: Ints) -> Floats:
    """In closed form."""
    return root_shares(problem.work, server)


def root_shares(work: Floats, server: Ints) -> Floats:
    """Of each server its devices have shares in proportion to the root of their work."""
    root = np.sqrt(work)
    return np.asarray(root / np.bincount(server, root)[server])


def linear_bands(size: Floats, draft: Floats, band: float) -> Floats:
    """Shares of a wired band, whose rate is in proportion to the share; exact.

    Device i sends ``size[i]`` bytes while it drafts for ``draft[i]`` seconds; ``band`` is in bytes
    a second. Minimises the sending that no drafting covers, sum(max(0, size / (share * band) -
    draft)). Who is covered gains nothing from more, so share = min(need, c * sqrt(size)) with the c
    that fills the band; where all needs fit, all get as much more in proportion.
    """
    need = size / (draft * band)
    if need.sum() <= 1.0:
        return np.asarray(need / need.sum())
    root = np.sqrt(size)
    order = np.argsort(need / root)
    covered = np.concatenate(([0.0], np.cumsum(need[order])[:-1]))
    others = np.cumsum(root[order][::-1])[::-1]
    level = (1.0 - covered) / others  # of c, if the first k are covered
    first = int(np.argmax(level <= (need / root)[order]))
    return np.asarray(np.minimum(need, level[first] * root))


def share_grid(points: int = GRID) -> Floats:
    """Shares from LEAST to 1 by a constant factor."""
    return np.geomspace(LEAST, 1.0, points)


def priced_bands(problem: Problem, server: Ints) -> Floats:
    """Every device takes the share that is best for it at a price; the price fills the band.

    All servers at once: the price of each is found by halving. What is left of a band goes to those
    whom it still helps, in proportion.
    """
    device = np.arange(problem.devices)
    grid = share_grid()
    up = problem.uplink(grid[None, :], device[:, None], server[:, None])
    cost = problem.band_cost(up, device[:, None])
    low, high = np.zeros(problem.servers), np.full(problem.servers, _dearest(cost, grid))
    for _ in range(PRICES):
        price = np.sqrt(np.maximum(low, 1e-12) * high)
        taken = grid[(cost + price[server][:, None] * grid).argmin(1)]
        over = np.bincount(server, taken, problem.servers) > 1.0
        low, high = np.where(over, price, low), np.where(over, high, price)
    share = grid[(cost + high[server][:, None] * grid).argmin(1)]
    used = np.bincount(server, share, problem.servers)
    over = used > 1.0  # more devices than shares of LEAST: all the same
    share = np.where(over[server], share / np.maximum(used, 1.0)[server], share)
    return _filled(problem, server, np.asarray(share))


def _dearest(cost: Floats, grid: Floats) -> float:
    """A price at which everybody takes the least."""
    return float(10.0 * (cost.max() - cost.min() + 1e-12) / (grid[1] - grid[0]))


def _filled(problem: Problem, server: Ints, share: Floats) -> Floats:
    """Hand out what is left, where it lowers the cost."""
    device = np.arange(problem.devices)
    used = np.bincount(server, share, problem.servers)
    grown = share / np.maximum(used, 1e-12)[server]
    grown = np.where(used[server] < 1.0, grown, share)
    before = problem.band_cost(problem.uplink(share, device, server), device)
    after = problem.band_cost(problem.uplink(grown, device, server), device)
    return np.where(after < before, grown, share)


def exact_bands(problem: Problem, server: Ints, units: int = UNITS) -> Floats:
    """Exactly on a grid of ``units`` equal parts, then polished between its points.

    The best of the grid is at most (largest slope of a cost) * (devices / units) above the optimum.
    """
    share = np.empty(problem.devices)
    for j in range(problem.servers):
        members = np.flatnonzero(server == j)
        if len(members):
            share[members] = _polished(problem, members, j, _programmed(problem, members, j, units))
    return share


def _programmed(problem: Problem, members: Ints, j: int, units: int) -> Floats:
    """Dynamic programming over the members: best[u] = least cost with u parts handed out."""
    units = max(units, 4 * len(members))
    parts = np.arange(1, units + 1)
    best = np.full(units + 1, np.inf)
    best[0] = 0.0
    chosen = np.zeros((len(members), units + 1), np.int64)
    before = np.arange(units + 1)[:, None] - parts  # parts handed out before this member's
    impossible = before < 0
    for row, i in enumerate(members):
        one = np.full(1, i)
        cost = problem.band_cost(problem.uplink(parts / units, one, np.full(1, j)), one)
        table = np.where(impossible, np.inf, best[before] + cost)
        chosen[row] = parts[table.argmin(1)]
        best = table.min(1)
    left = int(best.argmin())
    share = np.empty(len(members))
    for row in range(len(members) - 1, -1, -1):
        share[row] = chosen[row, left] / units
        left -= int(chosen[row, left])
    return share


def _polished(problem: Problem, members: Ints, j: int, share: Floats, rounds: int = 60) -> Floats:
    """Move ever smaller amounts between pairs (and to and from the rest) while that helps."""
    server = np.full(len(members), j)

    def cost(values: Floats) -> Floats:
        return problem.band_cost(problem.uplink(values, members, server), members)

    step = 0.5 / UNITS
    for _ in range(rounds):
        here = cost(share)
        up, down = share + step, np.maximum(share - step, LEAST * 1e-3)
        gain_up, gain_down = here - cost(up), here - cost(down)
        receiver, giver = int(gain_up.argmax()), int(gain_down.argmax())
        moves = [(gain_down[giver], -1, giver)]
        if share.sum() + step <= 1.0:
            moves.append((gain_up[receiver], receiver, -1))
        if receiver != giver:
            moves.append((gain_up[receiver] + gain_down[giver], receiver, giver))
        gain, to, away = max(moves)
        if gain <= 1e-15:
            step /= 2
            continue
        if to >= 0:
            share[to] = up[to]
        if away >= 0:
            share[away] = down[away]
    return share
