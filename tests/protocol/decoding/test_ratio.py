"""The ratio rule on tiny vocabularies: by enumeration, and by many seeds where noise matters."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from outrider.protocol.decoding import ratio, rules, sparse
from outrider.protocol.decoding.noise import Domain
from outrider.protocol.decoding.processors import survivors
from outrider.protocol.decoding.ratio import decide, log_mass, odds
from outrider.protocol.decoding.row import SparseRow
from outrider.protocol.decoding.rules import without
from outrider.protocol.decoding.sampling import Rule, Sampling
from outrider.protocol.decoding.sparse import Budget, Threshold, draw, quantize, spread
from outrider.protocol.errors import BackendError, SettingError

V, PROMPT = 4, (1, 3)
HOT = Sampling(temperature=1.0, seed=5, ratio=True)
SAMPLINGS = [
    HOT,
    Sampling(temperature=0.7, seed=5, ratio=True, top_k=3),
    Sampling(temperature=1.3, seed=5, ratio=True, top_p=0.9, presence_penalty=0.5),
]
BUDGETS = [
    Budget(1, 1), Budget(1, 16), Budget(2, 2), Budget(2, 16), Budget(3, 4), Budget(4, 8),
    Budget(4, 256), Budget(4, 64, 0.3),
]  # fmt: skip


class Tables:
    """Logits by the last id, for a target and a drafter."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.target = (rng.standard_normal((V, V)) * 1.5).astype(np.float32)
        self.draft = (rng.standard_normal((V, V)) * 1.5).astype(np.float32)


def accept_chance(tables, sampling, text, row, *, token, patch):
    """The share of uniform numbers for which our test accepts: up to the u where the odds are 0."""
    log_p = log_mass(tables.target[text[-1]], sampling, text, 2, V, token=token)
    patch.setattr(ratio, "uniform", lambda *_: 1.0)
    return min(1.0, math.exp(odds(log_p, row, token, sampling, len(text))))


def own_law(tables, sampling, text, minus=None):
    """The law of the target's own choice: the softmax of what our code gives scores to."""
    tokens, scores = survivors(tables.target[text[-1]], sampling, text, 2, V)
    if minus is not None:
        scores = without(tokens, scores, minus)
    e = np.exp(scores - scores.max())
    return dict(zip(tokens.tolist(), (e / e.sum()).tolist(), strict=True))


DRAWN = {}


def draw_counts(row, patch):
    """How many of the levels lead our draw to each id: every step is drawn once."""
    known = DRAWN
    if row not in known:
        counts = dict.fromkeys(row.ids, 0)
        for step in range(row.levels):
            bits = (2 * step + 1) * 2**51 // row.levels
            patch.setattr(sparse, "noise_bits", lambda *_, b=bits: [b])
            counts[draw(row, HOT, 2)] += 1
        known[row] = counts
    return known[row]


def law(tables, sampling, budget, *, length, draft_length, patch):
    """Every way in which an answer of ``length`` tokens can come about, with its probability.

    Lockstep with drafts of ``draft_length``: our rows, our draws (each step of the levels once),
    our test, our residual, our bonus.
    """
    found = dict.fromkeys(itertools.product(range(V), repeat=length), 0.0)

    def settle(text, chance):
        """Go on from a committed text."""
        if len(text) >= 2 + length:
            found[tuple(text[2 : 2 + length])] += chance
            return
        drafted(text, (), (), chance)

    def drafted(text, chain, rows, chance):
        """Draft on, or judge what there is."""
        if len(chain) == draft_length:
            judged(text, chain, rows, chance)
            return
        past = (*text, *chain)
        row = spread(tables.draft[past[-1]], sampling, past, 2, V, budget=budget).row
        for token, steps in draw_counts(row, patch).items():
            drafted(text, (*chain, token), (*rows, row), chance * steps / row.levels)

    def judged(text, chain, rows, chance):
        for token, row in zip(chain, rows, strict=True):
            yes = accept_chance(tables, sampling, text, row, token=token, patch=patch)
            if yes < 1:
                for own, p in own_law(tables, sampling, text, row).items():
                    settle((*text, own), chance * (1 - yes) * p)
            chance *= yes
            if not chance:
                return
            text = (*text, token)
        for own, p in own_law(tables, sampling, text).items():
            settle((*text, own), chance * p)

    settle(PROMPT, 1.0)
    return found


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_law_is_the_targets(budget, sampling, reference, monkeypatch):
    tables = Tables(7)
    for draft_length, length in ((1, 2), (2, 2)):
        found = law(
            tables,
            sampling,
            budget,
            length=length,
            draft_length=draft_length,
            patch=monkeypatch,
        )
        for text, chance in found.items():
            p, past = 1.0, list(PROMPT)
            for token in text:
                here = reference.probabilities(tables.target[past[-1]], sampling, past, 2, V)
                p *= here.get(token, 0.0)
                past.append(token)
            assert chance == pytest.approx(p, abs=1e-12)


@pytest.mark.parametrize("row", [SparseRow((0, 2), (3, 1)), SparseRow((3,), (4,))])
def test_residual_by_hand(row):
    p = {0: 0.5, 1: 0.2, 2: 0.3, 3: 0.0}
    scores = np.log(np.array([p[0], p[1], p[2]])) + 7.0
    left = np.exp(without(np.array([0, 1, 2]), scores, row) - 7.0)
    expected = [max(0.0, p[t] - row.mass(t)) for t in range(3)]
    assert left == pytest.approx(expected, abs=1e-12)


def test_nothing_left_but_rounding_is_no_error():
    scores = np.log(np.array([0.5, 0.5]))
    assert without(np.array([0, 1]), scores, SparseRow((0, 1), (1, 1))) == pytest.approx(scores)


# --- noise --------------------------------------------------------------------------------------

P, Q = (0.3, 0.3, 0.3, 0.1), SparseRow((0, 1, 2, 3), (1, 2, 2, 11))


def single_position(seeds=1500):
    """Chi-square of one token over seeds, in standard deviations: draw, test, residual."""
    logits = np.log(np.array(P, np.float32))
    counts = np.zeros(V)
    for seed in range(seeds):
        sampling = Sampling(temperature=1.0, seed=seed, ratio=True)
        token = draw(Q, sampling, 2)
        text = [*PROMPT, token]
        choices = decide([logits, logits], sampling, text, 2, V, rows=[Q])
        counts[choices[0].id] += 1
    expected = np.array(P) * seeds
    return float((((counts - expected) ** 2 / expected).sum() - 3) / math.sqrt(6))


def test_one_position_over_seeds():
    assert single_position() < 3.5


def accepted_with_the_drafts_noise(patch):
    uniform = ratio.uniform
    patch.setattr(ratio, "uniform", lambda s, at, _: uniform(s, at, Domain.DRAFT))


def residual_with_the_drafts_noise(patch):
    patch.setattr(rules, "choice_domain", lambda _: Domain.DRAFT)


def raw_logits_in_the_residual(patch):
    def logits(tokens, scores, minus):
        left = scores - [minus.mass(int(t)) for t in tokens]
        return np.log(np.maximum(left - left.min() + 1e-9, 1e-9))

    patch.setattr(rules, "without", logits)


@pytest.mark.parametrize(
    "fault",
    [
        accepted_with_the_drafts_noise,
        residual_with_the_drafts_noise,
        raw_logits_in_the_residual,
    ],
)
def test_a_fault_is_noticed(fault, monkeypatch):
    fault(monkeypatch)
    assert single_position() > 4.5


def test_random_numbers_belong_to_places_and_not_to_calls():
    rows, logits = [Q, Q, Q], [np.log(np.array(P, np.float32))] * 4
    text = [*PROMPT, 0, 1, 2]
    first = decide(logits, HOT, text, 2, V, rows=rows)
    decide(logits, HOT, [*PROMPT, 3, 3, 3], 2, V, rows=rows)
    assert decide(logits, HOT, text, 2, V, rows=rows) == first
    assert len(first) == 4 or first[-1].id != text[1 + len(first)]
    assert all(choice.id == text[2 + i] for i, choice in enumerate(first[:-1]))


# --- rows ---------------------------------------------------------------------------------------


def test_rows_sum_to_their_levels_and_are_near():
    rng = np.random.default_rng(1)
    for _ in range(300):
        n, levels = int(rng.integers(1, 12)), 2 ** int(rng.integers(0, 9))
        ids = np.sort(rng.choice(50, n, replace=False))
        masses = rng.dirichlet(np.full(n, 0.4)) + 1e-12
        row = quantize(ids, masses, levels)
        assert sum(row.counts) == levels
        assert min(row.counts) >= 1
        assert list(row.ids) == sorted(row.ids)
        share = dict(zip(ids.tolist(), masses / masses.sum(), strict=True))
        assert all(abs(row.mass(t) - share[t]) <= 1 / levels for t in row.ids)
    assert quantize(np.array([3, 5]), np.array([0.5, 0.5]), 1) == SparseRow((3,), (1,))


def test_a_row_keeps_the_likeliest_and_never_what_is_ruled_out():
    logits = np.array([0.0, 2.0, 2.0, 1.0, 9.0], np.float32)
    both = spread(logits, HOT, PROMPT, 2, 4, budget=Budget(2, 16))
    assert both.row.ids == (1, 2)
    assert both.dropped == pytest.approx(1 - 2 / (2 + math.exp(-2) + math.exp(-1)), abs=1e-6)
    assert spread(logits, HOT, PROMPT, 2, 4, budget=Budget(1, 8, 1.0)).row.ids == (1,)
    assert 1 not in spread(logits, HOT, PROMPT, 2, 4, budget=Budget(4, 64), never={1}).row.ids
    with pytest.raises(BackendError, match="ruled out|no token"):
        spread(logits, HOT, PROMPT, 2, 2, budget=Budget(1, 1), never={0, 1})


def test_a_wide_row_is_cut_as_a_narrow_one(reference):
    rng = np.random.default_rng(2)
    logits = (rng.standard_normal(20_000) * 3).astype(np.float32)
    wide = spread(logits, HOT, PROMPT, 2, 20_000, budget=Budget(16, 256))
    p = reference.probabilities(logits, HOT, list(PROMPT), 2, 20_000)
    best = sorted(p, key=lambda t: (-p[t], t))[:16]
    assert set(wide.row.ids) <= set(best)
    assert wide.dropped == pytest.approx(1 - sum(p[t] for t in best), abs=1e-5)


def test_a_threshold_finds_its_mass():
    rng = np.random.default_rng(3)
    threshold, dropped = Threshold(0.05), []
    for _ in range(1500):
        logits = (rng.standard_normal(300) * 2.5).astype(np.float32)
        found = spread(logits, HOT, PROMPT, 2, 300, budget=Budget(64, 256, threshold.floor))
        threshold.observe(found.dropped)
        dropped.append(found.dropped)
    assert np.mean(dropped[500:]) == pytest.approx(0.05, abs=0.015)


@pytest.mark.parametrize("budget", [Budget(0, 4), Budget(65, 64), Budget(4, 3), Budget(4, 8, 2.0)])
def test_budgets_out_of_range(budget):
    with pytest.raises(SettingError):
        budget.check()


def test_rules_by_settings():
    assert Sampling(ratio=True).rule is Rule.GREEDY
    assert HOT.rule is Rule.RATIO
    assert Sampling(temperature=1.0).rule is Rule.COUPLED
