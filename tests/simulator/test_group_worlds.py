"""Groups of one to six drafters in nasty worlds: the text is the target's, whoever is away."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from outrider.cloud_server.targets.scripted import ScriptedTarget
from outrider.edge_client.group.group import GroupSettings
from outrider.edge_client.group.members import Member
from outrider.protocol.decoding.sampling import Sampling
from outrider.runtime.lm.drafter import Drafter
from outrider.simulator.group import Habits, SimGroup, SimTable
from outrider.simulator.lm import DrafterLM, RememberedTarget, ScriptedModels
from outrider.simulator.schedule import nasty, patient
from outrider.simulator.settings import DrafterSettings, WorldSettings
from outrider.simulator.verdict import judge
from outrider.simulator.world import World

KINDS = ("good", "mixed", "mixed", "random", "bad")


class GroupModels(ScriptedModels):
    """Scripted models; each edge has a group of liars, stallers and honest drafters."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.tables: list[SimTable] = []

    def drafter(self, world: WorldSettings, settings: DrafterSettings) -> SimGroup:  # type: ignore[override]
        rng = self.rng
        target: ScriptedTarget = RememberedTarget(world)
        members, habits = [], []
        for i in range(rng.randint(1, 6)):
            its = replace(settings, kind=rng.choice(KINDS), agreement=rng.random())
            members.append(Member(f"m{i}", Drafter(DrafterLM(target, its), world.vocabulary)))
            habits.append(
                Habits(
                    step=rng.choice((0.0005, 0.005, 0.04)),
                    stalls=rng.choice((0, 0, 0.2)),
                    fails=rng.choice((0, 0.1)),
                )
            )
        table = SimTable(members, habits, lan=rng.choice((0.0, 0.001, 0.01)), seed=rng.random())  # type: ignore[arg-type]
        self.tables.append(table)
        group = GroupSettings(fixed=rng.random() < 0.7, fuse=rng.random() < 0.7)
        return SimGroup(table, world.eos, group)


def hot(settings: WorldSettings, temperature: float) -> WorldSettings:
    """The same world at another temperature, and with a verify time that makes trees pay."""
    edges = tuple(
        replace(
            edge,
            sessions=tuple(
                tuple(
                    replace(t, sampling=Sampling(temperature=temperature, seed=t.sampling.seed))
                    for t in turns
                )
                for turns in edge.sessions
            ),
        )
        for edge in settings.edges
    )
    costs = replace(settings.costs, target_token=1e-5)
    return replace(settings, edges=edges, costs=costs, rehearsed=(1, 4, 16))


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.5])
def test_group_worlds(temperature: float) -> None:
    wrong, seen = {}, Counter[str]()
    for seed in range(40):
        models = GroupModels(seed)
        world = World(hot((nasty, patient)[seed % 2](seed), temperature), models)
        if failures := judge(world, world.run()):
            wrong[seed] = failures
        seen["passed by"] += sum(table.passed_by for table in models.tables)
        seen["trees"] += world.cloud.engine.stats.num_trees
    assert wrong == {}
    assert min(seen["passed by"], seen["trees"]) > 20, seen
