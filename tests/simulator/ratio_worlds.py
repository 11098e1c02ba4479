"""Whole answers under the ratio rule, thousands of them, against the law of the target alone.

Both ends run as they are, engines, machines and links in virtual time; the models are small random
tables, so that the probability of every possible answer is known exactly.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

from outrider.cloud_server.planner import EngineSettings
from outrider.cloud_server.targets.scripted import ScriptedTarget
from outrider.edge_client.policy import Plan, Policy, Steady
from outrider.protocol.decoding.sampling import Sampling
from outrider.runtime.lm.base import ListedLM
from outrider.runtime.lm.drafter import Drafter
from outrider.simulator.settings import (
    Costs,
    DrafterSettings,
    EdgeSettings,
    LinkSettings,
    Trouble,
    Turn,
    WorldSettings,
)
from outrider.simulator.world import World

V, LENGTH = 4, 5
PROMPT = (1, 2)
RATIO = Sampling(temperature=1.0, ratio=True)


class Tables:
    """Rows that depend on the last id only: one table for the target, another for the drafter."""

    def __init__(self, seed: int = 13) -> None:
        rng = np.random.default_rng(seed)
        self.target_rows = (rng.standard_normal((V, V)) * 1.5).astype(np.float32)
        self.draft_rows = (rng.standard_normal((V, V)) * 1.5).astype(np.float32)

    def chances(self) -> np.ndarray:
        """The target's probabilities of the next token by the last one."""
        e = np.exp(self.target_rows.astype(np.float64))
        return np.asarray(e / e.sum(1, keepdims=True))

    def law(self) -> dict[tuple[int, ...], float]:
        """The probability of each answer of the target alone."""
        p = self.chances()
        return {
            text: math.prod(p[a, b] for a, b in itertools.pairwise((PROMPT[-1], *text)))
            for text in itertools.product(range(V), repeat=LENGTH)
        }


class _Target(ScriptedTarget):
    def __init__(self, tables: Tables, settings: WorldSettings) -> None:
        super().__init__(vocabulary=V, n_ctx=settings.n_ctx, slots=settings.slots)
        self.tables = tables

    def row(self, ids: Sequence[int]) -> np.ndarray:
        return self.tables.target_rows[ids[-1]]


class TableLM(ListedLM):
    def __init__(self, rows: np.ndarray) -> None:
        super().__init__("table", V, 4096)
        self.rows = rows

    def feed(self, ids: Sequence[int], rows: int = 1) -> np.ndarray:
        self._ids.extend(ids)
        end = len(self._ids)
        last = self._ids[end - rows :] if rows else []
        return self.rows[last].reshape(rows, V)

    def fork(self) -> TableLM:
        raise NotImplementedError


class TableModels:
    """What a world asks for."""

    def __init__(self, tables: Tables, plan: Plan) -> None:
        self.tables, self.plan = tables, plan

    def target(self, settings: WorldSettings) -> _Target:
        return _Target(self.tables, settings)

    def drafter(self, world: WorldSettings, settings: DrafterSettings) -> Drafter:
        del world, settings
        return Drafter(TableLM(self.tables.draft_rows), V)

    def policy(self, settings: DrafterSettings) -> Policy:
        del settings
        return Steady(self.plan)


def world(
    count: int,
    tables: Tables,
    plan: Plan,
    *,
    seed: int = 0,
    troubles: tuple[Trouble, ...] = (),
    objective: str = "latency",
    sampling: Sampling = RATIO,
) -> World:
    """So many answers one after the other, each with a seed of its own, on a link that jitters."""
    turns = tuple(
        Turn(
            ids=PROMPT,
            keep=0.0,
            max_tokens=LENGTH,
            sampling=msgspec.structs.replace(sampling, seed=1_000_000 * seed + i),
            objective=objective,
        )
        for i in range(count)
    )
    link = LinkSettings(delay=0.02, jitter=0.01)
    settings = WorldSettings(
        seed=seed,
        vocabulary=V,
        edges=(EdgeSettings(link=link, sessions=(turns,), starts=(0.5,)),),
        troubles=troubles,
        costs=Costs(target_pass=0.02, draft_step=0.004),
        engine=EngineSettings(lookup=2),
        limit=1e6,
        max_steps=10_000_000,
    )
    return World(settings, TableModels(tables, plan))


def texts(made: World) -> Counter[tuple[int, ...]]:
    """The answers of a world that is run."""
    assert made.run()
    answers = made.edges[0].conversations[0].answers
    assert all(answer.ends == ["length"] and not answer.faults for answer in answers)
    return Counter(tuple(answer.tokens) for answer in answers)


def misfit(found: Counter[tuple[int, ...]], tables: Tables) -> float:
    """Chi-square against the law, in standard deviations above its mean: the larger of two.

    One looks at whole answers (those that are expected less than 8 times are one cell), the other
    at steps from one token to the next, of which there are more.
    """
    count = sum(found.values())
    law = tables.law()
    cells = [(law[t] * count, found[t]) for t in law if law[t] * count >= 8]
    rest = (count - sum(e for e, _ in cells), count - sum(c for _, c in cells))
    if rest[0] >= 1:
        cells.append(rest)
    steps: Counter[tuple[int, int]] = Counter()
    for text, times in found.items():
        for step in itertools.pairwise((PROMPT[-1], *text)):
            steps[step] += times
    moves = []
    for a in range(V):
        leaving = sum(steps[a, b] for b in range(V))
        moves += [(leaving * tables.chances()[a, b], steps[a, b]) for b in range(V)]
    return max(_sigmas(cells, len(cells) - 1), _sigmas(moves, V * (V - 1)))


def _sigmas(cells: Sequence[tuple[float, float]], free: int) -> float:
    stat = sum((c - e) ** 2 / e for e, c in cells)
    return float(stat - free) / math.sqrt(2 * free)
