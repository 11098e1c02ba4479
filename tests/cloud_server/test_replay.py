from __future__ import annotations

import math

import pytest

from outrider.cloud_server.replay import audit, plain
from outrider.cloud_server.targets.scripted import ScriptedTarget
from outrider.protocol.decoding.rules import choose
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.errors import SettingError

PROMPT = [3, 1, 4]
SAMPLINGS = [
    Sampling(),
    Sampling(temperature=1, seed=5),
    Sampling(temperature=0.8, top_k=5, frequency_penalty=0.4, seed=6),
]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_plain_is_one_choice_after_another(sampling):
    target = ScriptedTarget()
    got = plain(target, PROMPT, sampling, 30)
    ids = list(PROMPT)
    while len(ids) < 33:
        ids.append(choose(target.row(ids), sampling, ids, 3, 64).id)
    assert got == ids[3:]
    assert {p[0][1] for p in list(target.passes)[1:]} == {1}, "one token a pass"


def test_where_it_ends():
    target = ScriptedTarget(n_ctx=10)
    full = plain(target, PROMPT, Sampling(), 100)
    assert len(full) == 7
    assert plain(target, PROMPT, Sampling(), 0) == []
    assert plain(target, PROMPT, Sampling(), 100, lambda out: out[-1] == full[2]) == full[:3]
    for prompt in ([], [1] * 10):
        with pytest.raises(SettingError, match="takes 1 to 9"):
            plain(target, prompt, Sampling(), 5)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_an_identical_answer(sampling):
    target = ScriptedTarget()
    out = plain(target, PROMPT, sampling, 20)
    result = audit(target, PROMPT, out, sampling)
    assert (result.identical, result.exact) == (True, True)
    assert (result.near_ties, result.outside, result.worst, result.tokens) == (0, 0, 0.0, 20)


def test_near_ties_and_what_is_outside():
    target, sampling = ScriptedTarget(), SAMPLINGS[0]
    out = plain(target, PROMPT, sampling, 10)
    row = target.row(PROMPT + out[:4])
    second = int(row[:64].argsort()[-2])
    gap = float(row[:64].max()) - float(row[second])
    changed = [*out[:4], second]
    close = audit(target, PROMPT, changed, sampling, gap + 1e-6)
    assert (close.identical, close.exact, close.near_ties, close.outside) == (False, True, 1, 0)
    assert close.worst == pytest.approx(gap)
    strict = audit(target, PROMPT, changed, sampling, gap - 1e-6)
    assert (strict.exact, strict.near_ties, strict.outside) == (False, 0, 1)


def test_it_goes_on_from_the_answers_own_tokens():
    """One wrong token is one fault, not a fault for each token after it."""
    target, sampling = ScriptedTarget(), SAMPLINGS[1]
    out = plain(target, PROMPT, sampling, 5)
    wrong = (out[2] + 1) % 64
    rest = plain(target, [*PROMPT, *out[:2], wrong], sampling, 5)
    result = audit(target, PROMPT, [*out[:2], wrong, *rest], sampling)
    assert (result.outside, result.tokens) == (1, 8)


def test_a_token_that_a_processor_had_removed():
    target = ScriptedTarget()
    sampling = Sampling(temperature=1, top_k=1)
    token = (plain(target, PROMPT, sampling, 1)[0] + 1) % 64
    result = audit(target, PROMPT, [token], sampling, tolerance=1e9)
    assert (result.exact, result.worst) == (False, math.inf)


def test_an_answer_that_does_not_fit():
    with pytest.raises(SettingError, match="do not fit"):
        audit(ScriptedTarget(n_ctx=10), PROMPT, [1] * 8, Sampling())
