"""Random trees in nasty worlds: both ends' text is the target's, whatever hangs from where.

The drafter is a script that makes a tree out of its chain: wrong guesses beside right ones and
before them, guesses below wrong ones, and branches that go on rightly where the chain is wrong.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from outrider.cloud_server.engine import CloudEngine
from outrider.cloud_server.targets.base import Decided, Row
from outrider.cloud_server.targets.scripted import ScriptedTarget
from outrider.protocol.epochs import CloudWindow
from outrider.runtime.lm.drafter import Drafter, Guess
from outrider.simulator.lm import DrafterLM, RememberedTarget, ScriptedModels
from outrider.simulator.schedule import nasty, patient
from outrider.simulator.settings import DrafterSettings, WorldSettings
from outrider.simulator.verdict import judge
from outrider.simulator.world import World


class BushyDrafter(Drafter):
    """Trees around what a drafter guesses, some branches of which are right."""

    def __init__(self, inner: Drafter, target: ScriptedTarget, size: int, seed: int) -> None:
        super().__init__(inner.lm, size)
        self.target, self.size, self.rng = target, size, random.Random(seed)

    def draft(self, ids: Sequence[int], *args: object, **settings: object) -> Guess:  # type: ignore[override]
        guess = super().draft(ids, *args, **settings)  # type: ignore[arg-type]
        rng = self.rng
        if not guess.tokens or guess.rows or rng.random() < 0.2:
            return guess
        nodes = [(-1, guess.tokens[0])]
        nodes += [(i, token) for i, token in enumerate(guess.tokens[1:])]
        for _ in range(rng.randrange(1, 8)):
            parent = rng.randrange(-1, len(nodes))
            token = rng.randrange(self.size)
            if rng.random() < 0.6:
                token = self.right(ids, nodes, parent)
            if (parent, token) not in nodes:
                nodes.append((parent, token))
        if rng.random() < 0.3:
            nodes = self.shuffled(nodes)
        parents, tokens = zip(*nodes, strict=True)
        return replace(
            guess, tokens=tokens, parents=parents, confidences=tuple(0.5 for _ in tokens)
        )

    def right(self, ids: Sequence[int], nodes: list[tuple[int, int]], parent: int) -> int:
        """What a greedy target says below a node."""
        path = []
        while parent != -1:
            parent, token = nodes[parent]
            path.append(token)
        return int(self.target.row([*ids, *reversed(path)]).argmax())

    def shuffled(self, nodes: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Another order in which each node still stands behind its parent."""
        place = {-1: -1}
        left, found = set(range(len(nodes))), []
        while left:
            node = self.rng.choice([n for n in sorted(left) if nodes[n][0] in place])
            left.remove(node)
            place[node] = len(found)
            found.append((place[nodes[node][0]], nodes[node][1]))
        return found


class CountingTarget(RememberedTarget):
    """Counts what trees came to: passes, and those decided by another than the first branch."""

    seen: Counter[str]

    def forward(self, rows: Sequence[Row]) -> list[Decided]:
        result = super().forward(rows)
        for row, decided in zip(rows, result, strict=True):
            if row.parents:
                self.seen["trees"] += 1
                self.seen["nodes"] += len(row.parents)
                passed = row.passed(decided)
                self.seen["side"] += any(row.parents.index(row.parents[n]) != n for n in passed)
        return result


class BushyModels(ScriptedModels):
    """Scripted models whose edges' drafters make trees."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.seen: Counter[str] = Counter()

    def target(self, settings: WorldSettings) -> ScriptedTarget:
        target = CountingTarget(settings)
        target.seen = self.seen
        return target

    def drafter(self, world: WorldSettings, settings: DrafterSettings) -> Drafter:
        target = RememberedTarget(world)
        inner = Drafter(DrafterLM(target, settings), world.vocabulary, world.eos)
        return BushyDrafter(inner, target, world.vocabulary, self.seed)


def bushy(seed: int) -> WorldSettings:
    """A nasty world; most have a cloud that waits for guesses and takes all of them."""
    if seed % 4 == 0:
        return nasty(seed)
    world = patient(seed)
    return replace(world, engine=replace(world.engine, patience_floor=0.5, patience_cap=1.0))


def judged(world_of: object, seed: int) -> tuple[list[str], Counter[str]]:
    models = BushyModels(seed)
    settings = world_of(seed)  # type: ignore[operator]
    try:
        world = World(settings, models)
        return judge(world, world.run()), models.seen
    except Exception as error:
        return [f"{type(error).__name__}: {error}"], models.seen


@pytest.mark.parametrize("start", range(0, 200, 50))
def test_tree_worlds(start: int) -> None:
    wrong, seen = {}, Counter[str]()
    for seed in range(start, start + 50):
        failures, counts = judged(bushy, seed)
        seen += counts
        if failures:
            wrong[seed] = failures
    assert wrong == {}
    assert min(seen["trees"], 5 * seen["side"]) > 40, seen


def test_patient_tree_worlds() -> None:
    found = {seed: judged(patient, seed)[0] for seed in range(60)}
    assert {seed: wrong for seed, wrong in found.items() if wrong} == {}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("start", range(1000, 6000, 500))
def test_many_tree_worlds(start: int) -> None:
    found = {seed: judged(bushy, seed)[0] for seed in range(start, start + 500)}
    assert {seed: wrong for seed, wrong in found.items() if wrong} == {}


def keep_the_tree_flat(patch: pytest.MonkeyPatch) -> None:
    """The target leaves all nodes of a tree in its cache, one after the other."""
    forward = ScriptedTarget.forward

    def flat(target: ScriptedTarget, rows: Sequence[Row]) -> list[Decided]:
        result = forward(target, rows)
        for row in rows:
            target.cached[row.slot] = list(row.ids)
        return result

    patch.setattr(ScriptedTarget, "forward", flat)


def forget_parents(patch: pytest.MonkeyPatch) -> None:
    """The cloud takes every node for the child of the one before it."""
    append = CloudWindow.append

    def flat(window: CloudWindow, low: int, tokens: object, deltas: object, *rest: object) -> None:
        append(window, low, tokens, (), *rest)  # type: ignore[arg-type]

    patch.setattr(CloudWindow, "append", flat)


def commit_the_first_branch(patch: pytest.MonkeyPatch) -> None:
    """What stands first is taken for right as far as the target's choices are long."""
    commit = CloudEngine._commit

    def first(engine: CloudEngine, session: object, part: object, decided: Decided, now: float):  # type: ignore[no-untyped-def]
        if part.parents:  # type: ignore[attr-defined]
            tokens = (*part.chain[: len(decided.ids) - 1], decided.ids[-1])  # type: ignore[attr-defined]
            decided = Decided(tokens)
        commit(engine, session, part, decided, now)  # type: ignore[arg-type]

    patch.setattr(CloudEngine, "_commit", first)


@pytest.mark.parametrize("fault", [keep_the_tree_flat, forget_parents, commit_the_first_branch])
def test_faults_are_noticed(fault: object, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)  # type: ignore[operator]
    assert any(judged(bushy, seed)[0] for seed in range(60))
