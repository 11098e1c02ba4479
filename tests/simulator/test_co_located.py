"""A draft model beside the target, in virtual time: how fast, and exact whatever goes wrong.

Co-located speculation is a setting of the same machine: edges without a drafter, a verifier with
one. What an adaptive edge adds to it must not make it slower.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cache

import pytest

from outrider.cloud_server.planner import EngineSettings
from outrider.edge_client.adaptive import Adaptive
from outrider.edge_client.policy import Policy
from outrider.simulator.links import Direction, Link
from outrider.simulator.schedule import nasty
from outrider.simulator.settings import (
    LIMITS,
    Costs,
    DrafterSettings,
    EdgeSettings,
    Turn,
    WorldSettings,
)
from outrider.simulator.traced import (
    VOCABULARY,
    Record,
    TracedDrafter,
    TracedTarget,
    choice,
    independent,
)
from outrider.simulator.verdict import judge_world
from outrider.simulator.world import World

N_CTX = 4096
TOKENS = 1000
PROMPT = tuple(choice(i, 1000) for i in range(32))
DRAFTER = DrafterSettings(n_ctx=N_CTX)


@dataclass(frozen=True)
class Models:
    """Both drafters replay the same record, each at its own cost."""

    record: Record

    def target(self, settings: WorldSettings) -> TracedTarget:
        return TracedTarget(self.record, 1, settings.n_ctx, settings.slots)

    def drafter(self, world: WorldSettings, settings: DrafterSettings) -> TracedDrafter:
        return TracedDrafter(self.record, 1, settings.n_ctx)

    def policy(self, settings: DrafterSettings) -> Policy:
        return Adaptive()


def speed(
    *,
    alpha: float = 0.8,
    rtt: float = 0.02,
    edge: bool = False,
    own: bool = True,
    step: float = 0.003,
    target_pass: float = 0.03,
    objective: str = "latency",
) -> float:
    """Tokens a second of one long answer, as the user sees them."""
    one_way = Direction(delay=rtt / 2)
    world = World(
        WorldSettings(
            vocabulary=VOCABULARY,
            n_ctx=N_CTX,
            edges=(
                EdgeSettings(
                    link=Link(name="plain", up=one_way, down=one_way),
                    drafter=DRAFTER if edge else None,
                    sessions=((Turn(ids=PROMPT, max_tokens=TOKENS, objective=objective),),),
                    starts=(1.0,),
                ),
            ),
            costs=Costs(
                target_pass=target_pass,
                target_token=0.0,
                draft_step=0.012,
                draft_prefill=0.002,
                own_step=step,
            ),
            engine=EngineSettings(lookup=0),
            own=DRAFTER if own else None,
            limits=LIMITS,
            max_steps=2_000_000,
        ),
        Models(independent(alpha)),
    )
    assert world.run()
    answer = world.edges[0].conversations[0].answers[0]
    assert answer.ends == ["length"]
    return (TOKENS - 1) / (answer.times[-1] - answer.times[0])


@cache
def co_located(rtt: float) -> float:
    return speed(rtt=rtt)


@pytest.mark.parametrize(
    ("alpha", "step", "target_pass"), [(0.8, 0.003, 0.03), (0.5, 0.003, 0.03), (0.9, 0.01, 0.1)]
)
def test_as_fast_as_the_closed_form(alpha: float, step: float, target_pass: float) -> None:
    right = [flag for line in independent(alpha).lines for flag in line.right]
    a = sum(right) / len(right)
    closed = max((1 - a ** (k + 1)) / (1 - a) / (k * step + target_pass) for k in range(17))
    found = speed(alpha=alpha, step=step, target_pass=target_pass)
    assert 0.95 * closed < found < 1.1 * closed


@pytest.mark.parametrize("rtt", [0.0003, 0.002, 0.008, 0.03, 0.06])
def test_an_adaptive_edge_does_not_make_it_slower(rtt: float) -> None:
    assert speed(rtt=rtt, edge=True) > 0.98 * co_located(rtt)


def test_nor_does_it_make_the_edge_slower() -> None:
    """A draft model that is slow, or useless, is no worse than none."""
    alone = speed(rtt=0.008, edge=True, own=False)
    assert speed(rtt=0.008, edge=True, step=0.04) > 0.97 * alone


@pytest.mark.parametrize("objective", ["balanced", "cost"])
def test_no_objective_waits_for_an_edge_that_is_slower(objective: str) -> None:
    without = speed(objective=objective)
    assert speed(objective=objective, edge=True) > 0.95 * without


def with_own(seed: int) -> WorldSettings:
    """A nasty world with a draft model beside the target: good, bad, small, dying, slow."""
    rng = random.Random(f"own {seed}")
    world = nasty(seed)
    own = DrafterSettings(
        kind=rng.choice(("good", "mixed", "random", "bad")),
        agreement=rng.random(),
        n_ctx=rng.choice((24, N_CTX)),
        dies_after=rng.choice((None, None, rng.randrange(20))),
    )
    costs = replace(
        world.costs,
        own_step=rng.choice((0.0005, 0.003, 0.03)),
        own_prefill=rng.choice((0.0, 0.0001, 0.001)),
    )
    return replace(world, own=own, costs=costs)


@pytest.mark.parametrize("start", range(0, 200, 50))
def test_exact_whatever_it_guesses(start: int) -> None:
    seeds = range(start, start + 50)
    assert {seed: wrong for seed in seeds if (wrong := judge_world(with_own(seed)))} == {}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("start", range(200, 4200, 500))
def test_exact_in_many_schedules(start: int) -> None:
    seeds = range(start, start + 500)
    assert {seed: wrong for seed in seeds if (wrong := judge_world(with_own(seed)))} == {}


def test_these_schedules_do_what_they_are_there_for() -> None:
    drafts = right = wrong = dead = 0
    for seed in range(60):
        world = World(with_own(seed))
        assert world.run()
        stats = world.cloud.engine.stats
        drafts += stats.own_drafts
        right += stats.own_accepted_tokens
        wrong += stats.own_draft_tokens - stats.own_accepted_tokens
        own = world.cloud.engine.own
        dead += own is not None and own.failed is not None
    assert drafts > 200
    assert min(right, wrong) > 100
    assert dead > 3
