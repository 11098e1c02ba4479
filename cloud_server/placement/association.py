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
SWEEPS = 5
"""Times that local search goes over all devices at most; it ends when nothing improves."""


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
    """The matching with single moves as well."""
    return improve(problem, tma(problem, rng))


def improve(problem: Problem, server: Ints) -> Ints:
    """Let each device in turn go where the cost is least, until none wants to move."""
    state = Costs(problem, server)
    for _ in range(SWEEPS):
        moved = False
        for i in range(problem.devices):
            here = int(state.server[i])
            saved = state.removed(i)
            extra = state.added(i)
            extra[here] = saved
            best = int(extra.argmin())
            if extra[best] < saved - 1e-12:
                state.remove(i)
                state.add(i, best)
                moved = True
        if not moved:
            break
    return state.server


def swaps(problem: Problem, server: Ints) -> Ints:
    """Exchange the servers of two devices while that lowers the cost; ends, as the cost falls."""
    state = Costs(problem, server)
    for _ in range(SWEEPS):
        moved = False
        for i in range(problem.devices):
            gain = state.swap_gains(i)
            k = int(gain.argmax())
            if gain[k] > 1e-12:
                state.swap(i, k)
                moved = True
        if not moved:
            break
    return state.server


class Costs:
    """The cost of an association with the best compute shares and equal bandwidth shares.

    A server with members S costs sum(draft + queue) + (sum sqrt(work))^2 / F + sum of the bandwidth
    terms at a share of 1/|S|. The last is kept for every number of members, so that what a device
    adds is a lookup.
    """

    def __init__(self, problem: Problem, server: Ints | None = None) -> None:
        self.problem = problem
        m, e = problem.devices, problem.servers
        self.root = np.sqrt(problem.work)
        self.most = _room(problem, server)
        count = np.arange(1, self.most + 1)
        device = np.arange(m)[:, None, None]
        up = problem.uplink(1.0 / count, device, np.arange(e)[None, :, None])
        self.band = problem.band_cost(up, device)  # [M, E, members]
        self.server = np.full(m, -1, np.int64)
        self.count = np.zeros(e, np.int64)
        self.roots = np.zeros(e)
        self.bands = np.zeros((e, self.most + 1))  # at index n: if the members were n
        if server is not None:
            for i, j in enumerate(server):
                self.add(i, int(j))

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
        """By server [E]: by how much the cost would grow if device i joined it."""
        problem, each = self.problem, np.arange(self.problem.servers)
        after = np.minimum(self.count + 1, self.most)
        compute = ((self.roots + self.root[i]) ** 2 - self.roots**2) / problem.speed
        bands = (
            self.bands[each, after] + self.band[i, each, after - 1] - self.bands[each, self.count]
        )
        return np.where(self.count < self.most, compute + bands + problem.queue, np.inf)

    def removed(self, i: int) -> float:
        """By how much the cost would fall if device i left."""
        j, problem = int(self.server[i]), self.problem
        n = int(self.count[j])
        rest = self.roots[j] - self.root[i]
        compute = (self.roots[j] ** 2 - rest**2) / problem.speed[j]
        without = self.bands[j, n - 1] - (self.band[i, j, n - 2] if n > 1 else 0.0)
        return float(compute + self.bands[j, n] - without + problem.queue[j])

    def swap_gains(self, i: int) -> Floats:
        """By device k [M]: by how much the cost would fall if i and k exchanged their servers."""
        a, n = int(self.server[i]), self.count
        others, roots = self.server, self.roots
        problem, device = self.problem, np.arange(self.problem.devices)
        change = self.root - self.root[i]
        compute = ((roots[a] + change) ** 2 - roots[a] ** 2) / problem.speed[a]
        compute += ((roots[others] - change) ** 2 - roots[others] ** 2) / problem.speed[others]
        there, here = n[others] - 1, n[a] - 1
        bands = self.band[device, a, here] - self.band[i, a, here]
        bands += self.band[i, others, there] - self.band[device, others, there]
        return np.where(others == a, 0.0, -(compute + bands))

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
