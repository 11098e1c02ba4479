"""What the rows of the placement experiment say, from rows made up by hand; its pictures."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from outrider.benchmarks import uara_table
from outrider.cloud_server.placement import association
from outrider.simulator.cell.experiment import THRIFTS, Row

POINTS = ((30, 4), (60, 8))
LATENCY = {
    ("random", "equal"): 4.0,
    ("max-sinr", "equal"): 2.5,
    ("max-compute", "equal"): 2.0,
    ("max-sinr", "optimised"): 2.4,
    ("greedy", "optimised"): 1.25,
    ("tma", "equal"): 2.0,
    (association.DEFAULT, "optimised"): 1.0,
    ("hybrid-masac", "learned"): 1.5,
}


def rows() -> list[Row]:
    """Latency as above, twice as long at 60 devices; streamed, greedy is the quickest."""
    found = []
    for (devices, servers), seed, ((name, kind), latency) in product(
        POINTS, range(3), LATENCY.items()
    ):
        scale = devices / 30 * (1 + 0.1 * seed)
        streamed = 0.5 if name == "greedy" else latency
        times = {"latency": latency * scale, "streamed": streamed * scale}
        where = (name, kind, devices, servers, seed, 10)
        found.append(Row(*where, 20.0, **times, cost=latency, energy=0.1, low=0.2, high=0.3))
    ours = found[len(LATENCY) - 2]
    trade = [
        replace(ours, devices=60, servers=8, seed=seed, thrift=weight, low=0.2 * 20 / weight)
        for weight, seed in product(THRIFTS[1:], range(3))
    ]
    return found + trade


def test_reductions_by_hand() -> None:
    result = uara_table.result(rows(), POINTS)
    mean = (0.75 + 0.6 + 0.5) / 3
    assert result["reduction_mean"] == pytest.approx(mean)
    assert result["reduction_best"] == pytest.approx(mean)
    assert result["reduction_interval"] == pytest.approx(0.0, abs=1e-12)
    assert result["reduction_vs_greedy_mean"] == pytest.approx(0.2)
    assert result["reduction_vs_best_baseline_mean"] == pytest.approx(0.2)
    assert result["best_baseline"] == "greedy with optimised shares"
    assert result["reductions"]["max-sinr, optimised"][0] == pytest.approx(1 - 1 / 2.4)
    assert result["reduction_of_tma_equal"]["mean"][0] == pytest.approx((0.5 + 0.2 + 0.0) / 3)
    assert result["reduction_vs_greedy_mean_streamed"] == pytest.approx(-1.0)
    assert result["learned_reduction_vs_greedy"]["hybrid-masac"][0] == pytest.approx(-0.2)


def test_ranks_by_both_delays() -> None:
    table = uara_table.result(rows(), POINTS)["ranking"]
    first = table[0]
    assert (first["policy"], first["latency_rank"], first["streamed_rank"]) == ("tma-moves", 1, 2)
    greedy = next(row for row in table if row["policy"] == "greedy")
    assert (greedy["latency"], greedy["latency_rank"], greedy["streamed_rank"]) == (1.0, 2, 1)


def test_the_trade_of_energy() -> None:
    trade = uara_table.result(rows(), POINTS)["thrift"]
    assert [row["thrift"] for row in trade] == list(THRIFTS)
    assert trade[-1]["energy_low_battery"] == pytest.approx(0.04)  # joules
    assert trade[-1]["energy_low_battery_over_first"] == pytest.approx(0.2)


def test_the_sentence_on_learning() -> None:
    say = uara_table.verdict
    assert say({"a": (0.1, 0.05)}) == "a beats greedy association with optimised shares"
    for gains in ({"a": (0.1, 0.2)}, {"a": (-0.1, 0.05)}):
        assert say(gains) == "learning does not beat greedy association with optimised shares"


def test_pictures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from outrider.benchmarks.uara_plots import draw

    result = uara_table.result(rows(), POINTS) | {"default_policy": association.DEFAULT}
    draw(result, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
