"""The cell as a PettingZoo ``ParallelEnv``: one agent a device.

An action is (server, bandwidth weight, compute weight). Weights are made shares by dividing them by
their sum over the devices at a server, so that every action keeps every constraint. The reward is
the same for all agents: by how much the objective is under that of random association with equal
shares in the same slot, over the latter (the paper's normalisation, with the sign of a reward).
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pettingzoo import ParallelEnv

from outrider.cloud_server.placement import shares
from outrider.cloud_server.placement.association import at_random
from outrider.cloud_server.placement.problem import Placement, Problem, evaluate
from outrider.simulator.cell.model import Cell, Settings

Floats = NDArray[np.float32]
Action = dict[str, Any]
LEAST = 0.02
"""The smallest weight: nobody is left without any share."""


class CellEnv(ParallelEnv):  # type: ignore[misc]
    """``slots`` slots of a cell; a new cell at every reset, drawn from the seed."""

    metadata: ClassVar[dict[str, Any]] = {"name": "outrider_cell_v0", "render_modes": []}

    def __init__(self, settings: Settings | None = None, *, slots: int = 50) -> None:
        self.settings = settings or Settings()
        self.settings.check()
        self.slots = slots
        self.render_mode = None
        self.possible_agents = [f"device_{i}" for i in range(self.settings.devices)]
        self.agents: list[str] = []
        self._rng = np.random.default_rng(0)
        e = self.settings.servers
        self._observation = spaces.Box(-10.0, 10.0, (features(e),), np.float32)
        self._action = spaces.Dict(
            {
                "server": spaces.Discrete(e),
                "shares": spaces.Box(LEAST, 1.0, (2,), np.float32),
            }
        )

    def observation_space(self, agent: str) -> spaces.Box:  # noqa: ARG002 - all are alike
        """The device's row of :func:`observe`."""
        return self._observation

    def action_space(self, agent: str) -> spaces.Dict:  # noqa: ARG002
        """``server`` and two weights."""
        return self._action

    def reset(
        self,
        seed: int | None = None,
        options: dict[str, Any] | None = None,  # noqa: ARG002 - the interface has it
    ) -> tuple[dict[str, Floats], dict[str, dict[str, Any]]]:
        """A new cell."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.cell = Cell(self.settings, self._rng)
        self.slot = 0
        self.agents = list(self.possible_agents)
        self.problem = self.cell.problem()
        return self._observations(), {agent: {} for agent in self.agents}

    def step(
        self, actions: dict[str, Action]
    ) -> tuple[
        dict[str, Floats],
        dict[str, float],
        dict[str, bool],
        dict[str, bool],
        dict[str, dict[str, Any]],
    ]:
        """One slot."""
        agents = self.agents
        server = np.array([int(actions[a]["server"]) for a in agents], np.int64)
        weights = np.array([actions[a]["shares"] for a in agents], np.float64)
        reward = self.advance(placement(self.problem, server, weights))
        over = self.slot >= self.slots
        seen = self._observations()
        if over:
            self.agents = []
        return (
            seen,
            dict.fromkeys(agents, reward),
            dict.fromkeys(agents, False),
            dict.fromkeys(agents, over),
            {agent: {"latency": float(self.latency)} for agent in agents},
        )

    def advance(self, chosen: Placement) -> float:
        """The same for a placement as a whole; returns the reward."""
        outcome = evaluate(self.problem, chosen)
        self.latency = outcome.mean_latency
        reward = 1.0 - outcome.total / self._reference()
        self.cell.step(self.problem, chosen)
        self.slot += 1
        self.problem = self.cell.problem()
        return float(reward)

    def _reference(self) -> float:
        """The objective of random association with equal shares in this slot."""
        server = at_random(self.problem, np.random.default_rng(self.slot))
        return evaluate(self.problem, shares.equal(self.problem, server)).total

    def _observations(self) -> dict[str, Floats]:
        return dict(zip(self.agents, observe(self.problem), strict=True))


def features(servers: int) -> int:
    """Numbers in a device's observation."""
    return 4 + 4 * servers


def observe(problem: Problem) -> Floats:
    """What each device sees, about within -3 to 3: [M, 4 + 4E].

    Its bits, drafting time, work and battery; of every server its channel's SNR over the whole
    band, its speed, queue, and how many devices hear it best.
    """
    m, e = problem.devices, problem.servers
    own = np.stack(
        [
            np.log10(problem.bits) - 5.3,
            4.0 * (problem.draft - 0.2),
            np.log10(problem.work) - 12.0,
            np.log10(problem.battery) - 3.0,
        ],
        axis=1,
    )
    snr = problem.gain * problem.power[:, None] / (problem.noise * problem.band)
    heard = np.bincount(problem.gain.argmax(1), minlength=e) * e / m - 1.0
    of_servers = np.stack([np.log10(problem.speed) - 13.0, problem.queue - 0.5, heard])
    rows = np.concatenate(
        [own, np.log10(snr) / 2.0 - 1.0, np.broadcast_to(of_servers.ravel(), (m, 3 * e))], axis=1
    )
    return np.asarray(np.clip(rows, -10.0, 10.0), np.float32)


def placement(
    problem: Problem, server: NDArray[np.int64], weights: NDArray[np.float64]
) -> Placement:
    """Shares from weights [M, 2]: each over the sum at its server."""
    weights = np.clip(weights, LEAST, 1.0)
    band = np.bincount(server, weights[:, 0], problem.servers)
    compute = np.bincount(server, weights[:, 1], problem.servers)
    return Placement(server, weights[:, 0] / band[server], weights[:, 1] / compute[server])
