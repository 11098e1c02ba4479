"""Log-probabilities in nasty worlds: at every token the target's own, whoever guessed it first.

Every answer of every world asks for them; cuts, restarts, cancels, trees and rules are as the
schedule has them. What they are compared with is a softmax written out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from outrider.cloud_server.targets.scripted import ScriptedTarget
from outrider.protocol.logprobs import TokenLogprob
from outrider.simulator.edge import Answer
from outrider.simulator.schedule import nasty
from outrider.simulator.settings import WorldSettings
from outrider.simulator.verdict import judge
from outrider.simulator.world import World


def asking(settings: WorldSettings) -> WorldSettings:
    """The same world, and every other answer wants its log-probabilities."""
    edges = tuple(
        replace(
            edge,
            sessions=tuple(
                tuple(
                    replace(turn, logprobs=None if i % 3 == 2 else 2 * (i % 3))
                    for i, turn in enumerate(turns)
                )
                for turns in edge.sessions
            ),
        )
        for edge in settings.edges
    )
    return replace(settings, edges=edges)


def slowly(row: Sequence[float], token: int, top: int) -> TokenLogprob:
    """By the definition."""
    total = math.fsum(math.exp(z) for z in row)
    all_of_them = [(i, z - math.log(total)) for i, z in enumerate(row)]
    best = sorted(all_of_them, key=lambda pair: (-pair[1], pair[0]))[:top]
    return TokenLogprob(all_of_them[token][1], tuple(best))


def same(a: TokenLogprob, b: TokenLogprob) -> bool:
    """Up to the float32 that travels."""
    pairs = zip(a.top, b.top, strict=True)
    return math.isclose(a.logprob, b.logprob, abs_tol=1e-5) and all(
        i == j and math.isclose(x, y, abs_tol=1e-5) for (i, x), (j, y) in pairs
    )


def wrong(target: ScriptedTarget, answer: Answer) -> list[str]:
    asked = answer.turn.logprobs
    if asked is None:
        return ["told without being asked"] if answer.logprobs else []
    if len(answer.logprobs) != len(answer.tokens):
        return [f"{len(answer.logprobs)} for {len(answer.tokens)} tokens"]
    text = list(answer.prompt)
    for token, told in zip(answer.tokens, answer.logprobs, strict=True):
        row = [float(z) for z in target.row(text)[: target.info.usable]]
        if not same(slowly(row, token, asked), told):
            return [f"at {len(text)}: {told}"]
        text.append(token)
    return []


@pytest.mark.parametrize("start", range(0, 80, 40))
def test_they_are_the_targets_at_every_token(start: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(start, start + 40):
        world = World(asking(nasty(seed)))
        assert judge(world, world.run()) == []
        seen["looked up"] += world.cloud.engine.stats.own_accepted_tokens
        for edge in world.edges:
            for conversation in edge.conversations:
                seen["connections"] += conversation.session.n
                for answer in conversation.answers:
                    assert wrong(world.cloud.target, answer) == [], seed  # type: ignore[arg-type]
                    seen["told"] += len(answer.logprobs)
                    seen["accepted"] += answer.accepted if answer.logprobs else 0
    assert seen["told"] > 500
    assert seen["accepted"] > 30
    assert seen["looked up"] > 10
    assert seen["connections"] > 60
