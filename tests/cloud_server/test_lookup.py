"""Prompt look-up: what followed the same ids earlier, and never more than the text has."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.cloud_server.lookup import LONGEST, SHORTEST, Lookup

TEXTS = st.lists(st.integers(0, 2), max_size=40)


def slow(ids: list[int], chain: list[int], limit: int) -> list[int]:
    """The same, by searching: the latest earlier place of the longest repeated tail."""
    tail = [*ids[-LONGEST:], *chain][-LONGEST:]
    for length in range(min(LONGEST, len(tail)), SHORTEST - 1, -1):
        wanted = tail[-length:]
        for end in range(len(ids) - 1, length - 1, -1):
            if ids[end - length : end] == wanted:
                return ids[end : end + limit]
    return []


def test_what_followed_comes_again() -> None:
    assert Lookup().propose([1, 2, 3, 4, 5, 1, 2], [], 3) == [3, 4, 5]
    assert Lookup().propose([1, 2, 3, 4, 5, 1, 2], [3], 9) == [4, 5, 1, 2]


def test_longer_repeats_win_and_later_ones_too() -> None:
    text = [1, 2, 3, 7, 0, 2, 3, 8, 0, 2, 3, 9, 1, 2, 3]
    assert Lookup().propose(text, [], 1) == [7]  # 1 2 3 is longer than 2 3
    assert Lookup().propose([*text[:-3], 5, 2, 3], [], 1) == [9]  # the latest


def test_silent_where_nothing_repeats() -> None:
    assert Lookup().propose([1, 2, 3, 4], [], 5) == []
    assert Lookup().propose([], [], 5) == []
    assert Lookup().propose([1], [], 5) == []


@given(TEXTS, st.lists(st.integers(0, 2), max_size=5), st.integers(0, 6))
def test_as_the_search_and_never_beyond_the_text(
    ids: list[int], chain: list[int], limit: int
) -> None:
    found = Lookup().propose(ids, chain, limit)
    assert found == slow(ids, chain, limit)
    assert len(found) <= limit


@given(st.lists(st.tuples(st.integers(0, 40), TEXTS), max_size=6))
def test_it_follows_the_text_wherever_that_goes(edits: list[tuple[int, list[int]]]) -> None:
    """Text is cut and goes on otherwise, as a session's does from answer to answer."""
    lookup, ids = Lookup(), []
    for keep, more in edits:
        ids = ids[:keep] + more
        found = lookup.propose(ids, [], 4)
        assert found == slow(ids, [], 4)
