"""Combined distributions against their definitions, and the settings of one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from outrider.protocol.decoding.combine import (
    _odds,
    _without,
    combined,
    own_proposal,
    parse,
)
from outrider.protocol.decoding.noise import Domain
from outrider.protocol.decoding.ratio import mass_among
from outrider.protocol.decoding.row import SparseRow
from outrider.protocol.decoding.sampling import Collaboration, Combination, Sampling
from outrider.protocol.decoding.sparse import Budget, spread, uniform
from outrider.protocol.errors import BackendError, SettingError

V, TEXT = 6, [1, 2, 3]


def softmax(pairs):
    tokens, scores = pairs
    e = np.exp(scores - scores.max())
    return dict(zip(tokens.tolist(), (e / e.sum()).tolist(), strict=True))


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("cuts", [{}, {"top_k": 3}, {"top_p": 0.7, "presence_penalty": 0.5}])
def test_ensemble_by_definition(weight, cuts, reference):
    rng = np.random.default_rng(4)
    sampling = Sampling(
        temperature=0.8,
        collaborate=Collaboration(kind=Combination.ENSEMBLE, weight=weight),
        **cuts,
    )
    for _ in range(20):
        z = rng.standard_normal(V).astype(np.float32)
        row = spread(
            rng.standard_normal(V).astype(np.float32), sampling, TEXT, 2, V, budget=Budget(3, 16)
        ).row
        p = reference.probabilities(z, sampling, TEXT, 2, V)
        got = softmax(combined(z, sampling, TEXT, 2, V, other=row))
        for t in range(V):
            r = weight * row.mass(t) + (1 - weight) * p.get(t, 0.0)
            assert got.get(t, 0.0) == pytest.approx(r, abs=1e-12)


@pytest.mark.parametrize("mu", [0.0, 0.1, 1.0])
def test_contrastive_by_definition(mu):
    rng = np.random.default_rng(5)
    collaboration = Collaboration(kind=Combination.CONTRASTIVE, weight=mu)
    sampling = Sampling(temperature=0.7, collaborate=collaboration)
    z = rng.standard_normal(V).astype(np.float32)
    row = SparseRow((1, 4), (3, 13))
    small = [math.log(row.mass(t) or 3 / 16) for t in range(V)]
    e = [math.exp((float(z[t]) - mu * small[t]) / 0.7) for t in range(V)]
    got = softmax(combined(z, sampling, TEXT, 2, V, other=row))
    assert [got[t] for t in range(V)] == pytest.approx([x / sum(e) for x in e], abs=1e-6)


@pytest.mark.parametrize("keep", [1, 2, 4, 8])
def test_the_distance_to_whole_rows_is_bounded(keep):
    """For the ensemble at most the weighted mass that a row leaves out, and its rounding."""
    rng = np.random.default_rng(6)
    hot = Sampling(
        temperature=1.0, collaborate=Collaboration(kind=Combination.ENSEMBLE, weight=0.5)
    )
    for _ in range(30):
        z, small = (rng.standard_normal(40).astype(np.float32) * 2 for _ in range(2))
        found = spread(small, hot, TEXT, 2, 40, budget=Budget(keep, 4096))
        got = softmax(combined(z, hot, TEXT, 2, 40, other=found.row))
        p, q = (np.exp(x.astype(float)) / np.exp(x.astype(float)).sum() for x in (z, small))
        distance = 0.5 * sum(abs(got.get(t, 0) - 0.5 * p[t] - 0.5 * q[t]) for t in range(40))
        assert distance <= 0.5 * found.dropped + 40 / 4096


def test_names():
    assert parse("ensemble=0.5") == Collaboration(kind=Combination.ENSEMBLE, weight=0.5)
    assert parse("contrastive=0.1,keep=8,levels=64") == Collaboration(
        kind=Combination.CONTRASTIVE, weight=0.1, keep=8, levels=64
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ensemble=1.5", "ensemble weight"),
        ("ensemble=-0.1", "ensemble weight"),
        ("contrastive=2", "contrastive mu"),
        ("contrastive=nan", "contrastive mu"),
        ("mixture=0.5", "must be ensemble=W"),
        ("ensemble", "must be ensemble=W"),
        ("ensemble=0.5,size=3", "model 'size' is 3"),
        ("ensemble=0.5,levels=3", "power of two"),
        ("ensemble=0.5,keep=0", "keep"),
    ],
)
def test_names_that_mean_nothing(text, said):
    with pytest.raises(SettingError, match=said):
        parse(text)


@pytest.mark.parametrize("how", ["ensemble=0.4,b=0.3", "contrastive=0.3,b=0.2"])
def test_the_law_of_a_proposal_of_the_clouds(how):
    """Drawn from p, accepted with min(1, r / p), else from what r has more than p: r."""
    rng = np.random.default_rng(7)
    sampling = Sampling(temperature=0.9, ratio=True, collaborate=parse(how))
    for _ in range(20):
        rows = rng.standard_normal((2, V)).astype(np.float32)
        sent = SparseRow((1, 4), (3, 13))
        tokens, scores = combined(rows, sampling, TEXT, 2, V, other=sent)
        own = combined(rows, sampling, TEXT, 2, V, other=None)
        r, p = softmax((tokens, scores)), softmax(own)
        left = softmax((tokens, _without(tokens, scores, own)))
        u = uniform(sampling, len(TEXT), Domain.ACCEPT)
        accept = {}
        for t in range(V):
            log_r = mass_among(tokens, scores, t)
            odds = _odds(log_r, own, t, sampling, len(TEXT))
            assert odds == pytest.approx(math.log(r[t] / p[t]) - math.log(u))
            accept[t] = min(1.0, math.exp(odds) * u)
        refused = sum(p[t] * (1 - accept[t]) for t in range(V))
        for t in range(V):
            assert p[t] * accept[t] + refused * left.get(t, 0.0) == pytest.approx(r[t], abs=1e-9)
        # As if it had been drawn from the edge's row, the law would be another.
        wrong = sum(p[t] * (1 - min(1.0, r[t] / max(1e-9, sent.mass(t)))) for t in range(V))
        assert abs(wrong - refused) > 1e-3


def test_a_proposal_is_a_draw_of_what_the_cloud_thinks():
    rng = np.random.default_rng(8)
    row = rng.standard_normal((2, V)).astype(np.float32)
    found = np.zeros(V)
    for seed in range(4000):
        sampling = Sampling(
            temperature=1.0, ratio=True, seed=seed, collaborate=parse("ensemble=0.4,b=0.3")
        )
        found[own_proposal(row, sampling, TEXT, 2, V)] += 1
    p = softmax(combined(row, sampling, TEXT, 2, V, other=None))
    expected = np.array([p[t] for t in range(V)]) * 4000
    assert float(((found - expected) ** 2 / expected).sum()) < 20.5  # 5 degrees, 0.1 per cent


def test_a_model_that_was_not_evaluated_is_missed():
    sampling = Sampling(collaborate=parse("ensemble=0.4,b=0.3"))
    with pytest.raises(BackendError, match="2 models of the cloud, of which 1"):
        combined(np.zeros(V, np.float32), sampling, TEXT, 2, V, other=None)


def test_the_cloud_without_any_weight_still_proposes():
    sampling = Sampling(collaborate=parse("ensemble=1.0"))
    row = np.arange(V, dtype=np.float32)
    assert own_proposal(row, sampling, TEXT, 2, V) == V - 1
