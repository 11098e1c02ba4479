"""Policies of association: which server each device goes to. Pure, and the same for the simulator
and a gateway.

``random``, ``max-sinr`` and ``max-compute`` are the paper's baselines. ``tma`` is its two-phase
matching with the swap test turned the right way (a swap is kept if the cost falls). ``moves`` adds
what swaps cannot do: one device alone changes its server, so that the numbers at servers change.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from outrider.cloud_server.placement.problem import Floats, Ints, Problem
from outrider.protocol.errors import SettingError

Associate = Callable[[Problem, np.random.Generator], Ints]
LEAST = 1e-12
"""A cost that falls by less has not fallen: local search ends."""


def at_random(problem: Problem, rng: np.random.Generator) -> Ints:
    """Uniformly."""
    return rng.integers(0, problem.servers, problem.devices)


def max_sinr(problem: Problem, _rng: np.random.Generator) -> Ints:
    """The server that is heard best."""
    return np.asarray(problem.gain.argmax(1))


def max_compute(problem: Problem, _rng: np.random.Generator) -> Ints:
    """The fastest server; of equally fast ones that which is heard best."""
    fastest = problem.speed == problem.speed.max()
    return np.asarray(np.where(fastest, problem.gain, -1.0).argmax(1))


def least_loaded(problem: Problem, _rng: np.random.Generator) -> Ints:
    """One device after the other to the server that would be done first."""
    load = problem.queue.copy()
    server = np.empty(problem.devices, np.int64)
    for i in np.argsort(-problem.work, kind="stable"):
        j = int((load + problem.work[i] / problem.speed).argmin())
        load[j] += problem.work[i] / problem.speed[j]
        server[i] = j
    return server


def greedy(problem: Problem, _rng: np.random.Generator) -> Ints:
    """One device after the other, those with most work first, to where the cost grows least."""
    state = Costs(problem)
    for i in np.argsort(-problem.work, kind="stable"):
        state.add(int(i), int(state.added(int(i)).argmin()))
    return state.server


def moves(problem: Problem, rng: np.random.Generator) -> Ints:
    """Greedy, then single devices move while the cost falls."""
    return improve(problem, greedy(problem, rng))


def tma(problem: Problem, rng: np.random.Generator) -> Ints:
    """The paper's matching: best channel first, then swaps of two devices while the cost falls."""
    return swaps(problem, max_sinr(problem, rng))


def tma_moves(problem: Problem, rng: np.random.Generator) -> Ints:
    """The matching with single moves as well, before the swaps, until neither of the two helps.

    Moves first: a crowd around the best channel takes hundreds of swaps and few moves to part, and
    what comes out is better.
    """
    state = Costs(problem, max_sinr(problem, rng))
    _move(state)
    while _swap(state) and _move(state):
        pass
    return state.server


def improve(problem: Problem, server: Ints) -> Ints:
    """Single devices go where the cost is least, until none wants to move."""
    state = Costs(problem, server)
    _move(state)
    return state.server


def swaps(problem: Problem, server: Ints) -> Ints:
    """Exchange the servers of two devices while that lowers the cost; ends, as the cost falls."""
    state = Costs(problem, server)
    _swap(state)
    return state.server


def _move(state: Costs) -> bool:
    """In rounds: what each device would gain most is looked up for all at once, and done in that
    order where it still helps after those before it. Ends where no single move helps.

    Returns whether anything moved.
    """
    ever, moved = False, True
    while moved:
        moved = False
        gains = state.move_gains()
        best = gains.max(1)
        for i in np.argsort(-best, kind="stable")[: int((best > LEAST).sum())]:
            extra = state.added(int(i))
            extra[state.server[i]] = np.inf
            j = int(extra.argmin())
            if state.removed(int(i)) - extra[j] > LEAST:
                state.remove(int(i))
                state.add(int(i), j)
                ever = moved = True
    return ever


def _swap(state: Costs) -> bool:
    """The same with each device's best swap."""
    ever, swapped = False, True
    while swapped:
        swapped = False
        gains = state.swap_gains()
        partner = gains.argmax(1)
        best = gains.max(1)
        for i in np.argsort(-best, kind="stable")[: int((best > LEAST).sum())]:
            k = int(partner[i])
            if state.swap_gain(int(i), k) > LEAST:
                state.swap(int(i), k)
                ever = swapped = True
    return ever


class Costs:
    """The cost of an association with the best compute shares and equal bandwidth shares.

    A server with members S costs sum(draft + queue) + (sum sqrt(work))^2 / F + sum of the bandwidth
    terms at a share of 1/|S|. The last is kept for every number of members, so that what a device
    adds is a lookup.
    """

    def __init__(self, problem: Problem, server: Ints | None = None) -> None:
        self.problem = problem
        m, e = problem.devices, problem.servers
        self.each, self.device = np.arange(e), np.arange(m)
        self.root, self.slow = np.sqrt(problem.work), 1.0 / problem.speed
        self.most = _room(problem, server)
        count = np.arange(1, self.most + 1)
        device = self.device[:, None, None]
        up = problem.uplink(1.0 / count, device, self.each[None, :, None])
        self.band = problem.band_cost(up, device)  # [M, E, members]
        self.server = np.full(m, -1, np.int64)
        self.count = np.zeros(e, np.int64)
        self.roots = np.zeros(e)
        self.bands = np.zeros((e, self.most + 1))  # at index n: if the members were n
        if server is not None:
            self.server[:] = server
            self.count[:] = np.bincount(server, minlength=e)
            self.roots[:] = np.bincount(server, self.root, e)
            np.add.at(self.bands[:, 1:], server, self.band[self.device, server])

    def add(self, i: int, j: int) -> None:
        """Device i joins server j."""
        self.server[i] = j
        self.count[j] += 1
        self.roots[j] += self.root[i]
        self.bands[j, 1:] += self.band[i, j]

    def remove(self, i: int) -> None:
        """Device i leaves its server."""
        j = self.server[i]
        self.server[i] = -1
        self.count[j] -= 1
        self.roots[j] -= self.root[i]
        self.bands[j, 1:] -= self.band[i, j]

    def added(self, i: int) -> Floats:
        """By server [E]: by how much the cost would grow if device i joined it, were it nowhere.

        Where it is already: if another one like it joined.
        """
        after = np.minimum(self.count + 1, self.most)
        compute = self.root[i] * (2.0 * self.roots + self.root[i]) * self.slow
        bands = (
            self.bands[self.each, after]
            + self.band[i, self.each, after - 1]
            - self.bands[self.each, self.count]
        )
        return np.where(self.count < self.most, compute + bands + self.problem.queue, np.inf)

    def removed(self, i: int) -> float:
        """By how much the cost would fall if device i left."""
        j, problem = int(self.server[i]), self.problem
        n = int(self.count[j])
        rest = self.roots[j] - self.root[i]
        compute = (self.roots[j] ** 2 - rest**2) * self.slow[j]
        without = self.bands[j, n - 1] - (self.band[i, j, n - 2] if n > 1 else 0.0)
        return float(compute + self.bands[j, n] - without + problem.queue[j])

    def move_gains(self) -> Floats:
        """[M, E]: by how much the cost would fall if device i alone went to j; 0 where it is.

        The same as ``removed(i) - added(i)``, for all at once.
        """
        each, device, here = self.each, self.device, self.server
        after = np.minimum(self.count + 1, self.most)
        root = self.root[:, None]
        extra = root * (2.0 * self.roots + root) * self.slow + self.band[:, each, after - 1]
        extra += self.bands[each, after] - self.bands[each, self.count] + self.problem.queue
        n = self.count[here]
        saved = self.root * (2.0 * self.roots[here] - self.root) * self.slow[here]
        saved += self.bands[here, n] - self.bands[here, n - 1] + self.problem.queue[here]
        saved += np.where(n > 1, self.band[device, here, np.maximum(n - 2, 0)], 0.0)
        gains = np.where(self.count < self.most, saved[:, None] - extra, -np.inf)
        gains[device, here] = 0.0
        return gains

    def swap_gains(self) -> Floats:
        """[M, M]: by how much the cost would fall if i and k exchanged their servers.

        Numbers of members stay, so a device's bandwidth term at each server is known; the compute
        terms change by c (2 R_a / F_a - 2 R_b / F_b + c (1 / F_a + 1 / F_b)) where
        c = root_k - root_i.
        """
        here = self.server
        now = self.band[:, self.each, np.maximum(self.count - 1, 0)]  # [M, E]
        at = now[:, here]  # [i, k]: device i where k is
        own = at.diagonal()
        pull = 2.0 * (self.roots * self.slow)[here]
        slow = self.slow[here]
        change = self.root - self.root[:, None]
        grown = change * (pull[:, None] - pull + change * (slow[:, None] + slow))
        grown += at + at.T - own - own[:, None]
        return np.where(here[:, None] == here, 0.0, -grown)

    def swap_gain(self, i: int, k: int) -> float:
        """One entry of :meth:`swap_gains`."""
        a, b = self.server[i], self.server[k]
        if a == b:
            return 0.0
        change = self.root[k] - self.root[i]
        grown = change * (2.0 * self.roots[a] + change) * self.slow[a]
        grown -= change * (2.0 * self.roots[b] - change) * self.slow[b]
        here, there = self.count[a] - 1, self.count[b] - 1
        grown += self.band[k, a, here] - self.band[i, a, here]
        grown += self.band[i, b, there] - self.band[k, b, there]
        return float(-grown)

    def swap(self, i: int, k: int) -> None:
        """Exchange the servers of two devices."""
        a, b = int(self.server[i]), int(self.server[k])
        self.remove(i)
        self.remove(k)
        self.add(i, b)
        self.add(k, a)

    @property
    def total(self) -> float:
        """The cost of the whole association."""
        problem = self.problem
        each = np.arange(problem.servers)
        fixed = problem.draft.sum() + problem.queue[self.server].sum()
        return float(
            fixed + (self.roots**2 / problem.speed).sum() + self.bands[each, self.count].sum()
        )


def _room(problem: Problem, server: Ints | None) -> int:
    """Members of a server at most: so many more than its part that no good choice is missed."""
    m, e = problem.devices, problem.servers
    there = int(np.bincount(server, minlength=e).max()) if server is not None else 0
    return min(m, max(there + 1, 8 + 4 * m // e))


POLICIES: dict[str, Associate] = {
    "random": at_random,
    "max-sinr": max_sinr,
    "max-compute": max_compute,
    "least-loaded": least_loaded,
    "greedy": greedy,
    "moves": moves,
    "tma": tma,
    "tma-moves": tma_moves,
}
DEFAULT = "tma-moves"
BASELINES = ("random", "max-sinr", "max-compute")
"""The three of the paper."""


def policy(name: str) -> Associate:
    """A policy by name.

    Raises:
        SettingError: there is none of that name.
    """
    found = POLICIES.get(name)
    if found is None:
        raise SettingError(f"placement {name!r} is not one of {', '.join(POLICIES)}")
    return found
