from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.protocol.decoding import processors
from outrider.protocol.decoding.processors import check_sampling, survivors, top
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.errors import BackendError, SettingError

V, USABLE = 12, 10
PROMPT = [1, 2, 2, 9]
OUTPUT = [3, 4, 4, 1, 7]
IDS = PROMPT + OUTPUT
TIES = np.array([1, 2, 2, -1, 2, 0, -1, 0.5, 0.5, 2, 9, 9], np.float32)  # the last two are padding

SETTINGS = {
    "bias": {"logit_bias": ((0, 1.5), (3, -2.0), (5, 4.0))},
    "bias on padding": {"logit_bias": ((10, 5.0), (2, 1.0))},
    "repetition": {"repetition_penalty": 1.7},
    "repetition below one": {"repetition_penalty": 0.5, "repetition_window": -1},
    "short window": {"repetition_penalty": 1.7, "repetition_window": 2},
    "no window": {"repetition_penalty": 1.7, "repetition_window": 0},
    "presence": {"presence_penalty": 0.8},
    "frequency": {"frequency_penalty": 0.4},
    "negative penalties": {"presence_penalty": -0.6, "frequency_penalty": -0.3},
    "top-k 1": {"top_k": 1},
    "top-k inside a tie": {"top_k": 3},
    "top-k beyond": {"top_k": 50},
    "top-p": {"top_p": 0.6},
    "tiny top-p": {"top_p": 1e-9},
    "min-p": {"min_p": 0.3},
    "min-p 1": {"min_p": 1.0},
    "cuts": {"top_k": 6, "top_p": 0.8, "min_p": 0.1},
    "all": {
        "logit_bias": ((0, 1.5), (3, -2.0)),
        "repetition_penalty": 1.3,
        "repetition_window": 4,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "top_k": 7,
        "top_p": 0.9,
        "min_p": 0.05,
    },
}


def same(case, reference):
    row, sampling, ids, prompt_len, usable = case
    tokens, scores = survivors(row, sampling, ids, prompt_len, usable)
    want = sorted(reference.survivors(row, sampling, list(ids), prompt_len, usable))
    assert tokens.tolist() == [t for t, _ in want]
    assert tokens.dtype == np.int64
    assert scores.dtype == np.float64
    np.testing.assert_allclose(scores, [x for _, x in want], rtol=0, atol=1e-12)


@pytest.mark.parametrize("temperature", [0, 0.3, 1, 1.5])
@pytest.mark.parametrize("name", SETTINGS)
def test_each_processor(name, temperature, reference):
    sampling = Sampling(temperature=temperature, **SETTINGS[name])
    rng = np.random.default_rng(1)
    for row in (TIES, *rng.standard_normal((8, V)).astype(np.float32) * 3):
        for ids in (IDS, PROMPT, IDS[:6]):
            same((row, sampling, ids, len(PROMPT), USABLE), reference)


LOGIT = st.one_of(st.integers(-3, 3).map(float), st.floats(-20, 20, width=32), st.just(-math.inf))


@st.composite
def cases(draw):
    width = draw(st.integers(1, 9))
    usable = draw(st.integers(1, width))
    row = draw(st.lists(LOGIT, min_size=width, max_size=width))
    row[0] = draw(st.floats(-5, 5, width=32))
    ids = draw(st.lists(st.integers(0, width - 1), max_size=12))
    off = st.just(0.0)
    bias = draw(st.dictionaries(st.integers(0, width), st.integers(-3, 3), max_size=3))
    sampling = Sampling(
        temperature=draw(st.sampled_from([0.0, 0.3, 0.7, 1.0, 1.5])),
        top_k=draw(st.integers(0, width + 1)),
        # No share that equal logits can add up to: there the last bit of a sum would decide.
        top_p=draw(st.sampled_from([1.0, 0.9512, 0.5037, 0.2519, 0.0103])),
        min_p=draw(st.sampled_from([0.0, 0.04, 0.3, 1.0])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.1, 2.0, 0.5])),
        repetition_window=draw(st.integers(-1, 13)),
        presence_penalty=draw(st.one_of(off, st.floats(-2, 2))),
        frequency_penalty=draw(st.one_of(off, st.floats(-2, 2))),
        logit_bias=tuple((t, float(b)) for t, b in bias.items()),
    )
    return np.array(row, np.float32), sampling, ids, draw(st.integers(0, len(ids))), usable


@settings(max_examples=400, deadline=None)
@given(case=cases())
def test_any_settings(case, reference):
    same(case, reference)


def test_wide_rows_take_short_cuts_that_change_nothing(monkeypatch):
    """The same survivors with the short cuts as without, on rows wide enough for them."""
    rng = np.random.default_rng(2)
    rows = [rng.standard_normal(20_001).astype(np.float32) * s for s in (0.1, 1, 4)]
    rows += [np.round(rows[1], 1), np.zeros(20_001, np.float32)]
    many = [
        Sampling(temperature=0.8, top_k=40),
        Sampling(temperature=0.8, top_k=600),
        Sampling(temperature=0.8, top_p=0.9),
        Sampling(temperature=0.8, top_p=0.3, min_p=0.1),
        Sampling(temperature=1.2, top_k=500, top_p=0.9),
    ]
    short = [survivors(r, s, [], 0, 20_000) for r in rows for s in many]
    monkeypatch.setattr(processors, "WIDE", 10**9)
    for (tokens, scores), (t, x) in zip(
        short, [survivors(r, s, [], 0, 20_000) for r in rows for s in many], strict=True
    ):
        np.testing.assert_array_equal(tokens, t)
        np.testing.assert_array_equal(scores, x)


def test_top_is_the_head_of_the_total_order():
    rng = np.random.default_rng(3)
    for size, count in ((50, 7), (50, 49), (9000, 64), (9003, 512), (9000, 1)):
        scores = rng.integers(0, max(4, size // 40), size).astype(np.float64)
        want = sorted(range(size), key=lambda i: (-scores[i], i))[:count]
        assert top(scores, count).tolist() == sorted(want)


def test_top_p_counts_the_mass_before():
    """Four equal tokens: at 0.5 the third has exactly half before it and goes."""
    row = np.zeros(4, np.float32)
    for p, left in ((0.25, 1), (0.26, 2), (0.5, 2), (0.51, 3), (0.75, 3), (1.0, 4)):
        tokens, _ = survivors(row, Sampling(temperature=1, top_p=p), [], 0, 4)
        assert tokens.tolist() == list(range(left))


def test_penalties_see_the_drafts_before_a_position():
    sampling = Sampling(frequency_penalty=1.0)
    row = np.zeros(4, np.float32)
    for drafts in ([], [2], [2, 2], [2, 2, 3]):
        _, scores = survivors(row, sampling, [0, 1, *drafts], 2, 4)
        assert scores.tolist() == [0.0, 0.0, -drafts.count(2), -drafts.count(3)]


def test_the_row_is_left_alone():
    row = TIES.copy()
    sampling = Sampling(temperature=1, **SETTINGS["all"])
    survivors(row, sampling, IDS, len(PROMPT), USABLE, banned=(3,))
    survivors(row, Sampling(), IDS, len(PROMPT), USABLE, banned=(3,))
    np.testing.assert_array_equal(row, TIES)


def test_banned_ids_go_before_the_cuts():
    tokens, _ = survivors(TIES, Sampling(temperature=1, top_k=2), [], 0, USABLE, banned=[1, 11])
    assert tokens.tolist() == [2, 4]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0, 1])
def test_rows_that_are_no_numbers(bad, temperature):
    row = TIES.copy()
    row[5] = bad
    with pytest.raises(BackendError, match="not a finite number"):
        survivors(row, Sampling(temperature=temperature), [], 0, USABLE)


def test_bad_padding_does_not_matter():
    row = TIES.copy()
    row[10:] = math.nan
    assert survivors(row, Sampling(), [], 0, USABLE)[0].size == USABLE


def test_nothing_left():
    row = np.full(4, -np.inf, np.float32)
    for usable in (0, 4):
        with pytest.raises(BackendError, match="no token left"):
            survivors(row, Sampling(), [], 0, usable)


def test_bias_on_an_unknown_id_is_refused_when_an_answer_opens():
    check_sampling(Sampling(logit_bias=((9, 1.0),)), 10)
    with pytest.raises(SettingError, match=r"token 10.*end at 9"):
        check_sampling(Sampling(logit_bias=((10, 1.0),)), 10)
