"""The scripted law is the same everywhere, and its drafters err exactly as told."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.protocol.errors import SettingError
from outrider.runtime.lm.script import REACH, script_hash, script_rows
from outrider.runtime.lm.scripted import ScriptedLM

IDS = [int(i) for i in np.random.default_rng(0).integers(0, 64, 2000)]


def choices(**settings: object) -> np.ndarray:
    lm = ScriptedLM(64, 4096, seed=7, **settings)  # type: ignore[arg-type]
    return lm.feed(IDS, len(IDS)).argmax(axis=1)


def test_the_law_is_fixed() -> None:
    row = script_rows([1, 2, 3], 7, 64)
    assert row.dtype == np.float32
    assert script_hash([1, 2, 3], 7) == 10439875553834098117
    assert (int(row.argmax()), float(row.max())) == (5, 7.0)
    assert np.sort(row)[-2] < 4.0


def test_only_the_last_few_ids_and_the_seed_count() -> None:
    a, b = script_rows([9, 9, 1, 2, 3], 7, 64), script_rows([5, 1, 2, 3], 7, 64)
    assert REACH == 3
    assert (a == b).all()
    assert (a != script_rows([1, 2, 3], 8, 64)).any()
    assert script_rows([], 7, 64).shape == (64,)


def test_good_bad_and_random() -> None:
    target = np.array([script_rows(IDS[: i + 1], 7, 64).argmax() for i in range(len(IDS))])
    assert (choices() == target).all()
    assert (choices(mode="bad") != target).all()
    assert 0.0 < (choices(mode="random") == target).mean() < 0.05
    assert (choices(mode="mixed", agreement=0.7) == target).mean() == pytest.approx(0.7, abs=0.04)
    assert (choices(mode="mixed", agreement=0.0) != target).all()
    assert (choices(mode="mixed", agreement=1.0) == target).all()


def test_wrong_at_one_position() -> None:
    right = choices() == choices(wrong_at=[10])
    assert np.flatnonzero(~right).tolist() == [9]  # the row after 10 ids predicts position 10


@pytest.mark.parametrize(
    "setting", [{"mode": "moody"}, {"agreement": 1.5}, {"agreement": -0.1}, {"vocab": 1}]
)
def test_settings_out_of_range(setting: dict[str, object]) -> None:
    with pytest.raises(SettingError, match=next(iter(setting))):
        ScriptedLM(**setting)  # type: ignore[arg-type]
