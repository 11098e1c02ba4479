"""The benchmark of collaborative decoding, on a few tokens of the embedded pair."""

from __future__ import annotations

import pytest

from outrider.benchmarks import cos, cos_timed, rules
from outrider.edge_client.combining import Combining
from outrider.edge_client.policy import Plan
from outrider.protocol.decoding.sampling import Sampling
from outrider.simulator.profiles import profile


@pytest.fixture(scope="module")
def found() -> cos.Models:
    pytest.importorskip("llama_cpp")
    return cos.Models.load()


def test_one_machine(found: cos.Models) -> None:
    row = cos._local(found, "ensemble", 2, temperature=1.0, ratio="equal", tokens=12)
    assert row["exact"]
    assert 1.0 <= row["speedup"] <= 2.0  # at most one pass a token instead of two
    assert 0 < row["acceptance"] <= 1


def test_over_a_link(found: cos.Models) -> None:
    row = cos._linked(found, "contrastive", 3, temperature=0.0, name="lte", tokens=12)
    assert row["exact"]
    assert row["models"] == 3
    assert row["plain_measured_tokens_per_second"] < row["tokens_per_second"]
    assert row["speedup"] == row["tokens_per_second"] / max(
        row["plain_measured_tokens_per_second"], row["plain_computed_tokens_per_second"]
    )


@pytest.mark.parametrize(
    ("name", "kind", "temperature"),
    [("lan", "contrastive", 1.0), ("lan", "ensemble", 1.0), ("wifi", "contrastive", 1.0)],
)
def test_never_slower_than_plain_where_nothing_is_to_be_gained(
    found: cos.Models, name: str, kind: str, temperature: float
) -> None:
    row = cos._linked(found, kind, 3, temperature=temperature, name=name, tokens=40)
    assert row["speedup"] >= 0.999  # going on from a few lucky guesses lost up to an eighth


@pytest.mark.parametrize(
    ("name", "kind", "models"),
    [("lan", "contrastive", 2), ("lan", "contrastive", 1), ("wifi", "ensemble", 1),
     ("lte", "contrastive", 1)],
)  # fmt: skip
def test_going_on_takes_what_is_predicted(
    found: cos.Models, name: str, kind: str, models: int
) -> None:
    sampling = Sampling(temperature=1.0, seed=11, collaborate=cos.together_of(kind, models + 1))
    rate, answers = cos._run(found, sampling, Plan(1, 16), name=name, tokens=40, models=models)
    alpha = sum(a.accepted for a in answers) / sum(len(a.tokens) for a in answers)
    step, rtt = 0.012 * models, profile(name).rtt
    costs = Combining(alpha, error=0, judged=99, step=step, target=0.03, rtt=rtt, row=0)
    assert costs.going_on(alpha) == pytest.approx(1 / rate, rel=0.15)


def test_rules_by_uplink_rate(found: cos.Models) -> None:
    (row,) = rules.measured(found, lambda _: None, rates=[100e3], tokens=12)
    assert set(row["tokens_per_second"]) == {"cloud", *rules.WAYS}
    share = row["accepted_per_token"]
    assert set(share) == set(rules.WAYS)
    assert all(0 <= part < 1 for part in share.values())
    assert row["winner"] in row["tokens_per_second"]


def test_on_the_clock(found: cos.Models) -> None:
    rows = cos_timed.timed(found, lambda _: None, ("wifi",), 4)
    assert [(row["kind"], row["temperature"]) for row in rows] == [
        (kind, heat) for kind in cos.MIXTURES for heat in (0.0, 1.0)
    ]
    for row in rows:
        assert row["exact"]
        assert row["speedup"] == row["tokens_per_second"] / row["plain_measured_tokens_per_second"]
