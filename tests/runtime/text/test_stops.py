"""Stop strings: the same answer however the bytes are cut, and nothing shown too early."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.protocol.errors import SettingError
from outrider.runtime.text.stops import StopMatcher

few = st.sampled_from([b"a", b"b", b"c", "é".encode()])
texts = st.lists(few, max_size=30).map(b"".join)
stops = st.lists(st.lists(few, min_size=1, max_size=4).map(b"".join), max_size=4)


def slow(text: bytes, stops: list[bytes]) -> tuple[bytes, bytes | None]:
    """(text before the stop, stop): the one complete first, of those the longest."""
    for end in range(len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end - len(stop)], stop
    return text, None


@given(text=texts, stops=stops, cuts=st.lists(st.integers(0, 60), max_size=6))
def test_any_cutting_gives_the_answer_of_the_whole(
    text: bytes, stops: list[bytes], cuts: list[int]
) -> None:
    matcher = StopMatcher(stops)
    expected, stop = slow(text, stops)
    shown = b""
    edges = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    for a, b in itertools.pairwise(edges):
        safe, found = matcher.feed(text[a:b])
        shown += safe
        assert expected.startswith(shown)  # nothing shown that a stop takes back
        if found is None:
            waiting = text[:b][len(shown) :]
            assert matcher.held == waiting
            assert not waiting or any(stop.startswith(waiting) for stop in stops)
    assert matcher.matched == stop
    assert shown + matcher.flush() == expected


def test_a_stop_over_several_chunks() -> None:
    matcher = StopMatcher(["\n\nUser:"])
    assert matcher.feed(b"Hello.\n") == (b"Hello.", None)
    assert matcher.feed(b"\nUs") == (b"", None)
    assert matcher.held == b"\n\nUs"
    assert matcher.feed(b"eful\n") == (b"\n\nUseful", None)
    assert matcher.feed(b"\nUser: no") == (b"", b"\n\nUser:")
    assert matcher.feed(b"more") == (b"", b"\n\nUser:")
    assert matcher.flush() == b""
    assert matcher.feed(b"new") == (b"new", None)


def test_which_stop_wins() -> None:
    assert StopMatcher(["abc", "ab"]).feed(b"xabc") == (b"x", b"ab")  # complete first
    assert StopMatcher(["bc", "abc"]).feed(b"xabc") == (b"x", b"abc")  # both: the longest
    assert StopMatcher(["abcd", "bc"]).feed(b"xabcd") == (b"xa", b"bc")  # complete first
    assert StopMatcher(["a", "a"]).feed(b"ba") == (b"b", b"a")


def test_half_a_character_can_be_held_and_released() -> None:
    matcher = StopMatcher(["👍"])
    assert matcher.feed("👍".encode()[:2]) == (b"", None)
    rest = "👎".encode()[2:]
    assert matcher.feed(rest) == ("👎".encode(), None)


def test_no_stops_hold_nothing() -> None:
    matcher = StopMatcher([])
    assert matcher.feed(b"anything\xff") == (b"anything\xff", None)
    assert matcher.held == matcher.flush() == b""


@pytest.mark.parametrize("stop", ["", b"", "\ud800"])
def test_impossible_stops_are_refused(stop: str | bytes) -> None:
    with pytest.raises(SettingError, match="stop string"):
        StopMatcher(["fine", stop])
