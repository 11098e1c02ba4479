"""Texts of three models over real sockets, the link dropping in the middle, against each token made
by all models in one place."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from outrider.cloud_server.targets.scripted import ScriptedTarget
from outrider.edge_client.policy import Plan, Steady
from outrider.protocol.decoding.combine import parse
from outrider.protocol.decoding.noise import gumbel
from outrider.protocol.decoding.sampling import Combination, Sampling
from outrider.protocol.decoding.sparse import Budget, quantize
from outrider.protocol.errors import BackendError, SessionError, SettingError
from outrider.runtime.lm.together import Together
from outrider.runtime.text.tokenizer import Tokenizer
from outrider.simulator.links import Direction, Link

SEEDS = (21, 22)
"""Of the models beside the target, wherever they sit."""


TURNS = Plan(1, 1, offers=True)
"""The cloud proposes, the edge scores that and makes one guess behind it."""

SOME_WAY = Link(name="some way", up=Direction(delay=0.015), down=Direction(delay=0.015))
"""Long enough for a row of the cloud's own."""


def model(tokenizer, seed: int, target: ScriptedTarget) -> ScriptedTarget:
    """A model that mostly agrees with the target."""

    class Near(ScriptedTarget):
        def row(self, ids):
            return 0.7 * target.row(ids) + 0.6 * super().row(ids)

    return Near(vocabulary=tokenizer.size, seed=seed, order=2, peak=4.0, slots=8)


def softmax(z) -> np.ndarray:
    e = np.exp(np.asarray(z, np.float64) - float(np.max(z)))
    return e / e.sum()


def by_all(target, edge, cloud, asked) -> list[int]:
    """Each token by all models, straight from what r is: no engine, no batch, no shortcut.

    Settings besides the temperature are neutral here.
    """
    sampling, ids, size = asked.sampling, list(asked.ids), target.info.usable
    how = sampling.collaborate
    budget, heat = Budget(how.keep, how.levels), sampling.temperature or 1.0
    mine, theirs = how.edge or (how.weight,), [w for _, w in how.cloud]
    for _ in range(asked.max_tokens):
        z = target.row(ids).astype(np.float64)
        small = [lm.row(ids).astype(np.float64) for lm in edge]
        large = [lm.row(ids).astype(np.float64) for lm in cloud]
        if how.kind is Combination.ENSEMBLE:
            q = sum(w * softmax(x / heat) for w, x in zip(mine, small, strict=True)) / how.weight
        else:
            q = softmax(sum(w * x for w, x in zip(mine, small, strict=True)) / how.weight)
        top = np.lexsort((np.arange(size), -q))[: budget.keep]
        row = quantize(np.sort(top), q[np.sort(top)], budget.levels)
        sent = np.array([row.mass(t) for t in range(size)])
        if how.kind is Combination.ENSEMBLE:
            left = 1 - how.weight - sum(theirs)
            r = how.weight * sent + left * softmax(z / heat)
            r = r + sum((w * softmax(x / heat) for w, x in zip(theirs, large, strict=True)), 0.0)
            with np.errstate(divide="ignore"):
                scores = np.log(r)
        else:
            logs = np.log(np.where(sent > 0, sent, min(sent[sent > 0])))
            z = z - sum((w * x for w, x in zip(theirs, large, strict=True)), 0.0)
            scores = (z - how.weight * logs) / heat
        if sampling.temperature:
            scores = scores + gumbel(sampling.seed, 0, len(ids), np.arange(size))
        ids.append(int(scores.argmax()))
    return ids[len(asked.ids) :]


@dataclass
class Bench:
    """What these tests are made with."""

    tokenizer: Tokenizer
    script: Any
    echo: Any
    take: Any
    ask: Any

    def models(self, seeds) -> tuple[list[ScriptedTarget], Together]:
        """Models at the edge, and the source of their common rows."""
        found = [model(self.tokenizer, seed, self.script(self.tokenizer)) for seed in seeds]
        return found, Together([self.echo(one) for one in found], self.tokenizer.size)


@pytest.fixture
def bench(tokenizer, script, echo, take, ask) -> Bench:
    return Bench(tokenizer, script, echo, take, ask)


@pytest.mark.parametrize("plan", [Plan(2, 6), TURNS])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("how", ["ensemble=0.3,0.2", "contrastive=0.1,0.05,keep=8,levels=64"])
def test_two_at_the_edge(scene, bench, how, temperature, plan) -> None:
    sampling = Sampling(temperature=temperature, seed=3, collaborate=parse(how))

    async def main() -> None:
        async with scene(SOME_WAY) as world:
            target = world.verifier.target.inner
            models, drafter = bench.models(SEEDS)
            async with world.edge(drafter=drafter, policy=Steady(plan)) as edge:
                asked = bench.ask(sampling, tokens=30)
                heard = await bench.take(edge, edge.session(), asked, world.proxy.drop)
            assert heard.tokens == by_all(target, models, [], asked)
            assert heard.whole.reconnects == 1
            assert heard.whole.accepted > 0
            check_record(heard, turns=plan.offers)

    asyncio.run(main())


def check_record(heard, *, turns: bool) -> None:
    """Each token has its record: who proposed what, and whether that is what came."""
    made = heard.whole.origins
    assert [origin.token for origin in made] == heard.tokens
    for origin in made:
        if origin.proposer is not None:
            assert origin.accepted == (origin.proposal == origin.token)
    assert ("cloud" in {origin.proposer for origin in made}) == turns
    assert "edge" in {origin.proposer for origin in made}


@pytest.mark.parametrize("plan", [Plan(2, 6), TURNS])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("how", ["ensemble=0.3,b=0.3,target=0.4", "contrastive=0.1,b=0.1"])
def test_two_at_the_cloud(scene, bench, how, temperature, plan) -> None:
    sampling = Sampling(temperature=temperature, seed=4, collaborate=parse(how))
    other = model(bench.tokenizer, SEEDS[1], bench.script(bench.tokenizer))

    async def main() -> None:
        async with scene(SOME_WAY, others={"a": other, "b": other}) as world:
            target = world.verifier.target.main.inner
            models, drafter = bench.models(SEEDS[:1])
            async with world.edge(drafter=drafter, policy=Steady(plan)) as edge:
                asked = bench.ask(sampling, tokens=30)
                heard = await bench.take(edge, edge.session(), asked, world.proxy.drop)
                check_record(heard, turns=plan.offers)
                plain = await bench.take(edge, edge.session(), bench.ask(Sampling(), tokens=20))
            assert heard.tokens == by_all(target, models, [other], asked)
            assert heard.whole.reconnects == 1
            assert plain.tokens == world.plain(Sampling(), 20)  # the target's own, as ever

    asyncio.run(main())


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            "ensemble=0.3,c=0.2",
            "no model 'c' beside its target; it hosts: 'b'. Start it with --collaborator c=PATH",
        ),
        ("ensemble=0.3,0.2", "models at this edge: 1; weights for them in the combination: 2"),
    ],
)
def test_models_that_are_not_there(scene, bench, how, said) -> None:
    async def main() -> None:
        async with (
            scene(others={"b": bench.script(bench.tokenizer)}) as world,
            world.edge() as edge,
        ):
            with pytest.raises((SessionError, SettingError), match=said):
                await bench.take(edge, edge.session(), bench.ask(Sampling(collaborate=parse(how))))
            heard = await bench.take(edge, edge.session(), bench.ask(Sampling(), tokens=20))
            assert heard.tokens == world.plain(Sampling(), 20)  # the link is none the worse

    asyncio.run(main())


@pytest.mark.parametrize(("place", "after"), [("edge", 0), ("edge", 20), ("cloud", 20)])
def test_a_model_that_dies(scene, bench, monkeypatch, place, after) -> None:
    other = model(bench.tokenizer, SEEDS[1], bench.script(bench.tokenizer))
    rows: list[int] = []
    row = other.row

    def dying(ids):
        rows.append(len(ids))
        if len(rows) > after:
            raise BackendError("out of memory")
        return row(ids)

    monkeypatch.setattr(other, "row", dying)
    how = "ensemble=0.2,b=0.3" if place == "cloud" else "ensemble=0.2,0.3"
    asked = bench.ask(Sampling(collaborate=parse(how)))

    async def main() -> None:
        sound = bench.script(bench.tokenizer)
        beside, lms = other, [bench.echo(sound)]
        if place == "edge":
            beside, lms = sound, [*lms, bench.echo(other)]
        async with scene(others={"b": beside}) as world:
            drafter = Together(lms, bench.tokenizer.size)
            async with world.edge(drafter=drafter) as edge:
                with pytest.raises(SessionError) as ended:
                    await bench.take(edge, edge.session(), asked)
                if place == "cloud":
                    said = "the model 'b' of this cloud failed: out of memory"
                    assert said in str(ended.value)
                else:
                    assert "the edge's model stopped" in str(ended.value)
                    with pytest.raises(BackendError, match="out of memory"):
                        await bench.take(edge, edge.session(), asked)
                # Whoever is left goes on.
                plain = await bench.take(edge, edge.session(), bench.ask(Sampling(), tokens=20))
                assert plain.tokens == world.plain(Sampling(), 20)

    asyncio.run(main())


def test_weights_are_checked() -> None:
    for text, said in (
        ("ensemble=0.6,0.5", "sum to 1"),
        ("ensemble=0.6,b=0.5", "sum to 1"),
        ("ensemble=0.3,b=0.2,target=0.4", r"sum to 0.9, not to 1"),
        ("contrastive=1.5", "contrastive mu weight of the edge's model is 1.5"),
        ("contrastive=0.1,b=-1", "model 'b' is -1"),
        ("contrastive=0.1,target=0.9", "target= is for an ensemble"),
        ("ensemble=0.3,b=0.1,b=0.1", "must be ensemble=W"),
    ):
        with pytest.raises(SettingError, match=said):
            parse(text)
    assert math.isclose(parse("ensemble=0.3,0.2,b=0.1,target=0.4").target, 0.4)
