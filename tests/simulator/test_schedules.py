"""Random schedules of everything that can go wrong: the text is the target's, at both ends.

Each seed is one world (``outrider.simulator.schedule``); ``judge_world`` says what is wrong with
it: another text than the plain target's, ends that disagree, a repeat, an answer that ends twice or
never, something still in flight at the end.
"""

from __future__ import annotations

from collections import Counter

import pytest

from outrider.simulator.schedule import capped, nasty, patient
from outrider.simulator.verdict import judge_world
from outrider.simulator.world import World

CHUNK = 50


def failures(seeds: range) -> dict[int, list[str]]:
    return {seed: wrong for seed in seeds if (wrong := judge_world(nasty(seed)))}


@pytest.mark.parametrize("start", range(0, 1000, CHUNK))
def test_schedules(start: int) -> None:
    assert failures(range(start, start + CHUNK)) == {}


FOUND = (7824,)
"""Seeds beyond these that once showed something: a text that a verifier was given back after its
restart filled the context with a stop string, and was said to have ended for its length."""


def test_schedules_that_found_something() -> None:
    assert {seed: wrong for seed in FOUND if (wrong := judge_world(nasty(seed)))} == {}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("start", range(1000, 11_000, 500))
def test_many_schedules(start: int) -> None:
    assert failures(range(start, start + 500)) == {}


@pytest.mark.parametrize("start", range(0, 200, CHUNK))
def test_schedules_under_caps(start: int) -> None:
    seeds = range(start, start + CHUNK)
    assert {seed: wrong for seed in seeds if (wrong := judge_world(capped(seed)))} == {}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("start", range(1000, 5000, 500))
def test_many_schedules_under_caps(start: int) -> None:
    seeds = range(start, start + 500)
    assert {seed: wrong for seed in seeds if (wrong := judge_world(capped(seed)))} == {}


def test_caps_make_frames_wait() -> None:
    """Of the same worlds with and without caps: fewer frames in most of those where it matters."""
    fewer = more = 0
    for seed in range(60):
        frames = []
        for settings in (nasty(seed), capped(seed)):
            world = World(settings)
            assert world.run()
            frames.append(sum(edge.machine.traffic.up["frames"] for edge in world.edges))
        fewer += frames[1] < frames[0]
        more += frames[1] > frames[0]
    assert fewer > 3 * more


@pytest.mark.parametrize("start", range(0, 200, CHUNK))
def test_nobody_waits_for_an_edge_that_has_closed(start: int) -> None:
    """Patience never runs out here: each wait must be ended by a frame."""
    seeds = range(start, start + CHUNK)
    assert {seed: wrong for seed in seeds if (wrong := judge_world(patient(seed)))} == {}


def test_schedules_are_nasty() -> None:
    """What the schedules are there for does happen in them."""
    seen: Counter[str] = Counter()
    for seed in range(100):
        world = World(nasty(seed))
        assert world.run()
        seen["passes"] += world.cloud.engine.stats.passes
        for edge in world.edges:
            seen["dead drafters"] += edge.failed
            for conversation in edge.conversations:
                session = conversation.session
                seen["connections"] += session.n
                seen["epochs"] += session.window.current.number - 1
                for answer in conversation.answers:
                    seen[answer.ends[0]] += 1
                    seen["tokens"] += len(answer.tokens)
                    seen["accepted"] += answer.accepted
        seen.update(trouble.kind for trouble in world.settings.troubles)
    least = {"tokens": 1000, "accepted": 200, "epochs": 300, "connections": 300, "cancel": 50}
    least |= {"length": 100, "stop": 20, "dead drafters": 5}
    least |= dict.fromkeys(("cut", "stall", "cloud_first", "replace", "restart"), 20)
    assert {name: count for name, count in least.items() if seen[name] < count} == {}


def test_the_same_seed_is_the_same_world() -> None:
    ends = []
    for _ in range(2):
        world = World(nasty(3))
        assert world.run()
        ends.append((world.agenda.now, world.agenda.steps))
    assert ends[0] == ends[1]
