"""The capacity bench: its oracle beside closed forms, and small worlds of its own."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from outrider.benchmarks import load, record
from outrider.benchmarks.load_bound import bound, ways
from outrider.benchmarks.load_world import SHAPES, Seen, Shape, measure, world
from outrider.simulator.traced import Line, Record

SMALL = Shape("small", 0.022, 0.0005, 0.004, 12)


def always(right: bool) -> Record:
    return Record(
        "always",
        (Line((1,), tuple(range(90)), (right,) * 90, (1.0,) * 90, (right,) * 90, (9.0,) * 90),),
    )


def test_where_all_guesses_are_right_a_step_gains_one_more_than_it_judges() -> None:
    for way in ways(always(True).lines[0], made=99, fresh=98):
        assert (way.gained, way.rows, way.fed) == pytest.approx(
            (way.drafts + 1, 1, way.drafts + 1), rel=0.03
        )


def test_no_schedule_is_quicker_than_a_slower_drafter_that_is_always_right() -> None:
    # One of its guesses stands where the target's own token will be: a step gains what is made.
    for made in (1.5, 2.25, 3.0):
        found = ways(always(True).lines[0], made=made, fresh=made - 0.25)
        assert max(way.gained for way in found) <= made * 1.03
    found = ways(always(True).lines[0], made=0.5, fresh=0.25)
    assert max(way.gained for way in found) == pytest.approx(1)


def test_where_no_guess_is_right_only_plain_streaming_is_worth_it() -> None:
    shape = SHAPES["70b"]
    alone = (1 / 30 - shape.fixed) / (shape.row + shape.each)
    assert bound(always(False), shape, 30, 0.012, 0.5) == pytest.approx(alone, rel=0.03)
    assert ways(always(False).lines[0], made=9, fresh=8)[0].gained == pytest.approx(1, abs=0.01)


def test_the_oracle_is_held_back_by_the_drafter_and_the_memory() -> None:
    code, shape = record.load("qwen-code-t0"), SHAPES["70b"]
    quick, slow = (bound(code, shape, 30, step, 0.5) for step in (0.012, 0.055))
    assert quick > 80
    assert slow < 35
    assert bound(code, replace(shape, sessions=40), 30, 0.012, 0.5) == 40
    assert bound(code, shape, 60, 0.012, 0.5) < quick


def test_a_small_world_is_exact_and_drafting_serves_more() -> None:
    code = record.load("qwen-code-t0")
    plain, _ = load.capacity(code, SMALL, 30, None, 2)
    best, beyond = load.capacity(code, SMALL, 30, "jetson", 5)
    assert plain is not None
    assert best is not None
    assert plain.exact
    assert best.exact
    assert best.clients > plain.clients
    assert best.rate >= 30
    assert best.gap < load.GAP
    assert beyond is None or beyond.clients == best.clients + 1


@pytest.mark.parametrize("scheduler", ["fifo", "cosine"])
def test_rows_of_different_lengths(scheduler) -> None:
    made = world(
        record.load("qwen-prose-t0"), SMALL, 6, scheduler=scheduler, prompts=(40, 300), padded=1e-6
    )
    seen = measure(made.cloud.target.record, made)
    assert seen.exact
    assert seen.busy > 0.5
    assert seen.step_ms > 0


def test_what_binds() -> None:
    seen = Seen(8, 29.0, 0.1, 0.99, True, 0, 0, 0, 0)
    assert load.binds(12, SMALL, 30, None) == "memory"
    assert load.binds(7, SMALL, 30, seen) == "compute"
    assert load.binds(7, SMALL, 30, replace(seen, busy=0.5)) == "latency"
    assert load.binds(7, SMALL, 30, replace(seen, rate=31.0, gap=0.6)) == "latency"


def row(shape: str, drafter: str, name: str, clients: int, axis: str = "grid") -> dict:
    return {
        "axis": axis, "shape": shape, "drafter": drafter, "record": name, "rate": 30,
        "clients": clients, "clients_plain": 10, "bound": 20.0, "ratio": clients / 10,
        "over_bound": clients / 20, "binds": "compute", "exact": True,
    }  # fmt: skip


ROWS = [
    row("70b", "jetson", "qwen-code-t0", 19),
    row("70b", "jetson", "qwen-prose-t0", 15),
    row("70b", "jetson", "qwen-code-t0", 9, axis="context"),
]


def test_the_summary_names_the_worst() -> None:
    fifo = {"tokens_a_second": 100.0, "slowness": 0.1, "exact": True}
    cosine = {"tokens_a_second": 110.0, "slowness": 0.08, "exact": False}
    found = load.summary(ROWS, {"fifo": fifo, "cosine": cosine})
    assert found["clients_ratio_code"] == 1.9
    assert found["clients_ratio_prose"] == 1.5
    assert found["clients_ratio_min"] == 0.9
    assert found["clients_ratio_over_bound"] == 0.75
    assert found["cosine_over_fifo_throughput"] == pytest.approx(1.1)
    assert found["cosine_over_fifo_p95"] == pytest.approx(0.8)
    assert not found["all_exact"]


def test_points_measured_before_are_not_measured_again(tmp_path) -> None:
    todo = list(load.cells(quick=False))
    file = tmp_path / "rows"
    assert load._kept(file, todo) == ([], todo)
    done = [{**asdict(cell), "clients": i} for i, cell in enumerate(todo[3:6])]
    file.write_text("".join(json.dumps(row) + "\n" for row in done))
    assert load._kept(file, todo) == (done, todo[:3] + todo[6:])


def test_the_picture(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    from outrider.benchmarks.load_plot import draw_load

    draw_load({"grid": ROWS}, tmp_path / "load.png")
    assert (tmp_path / "load.png").stat().st_size > 10_000
