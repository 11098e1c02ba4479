"""n models that take turns, against every token by all of them."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from outrider.protocol.decoding.alternate import Alternation, Made, Mixture, Turn, plain, softmax
from outrider.protocol.decoding.sampling import Combination, Sampling
from outrider.protocol.errors import SettingError

V, PROMPT = 4, [1, 2]
ENSEMBLE, CONTRASTIVE = Combination.ENSEMBLE, Combination.CONTRASTIVE
MIXTURES = [
    Mixture(ENSEMBLE, (0.5, 0.5)),
    Mixture(ENSEMBLE, (0.2, 0.8)),
    Mixture(ENSEMBLE, (1 / 3, 1 / 3, 1 / 3)),
    Mixture(CONTRASTIVE, (0.1,)),
    Mixture(CONTRASTIVE, (0.3, 0.2)),
]


def models(count, seed=5, apart=1.0):
    rng = np.random.default_rng(seed)
    common = rng.standard_normal((V, V)) * 1.5
    return [(common + apart * rng.standard_normal((V, V))).astype(np.float32) for _ in range(count)]


def by_last(tables):
    return lambda i, ids: tables[i][ids[-1]]


def run(mixture, sampling, tokens, *, costs=None, tables=None, **more):
    count = len(mixture.weights) + (mixture.kind is CONTRASTIVE)
    tables = tables or models(count)
    made = Alternation(by_last(tables), mixture, sampling, costs or (1.0,) * count, **more)
    return list(made.run(PROMPT, tokens)), tables


@pytest.mark.parametrize("mixture", MIXTURES)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("costs", [(1.0, 1.0, 1.0), (0.05, 0.1, 1.0), (1.0, 0.1, 0.05)])
def test_the_ids_of_plain_decoding(mixture, temperature, costs):
    count = len(mixture.weights) + (mixture.kind is CONTRASTIVE)
    for seed in range(4):
        sampling = Sampling(temperature=temperature, seed=seed)
        events, tables = run(mixture, sampling, 60, costs=costs[:count])
        tokens = [e.token for e in events if isinstance(e, Made)]
        assert tokens == plain(by_last(tables), mixture, sampling, PROMPT, 60)


@pytest.mark.parametrize("mixture", MIXTURES)
def test_never_slower_than_plain_with_turns_of_one(mixture):
    count = len(mixture.weights) + (mixture.kind is CONTRASTIVE)
    for seed, apart in itertools.product(range(5), (0.0, 1.0, 6.0)):
        events, _ = run(
            mixture, Sampling(temperature=1.0, seed=seed), 50,
            tables=models(count, seed, apart), adaptive=False,
        )  # fmt: skip
        turns = sum(isinstance(e, Turn) for e in events)
        assert turns <= 50 * count + count
        if not apart and mixture.kind is ENSEMBLE:
            assert turns <= 50 + count  # all proposals pass: a pass a token


def law(mixture, tables, length):
    p = np.array([mixture.combine([t[a] for t in tables], 1.0) for a in range(V)])
    return {
        text: math.prod(p[a, b] for a, b in itertools.pairwise((PROMPT[-1], *text)))
        for text in itertools.product(range(V), repeat=length)
    }


def misfit(mixture, seeds=1500, length=2, **more):
    count = len(mixture.weights) + (mixture.kind is CONTRASTIVE)
    tables = models(count)
    found = Counter()
    for seed in range(seeds):
        sampling = Sampling(temperature=1.0, seed=seed, ratio=True)
        events, _ = run(mixture, sampling, length, tables=tables, **more)
        found[tuple(e.token for e in events if isinstance(e, Made))] += 1
    expected = law(mixture, tables, length)
    cells = [(e * seeds, found[t]) for t, e in expected.items() if e * seeds >= 5]
    stat = sum((c - e) ** 2 / e for e, c in cells)
    return (stat - len(cells)) / math.sqrt(2 * len(cells))


@pytest.mark.parametrize("mixture", [MIXTURES[1], MIXTURES[2], MIXTURES[3]])
def test_the_law_under_the_ratio_rule(mixture):
    assert misfit(mixture) < 3.5


def test_tested_against_another_than_its_proposer_is_noticed(monkeypatch):
    judge = Alternation._judge

    def wrong(self, ids, proposal, rows):
        proposal.mass = softmax(rows[1 - proposal.by], 1.0)
        return judge(self, ids, proposal, rows)

    monkeypatch.setattr(Alternation, "_judge", wrong)
    assert misfit(MIXTURES[1]) > 5


def test_the_record_says_who_proposed_what():
    events, _ = run(MIXTURES[0], Sampling(temperature=1.0, seed=3), 40)
    made = [e for e in events if isinstance(e, Made)]
    assert {m.proposer for m in made} == {0, 1}  # the extra token of a pass opens a turn
    assert all((m.token == m.proposal) == m.accepted for m in made)
    assert all(0 < m.proposed_mass <= 1 for m in made)


def test_cheap_and_right_models_get_longer_turns():
    tables = models(2, apart=0.0)
    made = Alternation(lambda i, ids: tables[i][ids[-1]], MIXTURES[0], Sampling(), (0.05, 1.0))
    assert made.length(0) == 1
    list(made.run(PROMPT, 60))
    assert made.length(0) > 3
    assert made.length(1) < made.length(0)


@pytest.mark.parametrize(
    ("mixture", "count", "said"),
    [
        (Mixture(ENSEMBLE, (0.5, 0.6)), 2, "sum to 1.1"),
        (Mixture(ENSEMBLE, (0.5, 0.5)), 3, "3 models need 3"),
        (Mixture(ENSEMBLE, (1.5, -0.5)), 2, "0 to 1"),
        (Mixture(CONTRASTIVE, (1.1,)), 2, "0 to 1"),
        (Mixture(CONTRASTIVE, (0.1, 0.1)), 2, "2 models need 1"),
    ],
)
def test_mixtures_that_mean_nothing(mixture, count, said):
    with pytest.raises(SettingError, match=said):
        mixture.check(count)
