from __future__ import annotations

import math

import msgspec
import pytest

from outrider.protocol.decoding.sampling import MAX_LOGIT_BIAS, Rule, Sampling
from outrider.protocol.errors import SettingError


def test_defaults_are_plain_greedy():
    assert Sampling().rule is Rule.GREEDY
    assert Sampling(temperature=0.1).rule is Rule.COUPLED


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 1e-9),
        ("temperature", 101),
        ("temperature", math.nan),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("repetition_penalty", 0.0),
        ("repetition_window", -2),
        ("presence_penalty", math.inf),
        ("frequency_penalty", -101),
        ("seed", -1),
        ("seed", 2**64),
        ("choice", 2**32),
        ("logit_bias", ((-1, 0.0),)),
        ("logit_bias", ((1, math.nan),)),
        ("logit_bias", ((1, 0.0), (1, 1.0))),
        ("logit_bias", tuple((i, 0.0) for i in range(MAX_LOGIT_BIAS + 1))),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(setting, value):
    with pytest.raises(SettingError, match=setting):
        Sampling(**{setting: value})


def test_survives_the_wire():
    s = Sampling(temperature=0.7, top_k=3, logit_bias=((5, -1.0),), seed=2**64 - 1, choice=2)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(s), type=Sampling) == s
    with pytest.raises(msgspec.ValidationError, match="top_p"):
        msgspec.msgpack.decode(msgspec.msgpack.encode([0.5, 0, 7.0]), type=Sampling)


def test_equal_settings_are_one_key():
    assert len({Sampling(seed=1), Sampling(seed=1), Sampling(seed=2)}) == 2
