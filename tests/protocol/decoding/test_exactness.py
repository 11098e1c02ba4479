"""Speculation emits what the target alone emits: every schedule of drafts on a tiny model."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from outrider.protocol.decoding.rules import choose, propose
from outrider.protocol.decoding.sampling import Sampling

V, LENGTH = 4, 6
PROMPT = [1, 3]

SAMPLINGS = [
    Sampling(),
    Sampling(temperature=1, seed=11),
    Sampling(temperature=1, seed=11, choice=1),
    Sampling(temperature=0.7, seed=12, top_k=3, top_p=0.9, min_p=0.01),
    Sampling(temperature=1.3, seed=13, repetition_penalty=1.4, repetition_window=3),
    Sampling(temperature=1, seed=14, presence_penalty=0.7, frequency_penalty=0.5),
    Sampling(repetition_penalty=1.3, frequency_penalty=0.4, logit_bias=((2, 0.5),)),
]


class TableLM:
    """Logits are a random function of the last two ids. ``ties`` rounds them."""

    def __init__(self, seed, *, ties=False):
        table = np.random.default_rng(seed).standard_normal((V, V, V)) * 1.5
        self.table = (np.round(table) if ties else table).astype(np.float32)

    def row(self, ids):
        return self.table[ids[-2], ids[-1]]


def alone(lm, sampling, length=LENGTH):
    """The target by itself, one token at a time."""
    ids = list(PROMPT)
    while len(ids) < len(PROMPT) + length:
        ids.append(choose(lm.row(ids), sampling, ids, len(PROMPT), V).id)
    return ids[len(PROMPT) :]


def speculate(lm, sampling, draft, length=LENGTH):
    """Verify chains: accept while equal, then the target's own choice. Returns (output, rounds).

    ``draft(ids)`` returns the chain to judge after ``ids``; decisions are made for every position
    of the chain at once, each seeing the drafts before it, as a batched pass does.
    """
    ids, rounds = list(PROMPT), 0
    while len(ids) < len(PROMPT) + length:
        chain = draft(ids)
        text = ids + chain
        decided = [
            choose(lm.row(text[:n]), sampling, text[:n], len(PROMPT), V).id
            for n in range(len(ids), len(text) + 1)
        ]
        kept = 0
        while kept < len(chain) and chain[kept] == decided[kept]:
            kept += 1
        ids += decided[: kept + 1]
        rounds += 1
    return ids[len(PROMPT) : len(PROMPT) + length], rounds


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_right_wrong_and_random_drafters(sampling, k, ties):
    for model in range(6):
        lm, other = TableLM(model, ties=ties), TableLM(100 + model)
        rng = np.random.default_rng(model)
        want = alone(lm, sampling)

        def right(ids, k=k, want=want):
            done = len(ids) - len(PROMPT)
            return want[done : done + k]

        def wrong(ids):
            return [(t + 1) % V for t in right(ids)]

        def random(_ids, k=k, rng=rng):
            return rng.integers(0, V, k).tolist()

        def model_drafter(ids, k=k, other=other):
            ids, chain = list(ids), []
            for _ in range(k):
                chain.append(propose(other.row(ids), sampling, ids, len(PROMPT), V).id)
                ids.append(chain[-1])
            return chain

        def wrong_at(at):
            return lambda ids: [(t + 1) % V if i == at else t for i, t in enumerate(right(ids))]

        for draft in (right, wrong, random, model_drafter, *map(wrong_at, range(k))):
            assert speculate(lm, sampling, draft)[0] == want
        assert speculate(lm, sampling, right)[1] == -(-LENGTH // (k + 1))
        assert speculate(lm, sampling, wrong)[1] == LENGTH


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_chain_there_is(sampling):
    """All 4 + 16 + 64 chains of up to three tokens, drafted again and again from every state."""
    lm = TableLM(50)
    want = alone(lm, sampling)
    for k in (1, 2, 3):
        for chain in itertools.product(range(V), repeat=k):
            assert speculate(lm, sampling, lambda _ids, c=chain: list(c))[0] == want


def test_changing_draft_lengths_mid_answer():
    lm = TableLM(60)
    for sampling in SAMPLINGS:
        want = alone(lm, sampling)
        for lengths in itertools.product(range(3), repeat=4):
            plan = iter([*lengths, *[1] * LENGTH])
            rng = np.random.default_rng(hash(lengths) % 1000)

            def draft(ids, plan=plan, rng=rng, want=want):
                n = next(plan)
                done = len(ids) - len(PROMPT)
                return [t if rng.random() < 0.7 else 0 for t in want[done : done + n]]

            assert speculate(lm, sampling, draft)[0] == want


def test_the_law_of_the_whole_text(reference):
    """Over seeds, speculation's texts of two tokens have the probabilities of the model's chain."""
    lm, n = TableLM(70), 4000
    expected = {}
    for a, b in itertools.product(range(V), repeat=2):
        s = Sampling(temperature=1)
        pa = reference.probabilities(lm.row(PROMPT), s, PROMPT, 2, V)
        pb = reference.probabilities(lm.row([*PROMPT, a]), s, [*PROMPT, a], 2, V)
        expected[a, b] = pa[a] * pb[b] * n
    counts = dict.fromkeys(expected, 0)
    rng = np.random.default_rng(0)
    for seed in range(n):
        out, _ = speculate(
            lm, Sampling(temperature=1, seed=seed), lambda _: rng.integers(0, V, 2).tolist(), 2
        )
        counts[tuple(out)] += 1
    stat = sum((counts[t] - e) ** 2 / e for t, e in expected.items())
    assert stat < 42  # 15 degrees of freedom: p = 2e-4
