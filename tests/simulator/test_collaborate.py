"""A text of two models, one at each end of a link, against each token made by both in one place."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import msgspec
import numpy as np
import pytest

from outrider.edge_client.policy import Plan
from outrider.protocol.decoding.noise import gumbel
from outrider.protocol.decoding.sampling import Collaboration, Combination, Sampling
from outrider.protocol.decoding.sparse import Budget, spread
from outrider.protocol.errors import BackendError
from outrider.protocol.origins import Origins
from outrider.simulator.settings import Trouble

TOGETHER = [
    Collaboration(kind=Combination.ENSEMBLE, weight=0.5, keep=2, levels=16),
    Collaboration(kind=Combination.ENSEMBLE, weight=0.2),
    Collaboration(kind=Combination.CONTRASTIVE, weight=0.3, keep=3, levels=64),
]
TURNS = Plan(1, 1, offers=True)
"""The cloud proposes, the edge scores that and makes one guess behind it."""

TROUBLES = tuple(Trouble(at=0.9 + 0.7 * i, kind="cut", notice=0.03) for i in range(12))


def plain(worlds: Any, tables: Any, together: Collaboration, last: int) -> list[float]:
    """r after ``last``, straight from the definition: both models, the row as it would be sent."""
    size = worlds.V
    settings = Sampling(temperature=1.0)
    budget = Budget(together.keep, together.levels)
    row = spread(tables.draft_rows[last], settings, [0, last], 2, size, budget=budget).row
    q = [row.mass(t) for t in range(size)]
    z = [float(x) for x in tables.target_rows[last]]
    if together.kind is Combination.ENSEMBLE:
        total = math.fsum(math.exp(x) for x in z)
        pairs = zip(z, q, strict=True)
        return [together.weight * b + (1 - together.weight) * math.exp(a) / total for a, b in pairs]
    least = min(x for x in q if x > 0)
    e = [math.exp(a - together.weight * math.log(b or least)) for a, b in zip(z, q, strict=True)]
    return [x / math.fsum(e) for x in e]


@pytest.mark.parametrize("together", TOGETHER)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("plan", [Plan(2, 2), Plan(1, 4), TURNS])
def test_the_ids_of_both_in_one_place(
    worlds: Any, together: Collaboration, temperature: float, plan: Plan
) -> None:
    tables = worlds.Tables()
    settings = Sampling(temperature=temperature, collaborate=together)
    made = worlds.world(40, tables, plan, sampling=settings, troubles=TROUBLES)
    assert made.run()
    for answer in made.edges[0].conversations[0].answers:
        assert answer.ends == ["length"], answer
        assert not answer.faults
        text = list(answer.prompt)
        for token in answer.tokens:
            r = np.log(plain(worlds, tables, together, text[-1]))
            if temperature:
                r = r + gumbel(answer.turn.sampling.seed, 0, len(text), range(worlds.V))
            assert token == int(r.argmax())
            text.append(token)
        assert len(answer.tokens) == worlds.LENGTH


@pytest.fixture
def proposers(monkeypatch: pytest.MonkeyPatch) -> Counter[Any]:
    """Who proposed how many tokens, of all answers, as the edge records it."""
    found: Counter[Any] = Counter()
    note = Origins.note

    def counted(self: Origins, *args: Any) -> tuple[int, int]:
        before = len(self.tokens)
        result = note(self, *args)
        found.update(origin.proposer for origin in self.tokens[before:])
        return result

    monkeypatch.setattr(Origins, "note", counted)
    return found


@pytest.mark.parametrize("plan", [Plan(2, 2), TURNS])
@pytest.mark.parametrize("together", [TOGETHER[0], TOGETHER[2]])
def test_the_law_of_both_under_the_ratio_rule(
    worlds: Any, proposers: Counter[Any], together: Collaboration, plan: Plan
) -> None:
    tables = worlds.Tables()
    settings = Sampling(temperature=1.0, ratio=True, collaborate=together)
    found = worlds.texts(worlds.world(400, tables, plan, sampling=settings))
    assert (proposers["cloud"] > 200) == plan.offers
    assert proposers["edge"] > 200
    r = np.array([plain(worlds, tables, together, a) for a in range(worlds.V)])
    both = worlds.Tables()
    both.target_rows = np.log(np.maximum(r, 1e-12)).astype(np.float32)
    assert worlds.misfit(found, both) < 3.5
    assert worlds.misfit(found, tables) > 5.5  # it is not the target's own law


def test_a_model_that_dies_ends_the_answer_with_a_reason(
    worlds: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed, fed = worlds.TableLM.feed, []

    def dying(self: Any, *args: Any) -> Any:
        fed.append(args)
        if len(fed) > 3:
            raise BackendError("the drafter died")
        return feed(self, *args)

    monkeypatch.setattr(worlds.TableLM, "feed", dying)
    settings = Sampling(temperature=1.0, collaborate=TOGETHER[0])
    made = worlds.world(1, worlds.Tables(), Plan(1, 1), sampling=settings)
    assert made.run()
    (answer,) = made.edges[0].conversations[0].answers
    assert answer.ends == ["error: the edge's model stopped, and the text is partly its own"]


def test_settings_are_kept_by_both_ends() -> None:
    sampling = Sampling(collaborate=TOGETHER[2])
    data = msgspec.msgpack.encode(sampling)
    assert msgspec.msgpack.decode(data, type=Sampling) == sampling
