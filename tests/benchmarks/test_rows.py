"""Figures of a row and of a table, on invented numbers."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from outrider.benchmarks.links import show
from outrider.benchmarks.rows import Answer, Cell, Setting, quantile, rate, row, summary
from outrider.benchmarks.strategies import ADAPTIVE, CLOUD, MACHINES, Strategy, lockstep


def answer(*times: float, exact: bool = True) -> Answer:
    return Answer(1.0, times, passes=3, bytes_up=20, bytes_down=40, exact=exact)


def a_row(strategy: Strategy, *answers: Answer, way: str = "virtual") -> dict[str, object]:
    return row(Setting(way, "lan", MACHINES["a"], strategy, "made up", "32 ids"), answers)


def test_the_rate_counts_from_the_first_commit() -> None:
    assert rate([answer(2.0, 2.0, 2.5, 3.0, 3.0)]) == 3 / 1.0
    assert rate([answer(2.0, 3.0), answer(2.0, 2.5)]) == 2 / 1.5


def test_quantile() -> None:
    assert quantile([3, 1, 2], 0.95) == 3
    assert quantile(range(100), 0.95) == 95
    assert quantile([], 0.95) == 0.0


def test_a_row() -> None:
    found = a_row(CLOUD, answer(*(1.5 + i / 10 for i in range(10))), answer(2.0, 2.1))
    assert found["tokens"] == 12
    assert found["ttft_s"] == pytest.approx(0.75)
    assert found["eight_tokens_p95_s"] == pytest.approx(0.8)
    assert found["gap_p95_s"] == pytest.approx(0.1)
    assert found["bytes_up_per_token"] == pytest.approx(40 / 12)
    assert found["target_passes_per_token"] == pytest.approx(6 / 12)
    assert found["exact"] is True
    assert a_row(CLOUD, answer(1.5, 2.0), answer(1.5, 2.0, exact=False))["exact"] is False


def table() -> list[dict[str, object]]:
    ten, twelve = ([1.5 + i / n for i in range(9)] for n in (10, 12))
    slow = [1.6 + i / 5 for i in range(9)]
    return [
        a_row(CLOUD, answer(*ten)),
        a_row(lockstep(4), answer(*slow)),
        a_row(ADAPTIVE, answer(*twelve)),
    ]


def test_a_cell_compares() -> None:
    cell = Cell(table())
    assert cell.over("lockstep") == pytest.approx(12 / 5)
    assert cell.over("lockstep", "cloud") == pytest.approx(12 / 10)
    assert cell.adaptive_over_best == pytest.approx(12 / 10)
    assert cell.latency_regression == pytest.approx(0.0)  # the first token: no later
    assert cell.gap_ratio == pytest.approx(10 / 12)


def test_a_table_is_shown() -> None:
    rows = table()
    figures = summary(rows)
    screen = io.StringIO()
    console = Console(width=100, file=screen)
    show({"rows": rows, "summary": figures, "virtual_summary": figures}, console)
    text = screen.getvalue()
    assert "lockstep 4" in text
    assert "12.0" in text
    assert "latency_regression_max" in text
