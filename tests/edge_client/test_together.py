"""The ratio rule and combined texts over real sockets, with a link that drops in mid answer."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from outrider.cloud_server.planner import EngineSettings
from outrider.protocol.decoding.combine import budget_of, combined, parse, row_sampling
from outrider.protocol.decoding.noise import gumbel
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.decoding.sparse import spread
from outrider.protocol.errors import SettingError

WRONG = 4
"""Every so many tokens the edge's model has another opinion than the target."""


WAITS = 20.0
"""Seconds that a cloud waits for guesses at most: less than a scene may be silent."""


def both(target, sampling, prompt, tokens) -> list[int]:
    """Each token by both models in one place, as the definition of r says."""
    size, ids, together = target.info.usable, list(prompt), sampling.collaborate
    for _ in range(tokens):
        z = target.row(ids)
        small = np.roll(z, 1) if len(ids) % WRONG == 0 else z
        made = row_sampling(sampling)
        row = spread(small, made, ids, len(prompt), size, budget=budget_of(together)).row
        found, scores = combined(z, sampling, ids, len(prompt), size, other=row)
        if sampling.temperature:
            scores = scores + gumbel(sampling.seed, 0, len(ids), found)
        ids.append(int(found[scores.argmax()]))
    return ids[len(prompt) :]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("how", ["ensemble=0.5", "contrastive=0.1,keep=8,levels=64"])
def test_a_text_of_two_models_survives_a_drop(scene, take, ask, how, temperature) -> None:
    sampling = Sampling(temperature=temperature, seed=11, collaborate=parse(how))

    async def main() -> None:
        async with scene() as world, world.edge(WRONG) as edge:
            asked = ask(sampling)
            heard = await take(edge, edge.session(), asked, world.proxy.drop)
            target = world.verifier.target.inner
            assert heard.tokens == both(target, sampling, asked.ids, asked.max_tokens)
            assert heard.whole.reconnects == 1

    asyncio.run(main())


def test_the_ratio_rule_survives_a_drop(scene, take, ask, caplog) -> None:
    """The cloud waits for guesses that are announced for as long as they take: what is judged does
    not depend on how quick this machine is. Sharp rows: of flat ones too little fits the wire."""

    async def main() -> None:
        waits = EngineSettings(patience_floor=WAITS, patience_cap=WAITS)
        async with scene(engine=waits) as world, world.edge(WRONG, rule="ratio") as edge:
            asked = ask(Sampling(temperature=0.3, seed=3), objective="cost")
            heard = await take(edge, edge.session(), asked, world.proxy.drop)
            assert heard.whole.rule == "ratio"
            assert heard.whole.reconnects == 1
            assert heard.whole.accepted > 0
            assert len(heard.tokens) == len(heard.whole.ids) == asked.max_tokens

    asyncio.run(main())
    assert not [r for r in caplog.records if r.levelname == "ERROR"]  # nothing failed unheard


def test_a_combination_without_a_model_here_is_refused(scene, take, ask) -> None:
    async def main() -> None:
        async with scene() as world, world.edge(None) as edge:
            sampling = Sampling(collaborate=parse("ensemble=0.5"))
            with pytest.raises(SettingError, match="needs a model at the edge"):
                await take(edge, edge.session(), ask(sampling))

    asyncio.run(main())
