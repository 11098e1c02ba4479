from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.protocol.decoding import rules
from outrider.protocol.decoding.noise import gumbel
from outrider.protocol.decoding.processors import survivors
from outrider.protocol.decoding.rules import choose, judge, propose, scored
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.errors import BackendError

MIXED = [
    Sampling(),
    Sampling(logit_bias=((3, 2.0),), frequency_penalty=0.3, repetition_penalty=1.2),
    Sampling(temperature=0.3, seed=1),
    Sampling(temperature=1, seed=2, choice=3),
    Sampling(temperature=1.5, top_k=5, seed=3),
    Sampling(temperature=0.8, top_p=0.7, seed=4),
    Sampling(temperature=1, min_p=0.1, seed=2**64 - 1),
    Sampling(
        temperature=0.9, top_k=9, top_p=0.9, min_p=0.02, repetition_penalty=1.1, seed=5,
        presence_penalty=0.2, frequency_penalty=0.1, logit_bias=((1, 1.0),),
    ),
]  # fmt: skip


@pytest.mark.parametrize("sampling", MIXED)
def test_same_as_the_definition(sampling, reference):
    rng = np.random.default_rng(4)
    for i in range(40):
        row = (rng.standard_normal(20) * 2).astype(np.float32)
        if i % 2:
            row = np.round(row)  # ties
        ids = rng.integers(0, 18, rng.integers(1, 30)).tolist()
        got = choose(row, sampling, ids, len(ids) // 2, 18)
        want = reference.choose(row, sampling, ids, len(ids) // 2, 18)
        assert got.id == want[0]
        assert got.margin == pytest.approx(want[1], abs=1e-9)


def test_ties_go_to_the_lower_id():
    row = np.array([0, 5, 5, 5, 1], np.float32)
    assert choose(row, Sampling(), [], 0, 5) == (1, 0.0)
    assert choose(row, Sampling(logit_bias=((1, -1.0),)), [], 0, 5) == (2, 0.0)


def test_margin_of_the_only_token_is_infinite():
    row = np.array([0, 5, 1], np.float32)
    assert choose(row, Sampling(temperature=1, top_k=1), [], 0, 3) == (1, math.inf)
    assert choose(row[:1], Sampling(), [], 0, 1) == (0, math.inf)
    row = np.array([-np.inf, 5, -np.inf], np.float32)
    assert choose(row, Sampling(), [], 0, 3) == (1, math.inf)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("sampling", MIXED)
def test_rows_that_are_no_numbers(bad, sampling):
    row = np.zeros(20, np.float32)
    row[7] = bad
    for rule in (choose, propose):
        with pytest.raises(BackendError):
            rule(row, sampling, [1], 0, 20)


def test_empty_vocabulary():
    for rule in (choose, propose):
        with pytest.raises(BackendError):
            rule(np.zeros(4, np.float32), Sampling(), [], 0, 0)


def test_wide_rows_prune_without_changing_the_choice(monkeypatch):
    rng = np.random.default_rng(6)
    rows = [rng.standard_normal(20_000).astype(np.float32) * s for s in (0.5, 3, 30, 80)]
    samplings = [Sampling(temperature=0.7, seed=s) for s in range(12)]
    short = [choose(r, s, [0] * 9, 0, 20_000) for r in rows for s in samplings]
    monkeypatch.setattr(rules, "WIDE", 10**9)
    assert short == [choose(r, s, [0] * 9, 0, 20_000) for r in rows for s in samplings]


def test_judge_compares_as_the_rule_does():
    row = np.array([1, 2, 3, 0], np.float32)
    assert judge(row, Sampling(), [0], 0, 4, candidate=1) == (3.0, 2.0)
    assert judge(row, Sampling(), [0], 0, 3, candidate=3) == (3.0, -math.inf)
    cut = Sampling(temperature=0.5, top_k=2, seed=9)
    noisy = row / 0.5 + gumbel(9, 0, 1, range(4))
    assert judge(row, cut, [0], 0, 4, candidate=1) == (max(noisy[1:3]), noisy[1])
    assert judge(row, cut, [0], 0, 4, candidate=0)[1] == -math.inf


# -- the law -------------------------------------------------------------------------------------


def chi_square(counts, expected):
    return sum((c - e) ** 2 / e for c, e in zip(counts, expected, strict=True))


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1),
        Sampling(temperature=0.5),
        Sampling(temperature=1.5, top_k=4),
        Sampling(temperature=1, top_p=0.8, min_p=0.05),
    ],
)
@pytest.mark.parametrize("vary", ["seed", "position", "choice"])
def test_coupled_choices_follow_the_softmax(sampling, vary, reference):
    """Over seeds, over positions of one seed and over choices of one seed."""
    row = np.array([1.5, 0.3, -1, 0.9, 0.9, -0.2], np.float32)
    n = 8000
    tokens, scores = survivors(row, sampling, [], 0, 6)
    p = reference.probabilities(row, sampling, [], 0, 6)
    counts = dict.fromkeys(p, 0)
    for i in range(n):
        at = {"seed": 3, "choice": 0, "position": 10} | {vary: i}
        noisy = scores + gumbel(at["seed"], at["choice"], at["position"], tokens)
        counts[int(tokens[noisy.argmax()])] += 1
    stat = chi_square(counts.values(), [p[t] * n for t in counts])
    assert stat < 24  # five degrees of freedom at most: p = 2e-4


def test_the_race_of_exponentials_is_the_softmax_exactly():
    """P(argmax of w + G) by integrating over the winner's noise, against the closed form.

    u of the winner runs over a fine grid; every other token must then draw less, which has
    probability exp(-exp(-x)). This is the law of the definition itself, with no sampling error.
    """
    w = np.array([1.2, 0.1, -0.7, 0.9])
    u = (np.arange(200_000) + 0.5) / 200_000
    g = -np.log(-np.log(u))
    for i in range(4):
        others = np.delete(w, i)
        below = np.exp(-np.exp(-(w[i] + g[:, None] - others[None, :]))).prod(axis=1)
        assert below.mean() == pytest.approx(np.exp(w[i]) / np.exp(w).sum(), abs=1e-6)


def test_seeds_and_choices_differ():
    row = np.zeros(50, np.float32)
    texts = set()
    for seed in range(6):
        for choice in range(3):
            s = Sampling(temperature=1, seed=seed, choice=choice)
            texts.add(tuple(choose(row, s, [0] * n, 0, 50).id for n in range(12)))
    assert len(texts) == 18


# -- drafters ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", MIXED)
def test_a_drafter_with_the_targets_row_proposes_its_choice(sampling, reference):
    rng = np.random.default_rng(7)
    for _ in range(40):
        row = (rng.standard_normal(30) * 2).astype(np.float32)
        ids = rng.integers(0, 28, 12).tolist()
        got = propose(row, sampling, ids, 4, 28)
        assert got.id == choose(row, sampling, ids, 4, 28).id
        p = reference.probabilities(row, sampling, ids, 4, 28)
        assert got.confidence == pytest.approx(p[got.id], abs=2e-6)


@pytest.mark.parametrize("sampling", MIXED)
def test_a_small_head_still_finds_most_choices(sampling, reference):
    rng = np.random.default_rng(8)
    same = 0
    for _ in range(100):
        row = (rng.standard_normal(500) * 5).astype(np.float32)
        got = propose(row, sampling, [1, 2, 3], 1, 498, head=48)
        same += got.id == choose(row, sampling, [1, 2, 3], 1, 498).id
        p = reference.probabilities(row, sampling, [1, 2, 3], 1, 498)
        # Where a cut falls beyond the head its mass is estimated, within the size of one token.
        assert got.confidence == pytest.approx(p.get(got.id, 0.0), rel=0.03, abs=1e-6)
    assert same >= 80


def test_never_is_never_proposed():
    row = np.array([5, 4, 3, 2], np.float32)
    full = propose(row, Sampling(), [], 0, 4)
    other = propose(row, Sampling(), [], 0, 4, never=frozenset({0, 99}))
    assert (full.id, other.id) == (0, 1)
    assert other.confidence == pytest.approx(full.confidence / math.e)
    for seed in range(50):
        for s in (
            Sampling(temperature=1, seed=seed),
            Sampling(temperature=1, seed=seed, top_k=2),
            Sampling(temperature=1, seed=seed, top_p=0.1),
        ):
            assert propose(row, s, [], 0, 4, never=frozenset({0, 2})).id in (1, 3)
    alone = propose(row, Sampling(temperature=1, top_k=1), [], 0, 4, never=frozenset({0}))
    assert alone == (1, 0, None, np.inf)
    gone = np.array([5, -np.inf, 3, -np.inf], np.float32)
    for t in (0, 1):
        s = Sampling(temperature=t)
        assert propose(gone, s, [], 0, 4, never=frozenset({0})).id == 2
        for logits, never in ((row, range(4)), (gone, (0, 2))):
            with pytest.raises(BackendError, match="no token left to propose"):
                propose(logits, s, [], 0, 4, never=frozenset(never))


@pytest.mark.parametrize("sampling", MIXED)
@pytest.mark.parametrize("never", [(), (3,), (0, 3, 5)])
def test_the_runner_up_is_what_would_come_first_without_the_choice(sampling, never):
    """And its score lags by the lead."""
    rng = np.random.default_rng(9)
    for _ in range(30):
        row = (rng.standard_normal(12) * 2).astype(np.float32)
        got = propose(row, sampling, [1, 2], 1, 12, never=frozenset(never))
        tokens, scores = scored(row, sampling, [1, 2], 1, 12)
        allowed = [(-s, t) for s, t in zip(scores, tokens, strict=True) if t not in never]
        if not allowed:
            assert got[1:] == (0.0, None, np.inf)
            continue
        first, *others = sorted(allowed)
        assert got.id == first[1]
        if others:
            assert got.second == others[0][1]
            assert got.lead == pytest.approx(others[0][0] - first[0], abs=1e-4)
        else:
            assert (got.second, got.lead) == (None, np.inf)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(-9, 9, width=32), min_size=1, max_size=90),
    st.sampled_from(MIXED),
    st.integers(1, 100),
)
def test_confidence_is_a_probability(logits, sampling, head):
    row = np.array(logits, np.float32)
    got = propose(row, sampling, [0, 1], 1, row.size, head=head)
    assert 0 <= got.id < row.size
    assert 0 < got.confidence <= 1
