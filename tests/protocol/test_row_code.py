"""Rows as bytes: exact both ways, as short as they can be, and deaf to nonsense."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.protocol.decoding.row import SparseRow
from outrider.protocol.errors import DecodeError, LocalProtocolError
from outrider.protocol.packing import Reader, Writer
from outrider.protocol.row_code import put_rows, row_bits, take_rows

V = 151_936


def made(rng: random.Random, size: int, keep: int, levels: int) -> SparseRow:
    ids = tuple(sorted(rng.sample(range(size), keep)))
    cuts = [0, *sorted(rng.sample(range(1, levels), keep - 1)), levels]
    return SparseRow(ids, tuple(cuts[i + 1] - cuts[i] for i in range(keep)))


def written(
    rows: list[SparseRow], tokens: list[int], size: int, scored: int | None = None
) -> bytes:
    out = Writer()
    put_rows(out, rows, tokens, size, scored)
    return bytes(out.data)


@given(st.integers(0, 2**32), st.sampled_from([1, 2, 5, 64, 4096, V]))
def test_round_trip(seed: int, size: int) -> None:
    rng = random.Random(seed)
    levels = 2 ** rng.randint(0, 12)
    widest = min(64, size, levels)
    rows = [made(rng, size, rng.randint(1, widest), levels) for _ in range(rng.randint(1, 9))]
    tokens = [rng.choice(row.ids) for row in rows]
    scored = rng.choice([None, 0, len(rows) // 2, len(rows)])
    tokens[: scored or 0] = [rng.randrange(size) for _ in range(scored or 0)]
    frame = Reader(written(rows, tokens, size, scored))
    assert take_rows(frame, len(rows), size) == (tuple(rows), tuple(tokens), scored)
    frame.end()


@pytest.mark.parametrize(("keep", "levels"), [(1, 1), (4, 32), (8, 64), (64, 4096)])
def test_length_is_the_entropy(keep: int, levels: int) -> None:
    rng = random.Random(keep)
    rows = [made(rng, V, keep, levels) for _ in range(8)]
    size = len(written(rows, [row.ids[0] for row in rows], V))
    assert size <= 8 * row_bits(keep, levels, V) / 8 + 5


def test_edges_of_the_ranks() -> None:
    low, high = SparseRow((0, 1, 2), (1, 1, 14)), SparseRow((V - 3, V - 2, V - 1), (14, 1, 1))
    for row in (low, high):
        frame = Reader(written([row], [row.ids[2]], V))
        assert take_rows(frame, 1, V) == ((row,), (row.ids[2],), None)


@given(st.binary(max_size=60), st.integers(1, 4))
def test_any_bytes(data: bytes, count: int) -> None:
    try:
        rows, tokens, scored = take_rows(Reader(data), count, V)
    except DecodeError:
        return
    assert all(sum(row.counts) == rows[0].levels and row.ids[-1] < V for row in rows)
    drawn = list(zip(rows, tokens, strict=True))[scored or 0 :]
    assert all(token in row.ids for row, token in drawn)


@pytest.mark.parametrize(
    ("rows", "tokens"),
    [
        ([SparseRow((1, 2), (1, 2))], [1]),
        ([SparseRow((1, 2), (1, 1)), SparseRow((1,), (4,))], [1, 1]),
        ([SparseRow((1, 2), (1, 1))], [3]),
        ([SparseRow((1, V), (1, 1))], [1]),
    ],
)
def test_what_does_not_fit_is_our_own_mistake(rows: list[SparseRow], tokens: list[int]) -> None:
    with pytest.raises(LocalProtocolError):
        written(rows, tokens, V)
