"""The rule that ``auto`` takes, against what whole worlds give under each and with no drafter."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from outrider.cloud_server.planner import EngineSettings
from outrider.edge_client.adaptive import Adaptive
from outrider.edge_client.policy import Plan, Policy
from outrider.edge_client.ratio import Known, choose_rule
from outrider.protocol.decoding.sampling import Rule, Sampling
from outrider.protocol.link import LinkEstimator
from outrider.simulator.settings import (
    Costs,
    DrafterSettings,
    EdgeSettings,
    LinkSettings,
    Turn,
    WorldSettings,
)
from outrider.simulator.world import World


class Place:
    """Models whose rows differ by ``noise``; seconds of a step, a trip and a pass."""

    def __init__(self, worlds: Any, figures: tuple[float, float, float, float]) -> None:
        noise, step, rtt, target = figures
        self.worlds, self.costs = worlds, Costs(target_pass=target, draft_step=step)
        self.rtt, self.tables = rtt, worlds.Tables()
        rng = np.random.default_rng(5)
        size = (worlds.V, worlds.V)
        self.tables.target_rows = (rng.standard_normal(size) * 0.7).astype(np.float32)
        off = noise * rng.standard_normal(size)
        self.tables.draft_rows = (self.tables.target_rows + off).astype(np.float32)

    def run(self, *, ratio: bool = False, drafts: bool = True) -> tuple[float, int, Known]:
        """Tokens a second, guesses that were accepted, and what the edge knows afterwards."""

        class Models(self.worlds.TableModels):  # type: ignore[name-defined, misc]
            def policy(self, settings: DrafterSettings) -> Policy:
                del settings
                return Adaptive()

        turns = tuple(
            Turn(
                ids=self.worlds.PROMPT,
                keep=0.0,
                max_tokens=80,
                sampling=Sampling(temperature=1.0, seed=i, ratio=ratio),
                objective="latency",
            )
            for i in range(6)
        )
        edge = EdgeSettings(
            link=LinkSettings(delay=self.rtt / 2, jitter=0.0),
            drafter=DrafterSettings() if drafts else None,
            sessions=(turns,),
            starts=(0.5,),
        )
        settings = WorldSettings(
            vocabulary=self.worlds.V,
            edges=(edge,),
            costs=self.costs,
            engine=EngineSettings(lookup=0),
            limit=1e6,
            max_steps=10_000_000,
        )
        world = World(settings, Models(self.tables, Plan(1, 1)))
        assert world.run()
        answers = world.edges[0].conversations[0].answers
        seconds = sum(a.times[-1] - a.times[0] for a in answers)
        engine = world.edges[0]._engine
        known = engine.known if engine else Known(LinkEstimator(), None, None)
        made = sum(len(a.tokens) - 1 for a in answers)
        return made / seconds, sum(a.accepted for a in answers), known


@pytest.mark.parametrize(
    ("winner", "figures"),
    [
        ("ratio", (4.0, 0.005, 0.001, 0.1)),
        ("ratio", (4.0, 0.002, 0.03, 0.1)),
        ("coupled", (0.2, 0.012, 0.06, 0.03)),
        ("coupled", (0.7, 0.005, 0.001, 0.1)),
        ("nothing", (4.0, 0.055, 0.06, 0.03)),
    ],
)
def test_each_of_three_ways_is_taken_where_it_wins(
    worlds: ModuleType, winner: str, figures: tuple[float, float, float, float]
) -> None:
    place = Place(worlds, figures)
    nothing, _, _ = place.run(drafts=False)
    coupled, accepted, known = place.run()
    ratio, _, under_ratio = place.run(ratio=True)
    assert max(coupled, ratio) >= 0.999 * nothing
    assert ratio >= 0.99 * nothing  # where it does not pay it is left, and tried again seldom
    both = Known(known.link, known.step, known.coupled, under_ratio.ratio)
    chosen = choose_rule("auto", both)
    if winner == "nothing":
        assert max(coupled, ratio) <= 1.001 * nothing
        assert (chosen, accepted) == (Rule.COUPLED, 0)  # under which the edge is silent
    else:
        assert max(coupled, ratio) > 1.05 * nothing
        assert (ratio > coupled) == (winner == "ratio")
        assert chosen.value == winner
