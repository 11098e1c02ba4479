"""Strategies in virtual time: exact text, the same figures every time, and what theory says."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest

from outrider.benchmarks import record, virtual
from outrider.benchmarks.rows import Cell, summary
from outrider.benchmarks.strategies import (
    ADAPTIVE,
    BRANCH_CACHE,
    CLOUD,
    MACHINES,
    NGRAM,
    STREAMING,
    Strategy,
    co_located,
    lockstep,
    pearl,
    table,
)
from outrider.benchmarks.table import Place, cell_rows, find_link, find_record
from outrider.benchmarks.virtual import Load, run

SMALL = Load(answers=2, tokens=40)
ROW = {
    "way": str,
    "link": str,
    "machine": str,
    "strategy": str,
    "drafters": str,
    "record": str,
    "tokens": int,
    "tokens_per_second": float,
    "ttft_s": float,
    "eight_tokens_p95_s": float,
    "gap_p95_s": float,
    "bytes_up_per_token": float,
    "bytes_down_per_token": float,
    "target_passes_per_token": float,
    "exact": bool,
    "paced": bool,
}


@pytest.mark.parametrize("machine", MACHINES)
def test_every_strategy_gives_the_targets_text(machine: str) -> None:
    rows = cell_rows(Place(machine, "lte", "independent 0.8", SMALL))
    assert [r["strategy"] for r in rows] == [s.name for s in table(MACHINES[machine])]
    for r in rows:
        assert {name: type(r[name]) for name in ROW} == ROW
        assert r["exact"]
        assert r["tokens"] == SMALL.answers * SMALL.tokens
        assert all(math.isfinite(v) and v >= 0 for v in r.values() if isinstance(v, float))


def test_the_summary_has_its_figures() -> None:
    rows = cell_rows(Place("a", "loopback", "independent 0.8", SMALL))
    found = summary(rows)
    assert found["all_exact"]
    assert found["min_tokens"] == 80
    assert found["adaptive_over_best_min"] == pytest.approx(Cell(rows).adaptive_over_best)
    assert found["streaming_over_lockstep_mean"] == pytest.approx(Cell(rows).over("lockstep"))
    best = Cell(rows).over("lockstep", "cloud")
    assert found["streaming_over_best_baseline_mean"] == pytest.approx(best)
    assert found["latency_regression_max"] == pytest.approx(Cell(rows).latency_regression)


def test_a_part_without_class_a_has_no_means() -> None:
    found = summary(cell_rows(Place("c", "lte", "independent 0.8", SMALL), [CLOUD, ADAPTIVE]))
    assert "streaming_over_lockstep_mean" not in found
    assert found["links_of_the_means"] == []


def test_the_same_run_twice_is_the_same() -> None:
    link, pair = find_link("starlink", 3), find_record("independent 0.8")
    runs = [run(ADAPTIVE, MACHINES["a"], link, pair, SMALL, seed=3) for _ in range(2)]
    assert runs[0] == runs[1]


def rate(strategy: Strategy, machine: str, rtt_ms: float, alpha: float = 0.8) -> float:
    rows = cell_rows(
        Place(machine, f"rtt {rtt_ms}", f"independent {alpha}", Load(2, 200)), [strategy]
    )
    return float(rows[0]["tokens_per_second"])


def test_theory_of_cloud_and_lockstep() -> None:
    """1 / T, and E(g) / (g t + R + T) for the best length."""
    assert rate(CLOUD, "a", 30) == pytest.approx(1 / 0.03, rel=0.01)
    expected = (1 - 0.8**5) / 0.2 / (4 * 0.012 + 0.03 + 0.03)
    assert rate(lockstep(4), "a", 30) == pytest.approx(expected, rel=0.08)


@pytest.mark.parametrize("length", [1, 2, 4, 8, 16])
def test_no_round_of_lockstep_waits_for_more_than_its_draft(length: int) -> None:
    """Not the last one either, whose draft is shorter: it says that no more will come."""
    machine, pair = MACHINES["c"], find_record("independent 0.8")
    answers = run(lockstep(length), machine, find_link("rtt 10", 1), pair, Load(4, 50))
    longest = machine.target_pass + length * machine.draft_step + 0.01
    for answer in answers:
        assert max(b - a for a, b in pairwise(answer.times)) < 1.1 * longest


def test_streaming_beats_both() -> None:
    streaming = rate(STREAMING, "a", 30)
    assert streaming > 1.25 * rate(CLOUD, "a", 30)
    assert streaming > 1.25 * rate(lockstep(4), "a", 30)


def test_nothing_to_gain_nothing_lost() -> None:
    """A drafter that is slower than the target, or always wrong, costs nothing."""
    assert rate(ADAPTIVE, "b", 30) == pytest.approx(rate(CLOUD, "b", 30), rel=0.01)
    assert rate(ADAPTIVE, "a", 30, alpha=0.0) == pytest.approx(rate(CLOUD, "a", 30), rel=0.03)


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("machine", ["a", "c"])
@pytest.mark.parametrize("name", ["qwen-prose-t1", "embedded-source-t1"])
def test_a_poor_drafter_is_not_given_up_where_it_pays(
    name: str, machine: str, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found slower than the cloud alone on a hard stretch, it is still faster on the whole; also
    where the cloud does not say what its passes take."""
    if not told:
        monkeypatch.setattr(virtual, "SIZES", ())
    strategies = [CLOUD, NGRAM, lockstep(2), lockstep(4), STREAMING, BRANCH_CACHE, ADAPTIVE]
    rows = cell_rows(Place(machine, "loopback", name), strategies)
    assert Cell(rows).adaptive_over_best > 0.95


@pytest.mark.parametrize("link", ["loopback", "lte"])
@pytest.mark.parametrize("name", ["qwen-code-t1", "qwen-prose-t1"])
def test_where_passes_over_several_tokens_are_dear_it_stops(name: str, link: str) -> None:
    """Class d: a pass costs nearly as many times as much as it judges tokens."""
    strategies = [CLOUD, STREAMING, ADAPTIVE]
    rates = [
        float(r["tokens_per_second"])
        for r in cell_rows(Place("d", link, name, Load(4, 200)), strategies)
    ]
    assert rates[2] >= 0.97 * rates[0]


def test_co_located_users_are_behind_the_link() -> None:
    machine, pair = MACHINES["a"], find_record("independent 0.8")
    near = run(co_located(4), machine, find_link("rtt 0", 1), pair, SMALL)
    far = run(co_located(4), machine, find_link("rtt 100", 1), pair, SMALL)
    for here, there in zip(near, far, strict=True):
        assert there.times[0] - here.times[0] == pytest.approx(0.1)
        assert there.times[-1] - there.times[0] == pytest.approx(here.times[-1] - here.times[0])
        assert there.bytes_up == 0 < there.bytes_down


def test_pearl_drafts_as_long_as_a_pass_lasts() -> None:
    assert [pearl(m).name for m in MACHINES.values()] == [
        "pearl 2",
        "pearl 1",
        "pearl 16",
        "pearl 1",
    ]


def test_the_drafters_of_a_row_are_named() -> None:
    assert CLOUD.drafters == "edge: none, cloud: none"
    assert NGRAM.drafters == "edge: none, cloud: n-gram"
    assert ADAPTIVE.drafters == "edge: model, cloud: n-gram"
    assert co_located(2).drafters == "edge: none, cloud: model"
    published = [s for s in table(MACHINES["a"]) if s.group in ("published", "co-located")]
    assert all(s.deviation for s in published)


@pytest.mark.parametrize("name", record.names())
def test_records_replay(name: str) -> None:
    pair = record.load(name)
    for line in pair.lines:
        assert len(line.tokens) == len(line.right) == len(line.confidence) > 0
        assert all(0 <= c <= 1 for c in line.confidence)
        assert pair.find(line.prompt, len(line.prompt)) is line
    rows = cell_rows(Place("a", "wifi", name), [CLOUD, replace(ADAPTIVE, lookup=0)])
    assert all(r["exact"] and r["tokens"] == sum(len(x.tokens) for x in pair.lines) for r in rows)
    # Those of the edge's guesses that the record calls right are the ones that spare passes.
    assert rows[1]["target_passes_per_token"] < 1


def test_a_recorded_text_repeats_where_it_did() -> None:
    code = Place("a", "loopback", "qwen-code-t0")
    plain, ngram = cell_rows(code, [CLOUD, NGRAM])
    assert ngram["target_passes_per_token"] < 0.95 * plain["target_passes_per_token"]
    made_up = Place("a", "loopback", "independent 0.8", SMALL)
    assert cell_rows(made_up, [NGRAM])[0]["target_passes_per_token"] == 1.0
