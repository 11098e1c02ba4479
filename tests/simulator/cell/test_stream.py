"""The streaming engine's delay: the table is what virtual time says, and how it is looked up."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.benchmarks import stream_table
from outrider.cloud_server.placement.problem import Placement
from outrider.protocol.errors import SettingError
from outrider.simulator.cell import model
from outrider.simulator.cell.model import Cell, Settings
from outrider.simulator.cell.stream import AXES, StreamTable, table

TASKS = {name: number for number, name in enumerate(table().tasks)}


def test_its_tasks_and_axes_are_those_that_are_used() -> None:
    assert list(table().tasks) == [task.name for task in model.TASKS] == list(stream_table.RECORDS)
    axes = (
        stream_table.DRAFT_STEPS,
        stream_table.RTTS,
        stream_table.UPLINKS,
        stream_table.PASSES,
    )
    for name, ours, theirs in zip(AXES, table().axes, axes, strict=True):
        assert tuple(ours) == theirs, name
    for phone in model.PHONES:  # the middle of the axis is where devices are
        step = model.DRAFT_COST / phone
        assert stream_table.DRAFT_STEPS[0] < step < stream_table.DRAFT_STEPS[-1]


@pytest.mark.parametrize(("task", "at"), [("code", (1, 1, 2, 3)), ("chat", (0, 2, 1, 2))])
def test_the_table_is_what_the_virtual_world_says(task: str, at: tuple[int, ...]) -> None:
    """Two fifths are left for the engine to change: more, and the table is to be made again
    (``python -m outrider.benchmarks.stream_table``)."""
    values = [float(axis[k]) for axis, k in zip(table().axes, at, strict=True)]
    again = stream_table.seconds(task, *values)
    assert table().seconds[(TASKS[task], *at)] == pytest.approx(again, rel=0.4)


def small(seconds: np.ndarray) -> StreamTable:
    axes = (
        np.array([1.0, 2.0]),
        np.array([1.0, 2.0]),
        np.array([10.0, 100.0]),
        np.array([1.0, 4.0]),
    )
    return StreamTable(("a", "b"), axes, seconds)


def test_looked_up_between_points_and_beyond() -> None:
    seconds = np.ones((2, 2, 2, 2, 2))
    seconds[0, ..., 0], seconds[0, ..., 1] = 1.0, 4.0  # as long as a pass
    seconds[1, :, :, 1, :] = 0.25  # quicker on a quick uplink
    found = small(seconds).look_up(
        np.array([0, 0, 0, 0, 1, 1, 1]),
        np.array([1.0, 1.5, 1.0, 1.0, 1.0, 9.0, 1.0]),
        1.0,
        np.array([10.0, 10.0, 10.0, 10.0, 10.0, 1e9, 31.6227766]),
        np.array([1.0, 2.0, 0.5, 8.0, 1.0, 1.0, 1.0]),
    )
    # at a point, half way by logarithms, below the rim, in proportion above it; then the uplink
    np.testing.assert_allclose(found, [1.0, 2.0, 1.0, 8.0, 1.0, 0.25, 0.5], rtol=1e-6)


def test_what_is_no_table() -> None:
    for seconds in (np.ones((2, 2, 2, 2)), np.zeros((2, 2, 2, 2, 2))):
        with pytest.raises(SettingError, match="a table of seconds a token must be"):
            small(seconds)


def test_a_slot_by_hand() -> None:
    cell = Cell(Settings(3, 2), np.random.default_rng(0))
    cell.queue = np.array([0.5, 0.0])
    problem = cell.problem()
    chosen = Placement(np.array([0, 0, 1]), np.array([0.5, 0.5, 1.0]), np.array([0.25, 0.75, 1.0]))
    i = 1
    rate = problem.bits[i] / float(problem.uplink(np.array(0.5), np.array(i), np.array(0))) / 8
    each = table().look_up(
        cell.kinds[[i]],
        model.DRAFT_COST / cell.phone[[i]],
        0.03,
        np.array([rate]),
        cell.reading[[0]] / 0.75,
    )[0]
    context = cell.context[i] * model.VERIFY_COST / (0.75 * cell.card[0])
    expected = 0.5 + 0.03 + context + cell.drafts[i] * each
    assert cell.streamed(problem, chosen)[i] == pytest.approx(expected)


def test_more_compute_is_never_slower() -> None:
    cell = Cell(Settings(30, 4), np.random.default_rng(1))
    problem = cell.problem()
    server = np.zeros(30, np.int64)
    band = np.full(30, 1 / 30)
    slow, fast = (
        cell.streamed(problem, Placement(server, band, np.full(30, share)))
        for share in (0.01, 0.03)
    )
    assert (fast <= slow).all()
    assert fast.mean() < 0.7 * slow.mean()
