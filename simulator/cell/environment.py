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
from outrider.cloud_server.placement.actor import FEATURES, LEAST, observe, weighted
from outrider.cloud_server.placement.association import at_random
from outrider.cloud_server.placement.problem import Placement, evaluate
from outrider.simulator.cell.model import Cell, Settings

Floats = NDArray[np.float32]
Action = dict[str, Any]


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
        self._observation = spaces.Box(-10.0, 10.0, (e, FEATURES), np.float32)
        self._action = spaces.Dict(
            {
                "server": spaces.Discrete(e),
                "shares": spaces.Box(LEAST, 1.0, (2,), np.float32),
            }
        )

    def observation_space(self, agent: str) -> spaces.Box:  # noqa: ARG002 - all are alike
        """The device's part of :func:`observe`."""
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
        reward = self.advance(weighted(self.problem, server, weights))
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
