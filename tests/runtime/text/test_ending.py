"""Where an answer ends: first end in order, stop before length, the same at both ends."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.protocol.errors import SettingError
from outrider.runtime.text.ending import Ending, Scan

TEXT = {1: b"a", 2: b"b", 3: b"ab", 4: b"", 5: "é".encode(), 6: "é".encode()[:1], 9: b"end?"}
EOS = 9


def ending(stops: list[str] | None = None, most: int | None = None) -> Ending:
    return Ending(stops or [], {EOS}, most, TEXT.__getitem__)


def slow(tokens: list[int], stops: list[str], most: int | None) -> Scan:
    """The obvious way, on the whole answer each time."""
    text = b""
    for i, token in enumerate(tokens, start=1):
        if token == EOS:
            return Scan(i, "stop", len(text), len(text))
        for byte in TEXT[token]:
            text += bytes([byte])
            complete = [s for s in stops if text.endswith(s.encode())]
            if complete:
                keep = len(text) - max(len(s.encode()) for s in complete)
                return Scan(i, "stop", keep, keep)
        if i == most:
            return Scan(i, "length", len(text), len(text))
    held = max(
        (n for n in range(len(text) + 1) for s in stops if n and s.encode().startswith(text[-n:])),
        default=0,
    )
    return Scan(len(tokens), None, len(text), len(text) - held)


@given(
    tokens=st.lists(st.sampled_from(sorted(TEXT)), max_size=20),
    stops=st.lists(st.sampled_from(["ab", "ba", "aab", "é", "bé", "bbb"]), max_size=3),
    most=st.one_of(st.none(), st.integers(1, 20)),
    cuts=st.lists(st.integers(0, 20), max_size=5),
)
def test_blocks_of_any_size_end_the_answer_at_the_same_token(
    tokens: list[int], stops: list[str], most: int | None, cuts: list[int]
) -> None:
    expected = slow(tokens, stops, most)
    answer, kept = ending(stops, most), 0
    edges = sorted({0, len(tokens), *(min(cut, len(tokens)) for cut in cuts)})
    result = answer.scan([])
    for a, b in itertools.pairwise(edges):
        result = answer.scan(tokens[a:b])
        kept += result.keep
        assert result.safe_bytes <= expected.text_bytes
    assert (kept, *result[1:]) == expected
    assert answer.tokens == kept
    again = ending(stops, most)  # a lost state is rebuilt from the tokens
    assert again.scan(tokens) == expected


def test_an_end_token_counts_and_has_no_text() -> None:
    assert ending().scan([1, 2, EOS, 1]) == Scan(3, "stop", 2, 2)


def test_a_stop_string_over_tokens_is_cut_off() -> None:
    answer = ending(["bab"])
    assert answer.scan([1, 2]) == Scan(2, None, 2, 1)
    assert answer.scan([3, 1]) == Scan(1, "stop", 1, 1)
    assert answer.scan([1]) == Scan(0, "stop", 1, 1)


def test_stop_beats_length_on_the_same_token() -> None:
    assert ending(["ab"], 2).scan([1, 2]) == Scan(2, "stop", 0, 0)
    assert ending([], 2).scan([1, EOS]) == Scan(2, "stop", 1, 1)
    assert ending([], 2).scan([1, 2, EOS]) == Scan(2, "length", 2, 2)


def test_a_beginning_of_a_stop_is_kept_when_the_answer_ends_otherwise() -> None:
    assert ending(["abc"], 2).scan([1, 2]) == Scan(2, "length", 2, 2)
    assert ending(["abc"]).scan([1, 2, EOS]) == Scan(3, "stop", 2, 2)


def test_limits() -> None:
    assert ending(most=0).scan([1]) == Scan(0, "length", 0, 0)
    assert Ending([], (), None, TEXT.__getitem__).scan([EOS]) == Scan(1, None, 4, 4)
    with pytest.raises(SettingError, match="max_tokens"):
        ending(most=-1)
