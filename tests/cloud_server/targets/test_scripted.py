from __future__ import annotations

import numpy as np
import pytest

from outrider.cloud_server import replay
from outrider.cloud_server.targets.base import Row
from outrider.cloud_server.targets.scripted import ScriptedTarget
from outrider.protocol.decoding.rules import choose
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.errors import BackendError, SettingError

GREEDY = Sampling()


def row(ids, *, cut=0, want=1, slot=0, sampling=GREEDY):
    return Row(slot, cut, ids, want, sampling, 1)


def test_rows_are_a_function_of_the_last_ids():
    a, b = ScriptedTarget(padding=3), ScriptedTarget(padding=3)
    assert np.array_equal(a.row([9, 1, 2, 3]), b.row([8, 8, 1, 2, 3]))
    assert not np.array_equal(a.row([1, 2, 3]), a.row([1, 2, 4]))
    assert not np.array_equal(a.row([1, 2, 3]), ScriptedTarget(padding=3, seed=1).row([1, 2, 3]))
    assert a.row([1]).shape == (67,)


def test_the_text_has_variety():
    text = replay.plain(ScriptedTarget(), [1], GREEDY, 200)
    assert len(set(text)) > 30


@pytest.mark.parametrize("peak", [0.0, 8.0])
def test_peak_makes_it_predictable(peak):
    target = ScriptedTarget(peak=peak)
    s = Sampling(temperature=1)
    same = sum(
        choose(target.row([i]), s, [i], 1, 64).id == int(target.row([i])[:64].argmax())
        for i in range(64)
    )
    assert same > 50 if peak else same < 30


def test_decisions_are_those_of_the_rules():
    target = ScriptedTarget(padding=4)
    sampling = Sampling(temperature=1, seed=3, frequency_penalty=0.5)
    ids = [5, 6, 7, 8]
    decided = target.forward([row(ids, want=3, sampling=sampling)])[0]
    want = [choose(target.row(ids[:n]), sampling, ids[:n], 1, 64) for n in (2, 3, 4)]
    assert decided.ids == tuple(c.id for c in want)
    assert decided.margins == tuple(c.margin for c in want)
    assert all(
        best == own for best, own in target.score(row(ids, want=3, sampling=sampling), decided.ids)
    )
    assert max(decided.ids) < 64


def test_slots_check_what_they_hold():
    target = ScriptedTarget(slots=2, n_ctx=16)
    target.forward([row([1, 2, 3])])
    with pytest.raises(
        BackendError, match="slot 0 keeps 3 ids, but the slot holds 2 at position 1"
    ):
        target.forward([row([1, 9, 3, 4], cut=3)])
    with pytest.raises(BackendError, match="keeps 4 ids of a cache of 3"):
        target.forward([row([1, 2, 3, 4, 5], cut=4)])
    with pytest.raises(BackendError, match="cache of 0"):
        target.forward([row([1, 2], cut=1, slot=1)])
    with pytest.raises(BackendError, match="context holds 16"):
        target.forward([row([1] * 17)])
    with pytest.raises(BackendError, match="twice"):
        target.forward([row([1]), row([1])])
    assert target.lengths() == [3, 0]
    target.forward([row([1, 2, 9, 4], cut=2)])
    assert target.cached[0] == [1, 2, 9, 4]
    assert list(target.passes) == [((0, 3, 1),), ((0, 2, 1),)]


def test_closing():
    target = ScriptedTarget()
    target.close()
    target.close()
    with pytest.raises(BackendError, match="closed"):
        target.forward([row([1])])


@pytest.mark.parametrize("setting", ["vocabulary", "order", "n_ctx", "slots"])
def test_settings(setting):
    with pytest.raises(SettingError, match=setting):
        ScriptedTarget(**{setting: 0})
