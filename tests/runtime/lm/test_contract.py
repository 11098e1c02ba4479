"""What every language model promises, whichever backend runs it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outrider.protocol.errors import BackendError
from outrider.runtime.lm.base import CausalLM, common_prefix, follow
from outrider.runtime.lm.selfcheck import check_rewind

Make = Callable[[], CausalLM]
N_CTX = 64
SAME_SHAPE = 1e-5
# Rounding differs with the number of ids a pass; int8 scales its activations by the whole pass.
OTHER_SHAPE = {"onnx-int8": 0.3}


def tolerance(make: Make) -> float:
    return OTHER_SHAPE.get(make.kind, 1e-3)  # type: ignore[attr-defined]


def some_ids(n: int, seed: int = 0, width: int = 64) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(0, width, n)]


def test_feeding_at_once_equals_feeding_one_by_one(make: Make) -> None:
    ids = some_ids(20)
    at_once = make().feed(ids, len(ids))
    lm = make()
    one_by_one = np.concatenate([lm.feed([token]) for token in ids])
    assert at_once.shape == one_by_one.shape == (20, lm.row_width)
    assert at_once.dtype == np.float32
    assert np.abs(at_once - one_by_one).max() <= tolerance(make)


def test_a_cut_leaves_no_trace(make: Make) -> None:
    start, wrong, right = some_ids(10, 1), some_ids(7, 2), some_ids(5, 3)
    lm, fresh = make(), make()
    for model in (lm, fresh):
        model.feed(start, 0)
    lm.feed(wrong, 7)
    lm.cut(10)
    assert list(lm.ids) == start
    assert np.abs(lm.feed(right, 5) - fresh.feed(right, 5)).max() <= SAME_SHAPE
    assert list(lm.ids) == start + right


def test_cut_to_nothing_and_to_everything(make: Make) -> None:
    lm = make()
    first = lm.feed([5, 6, 7], 3)
    lm.cut(3)
    assert list(lm.ids) == [5, 6, 7]
    lm.cut(0)
    lm.cut(0)
    assert list(lm.ids) == []
    assert np.abs(lm.feed([5, 6, 7], 3) - first).max() <= SAME_SHAPE


@pytest.mark.parametrize("length", [-1, 4, 1000])
def test_cut_outside_of_the_cache_is_refused(make: Make, length: int) -> None:
    lm = make()
    lm.feed([1, 2, 3])
    with pytest.raises(BackendError, match="3 are cached"):
        lm.cut(length)
    assert list(lm.ids) == [1, 2, 3]


def test_a_fork_is_independent(make: Make) -> None:
    lm, fresh = make(), make()
    start, mine, theirs = some_ids(9, 4), some_ids(4, 5), some_ids(6, 6)
    lm.feed(start, 0)
    twin = lm.fork()
    assert list(twin.ids) == start
    lm.cut(5)
    lm.feed(mine, 0)
    fresh.feed(start, 0)
    assert np.abs(twin.feed(theirs, 6) - fresh.feed(theirs, 6)).max() <= SAME_SHAPE
    assert list(lm.ids) == start[:5] + mine
    twin.close()
    fresh.cut(5)
    fresh.feed(mine, 0)
    assert np.abs(lm.feed([3]) - fresh.feed([3])).max() <= SAME_SHAPE


def test_a_full_context_is_refused_with_numbers_and_changes_nothing(make: Make) -> None:
    lm = make()
    lm.feed(some_ids(60), 0)
    with pytest.raises(BackendError, match=r"holds 64 ids; 60 are cached and 5 more"):
        lm.feed([1, 2, 3, 4, 5])
    assert len(lm.ids) == 60
    assert lm.feed([1, 2, 3, 4], 4).shape[0] == 4
    with pytest.raises(BackendError, match="do not fit"):
        lm.feed([1])
    lm.cut(63)
    assert np.isfinite(lm.feed([1])).all()


@pytest.mark.parametrize("bad", [-1, None, 2**31 + 5])
def test_an_id_out_of_range_is_refused_by_name(make: Make, bad: int | None) -> None:
    lm = make()
    token = lm.row_width if bad is None else bad
    with pytest.raises(BackendError, match=f"id {token} is not a token"):
        lm.feed([1, token, 2])
    assert list(lm.ids) == []


def test_any_number_of_rows(make: Make) -> None:
    ids = some_ids(6, 7)
    whole = make().feed(ids, 6)
    for rows in range(7):
        lm = make()
        part = lm.feed(ids, rows)
        assert part.shape == (rows, lm.row_width)
        assert list(lm.ids) == ids
        assert rows == 0 or np.abs(part - whole[-rows:]).max() <= SAME_SHAPE
        lm.close()


@pytest.mark.parametrize(("ids", "rows"), [([], 0), ([], 1), ([1, 2], 3), ([1, 2], -1)])
def test_impossible_numbers_of_rows_are_refused(make: Make, ids: list[int], rows: int) -> None:
    lm = make()
    with pytest.raises(BackendError):
        lm.feed(ids, rows)
    assert list(lm.ids) == []


def test_rows_are_the_callers_to_keep(make: Make) -> None:
    lm = make()
    rows = lm.feed(some_ids(5, 8), 5)
    copy = rows.copy()
    lm.cut(1)
    lm.feed(some_ids(9, 9), 9)
    lm.close()
    assert (rows == copy).all()


def test_numpy_ids_are_welcome_and_kept_as_ints(make: Make) -> None:
    lm = make()
    lm.feed(np.array([3, 4, 5]), 1)  # type: ignore[arg-type]
    assert list(lm.ids) == [3, 4, 5]
    assert all(type(token) is int for token in lm.ids)


def test_close_twice_and_use_after_close(make: Make) -> None:
    lm = make()
    lm.feed([1, 2])
    lm.close()
    lm.close()
    for use in (lambda: lm.feed([1]), lambda: lm.cut(0), lm.fork, lambda: lm.ids):
        with pytest.raises(BackendError, match="closed"):
            use()


def test_the_rewind_check_passes_and_leaves_nothing(make: Make) -> None:
    lm = make()
    lm.feed([1, 2, 3])
    check_rewind(lm)
    assert list(lm.ids) == []


def test_follow_reuses_the_common_prefix(make: Make) -> None:
    lm, fresh = make(), make()
    follow(lm, [1, 2, 3, 4, 5, 6])
    rows = follow(lm, [1, 2, 3, 9, 9], 2)
    assert list(lm.ids) == [1, 2, 3, 9, 9]
    assert np.abs(rows - fresh.feed([1, 2, 3, 9, 9], 2)).max() <= tolerance(make)
    again = follow(lm, [1, 2, 3, 9, 9], 1)
    assert np.abs(again - rows[-1:]).max() <= tolerance(make)
    assert follow(lm, [1, 2], 0).shape == (0, lm.row_width)
    assert list(lm.ids) == [1, 2]


def test_common_prefix() -> None:
    assert common_prefix([], [1]) == 0
    assert common_prefix([1, 2], (1, 2, 3)) == 2
    assert common_prefix([1, 2, 3], [1, 5, 3]) == 1


steps = st.lists(
    st.one_of(
        st.tuples(st.just("feed"), st.lists(st.integers(0, 63), min_size=1, max_size=12)),
        st.tuples(st.just("cut"), st.floats(0, 1)),
        st.tuples(st.just("fork"), st.just(None)),
    ),
    max_size=12,
)


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps=steps)
def test_any_history_equals_a_fresh_start(make: Make, steps: list[tuple[str, object]]) -> None:
    lm, expected = make(), []
    for verb, what in steps:
        if verb == "feed" and len(expected) + len(what) < N_CTX:  # type: ignore[arg-type]
            rows = lm.feed(what, len(what))  # type: ignore[arg-type]
            expected += what  # type: ignore[operator]
            assert rows.shape[0] == len(what)  # type: ignore[arg-type]
        elif verb == "cut":
            length = round(what * len(expected))  # type: ignore[operator]
            lm.cut(length)
            del expected[length:]
        elif verb == "fork":
            twin = lm.fork()
            lm.close()
            lm = twin
        assert list(lm.ids) == expected
    fresh = make()
    if expected:
        fresh.feed(expected, 0)
    difference = np.abs(lm.feed([1], 1) - fresh.feed([1], 1)).max()
    lm.close()
    fresh.close()
    assert difference <= tolerance(make)
