"""Prompt lookup: which suffix decides, and that the index follows cuts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.protocol.errors import SettingError
from outrider.runtime.lm.ngram import CONFIDENCE, NgramLM


def slow_guess(ids: list[int]) -> tuple[int, int]:
    """(suffix length, id that followed its latest earlier occurrence), the obvious way."""
    for n in (3, 2, 1):
        if len(ids) > n:
            for end in range(len(ids) - 1, n - 1, -1):
                if ids[end - n : end] == ids[-n:]:
                    return n, ids[end]
    return 0, 0


@given(
    ids=st.lists(st.integers(0, 3), min_size=1, max_size=30),
    cut=st.integers(0, 30),
    more=st.lists(st.integers(0, 3), min_size=1, max_size=10),
)
def test_rows_equal_the_obvious_search_also_after_a_cut(
    ids: list[int], cut: int, more: list[int]
) -> None:
    lm = NgramLM(4)
    check(lm.feed(ids, len(ids)), [], ids)
    lm.cut(min(cut, len(ids)))
    check(lm.feed(more, len(more)), ids[:cut], more)


def check(rows: np.ndarray, before: list[int], fed: list[int]) -> None:
    for i, row in enumerate(rows):
        n, guess = slow_guess(before + fed[: i + 1])
        p = np.exp(row) / np.exp(row).sum()
        if n:
            assert p.argmax() == guess
            assert p.max() == pytest.approx(CONFIDENCE[n], abs=1e-4)
        else:
            assert (row == 0).all()


def test_the_longest_suffix_decides() -> None:
    lm = NgramLM(100)
    assert lm.feed([1, 2, 3, 50, 9, 3, 60, 1, 2, 3])[0].argmax() == 50
    assert lm.feed([4, 3])[0].argmax() == 4  # of 3 alone: what followed it last


def test_sizes_are_checked() -> None:
    for sizes in ((1, 10), (10, 1)):
        with pytest.raises(SettingError):
            NgramLM(*sizes)
