"""Sparse rows as bytes, at their entropy: one number for all rows of a frame.

A row of K ids of a vocabulary of V in L levels is one of C(V, K) sets of ids times one of
C(L - 1, K - 1) ways to share the levels out, and its token one of the K. Each of these is a number
below a bound that the reader knows by then, so a frame is one number in mixed radix: no bit is lost
between fields or rows, and none to separators. For V = 151,936, K = 8, L = 64 that is 19 bytes.

The number of a set is its rank in the combinatorial number system: ascending elements c_1 < c_2 ...
have the rank sum of C(c_i, i).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from outrider.protocol.decoding.row import MAX_KEEP, MAX_LEVELS, SparseRow
from outrider.protocol.errors import DecodeError, LocalProtocolError
from outrider.protocol.packing import Reader, Writer, id_bits

MAX_EXPONENT = MAX_LEVELS.bit_length() - 1

_comb = lru_cache(maxsize=1 << 15)(math.comb)
_log_factorials = [math.lgamma(k + 1) for k in range(MAX_KEEP + 1)]


SCORED = 0x80
"""In the byte of the exponent: the edge takes proposals, and so many of the tokens are some."""


def put_rows(
    out: Writer,
    rows: Sequence[SparseRow],
    tokens: Sequence[int],
    size: int,
    scored: int | None = None,
) -> None:
    """Append rows, at least one, all of the same levels, and the token drawn from each.

    The first ``scored`` tokens are not drawn from their rows, and stand as they are.

    Raises:
        LocalProtocolError: the rows do not fit the layout, or a token is not in its row.
    """
    levels = rows[0].levels
    most = max(len(row.ids) for row in rows)
    exponent = levels.bit_length() - 1
    bad = levels != 1 << exponent or exponent > MAX_EXPONENT or most > MAX_KEEP
    if bad or any(row.levels != levels for row in rows):
        raise LocalProtocolError("rows of a frame share a power of two of levels and few ids")
    number = 0
    given = scored or 0
    for i in range(len(rows) - 1, -1, -1):
        row, token = rows[i], tokens[i]
        keep = len(row.ids)
        if (i >= given and token not in row.ids) or row.ids[-1] >= size:
            raise LocalProtocolError(f"token {token} is not one of its row")
        if i >= given:
            number = number * keep + row.ids.index(token)
        number = number * _comb(size, keep) + _rank(row.ids)
        number = number * _comb(levels - 1, keep - 1) + _share_rank(row.counts)
        number = number * most + keep - 1
    out.byte(exponent if scored is None else exponent | SCORED)
    if scored is not None:
        out.varint(scored)
        out.ids(tokens[:scored], id_bits(size))
    out.varint(most)
    data = number.to_bytes((number.bit_length() + 7) // 8, "little")
    out.varint(len(data))
    out.raw(data)


def take_rows(
    frame: Reader, count: int, size: int
) -> tuple[tuple[SparseRow, ...], tuple[int, ...], int | None]:
    """``count`` rows of a frame, the token of each, and how many of these were not drawn here.

    Raises:
        DecodeError: it is not what :func:`put_rows` writes.
    """
    exponent, scored = frame.byte(), None
    given: tuple[int, ...] = ()
    if exponent & SCORED:
        exponent &= ~SCORED
        scored = frame.varint(count)
        given = frame.ids(scored, id_bits(size))
        if given and max(given) >= size:
            raise DecodeError(f"token id {max(given)}; the vocabulary has {size}")
    most = frame.varint(min(MAX_KEEP, size))
    if exponent > MAX_EXPONENT or not most:
        raise DecodeError(f"rows of {most} ids in 2**{exponent} levels")
    levels = 1 << exponent
    data = frame.raw(frame.varint(count * (_widest(size, levels, most) // 8 + 1)))
    if data and not data[-1]:
        raise DecodeError("rows with needless zero bytes")
    number = int.from_bytes(data, "little")
    rows: list[SparseRow] = []
    tokens: list[int] = []
    for i in range(count):
        number, keep = divmod(number, most)
        keep += 1
        if keep > levels:
            raise DecodeError(f"a row of {keep} ids in {levels} levels")
        number, shares = divmod(number, _comb(levels - 1, keep - 1))
        number, rank = divmod(number, _comb(size, keep))
        ids = _members(rank, keep)
        rows.append(SparseRow(ids, _shares(shares, keep, levels)))
        if i < len(given):
            tokens.append(given[i])
        else:
            number, at = divmod(number, keep)
            tokens.append(ids[at])
    if number:
        raise DecodeError("bits left after the last row")
    return tuple(rows), tuple(tokens), scored


def row_bits(keep: int, levels: int, size: int) -> float:
    """Bits that a row takes on the wire, its token included; frame headers left out."""
    ways = _comb(size, keep) * _comb(levels - 1, keep - 1) * keep
    return math.log2(ways) + math.log2(max(2, keep))


@lru_cache(maxsize=256)
def _widest(size: int, levels: int, most: int) -> int:
    """Bits of the widest row of up to ``most`` ids, rounded up."""
    widths = [
        (_comb(size, keep) * _comb(levels - 1, keep - 1) * keep * most).bit_length()
        for keep in range(1, min(most, levels) + 1)
    ]
    return max(widths) + 1


def _rank(ids: Sequence[int]) -> int:
    """Where a set of ascending ids stands among all sets of its size."""
    comb = math.comb
    return sum(comb(token, i) for i, token in enumerate(ids, 1))


def _members(rank: int, keep: int) -> tuple[int, ...]:
    """The set of ``keep`` ascending ids with this rank."""
    comb = math.comb
    found = [0] * keep
    for i in range(keep, 1, -1):
        # C(c, i) is close to (c - (i - 1) / 2)^i / i!: the guess is off by a few at most.
        c = i - 1
        if rank:
            c = max(c, int(math.exp((math.log(rank) + _log_factorials[i]) / i) + c / 2))
        value = comb(c, i)
        while value > rank:
            c -= 1
            value = comb(c, i)
        above = comb(c + 1, i)
        while above <= rank:
            c, value = c + 1, above
            above = comb(c + 1, i)
        found[i - 1] = c
        rank -= value
    if keep:
        found[0] = rank
    return tuple(found)


def _share_rank(counts: Sequence[int]) -> int:
    """Where a way to share levels out stands: the sums before the shares are a set."""
    rank = total = 0
    for i, count in enumerate(counts[:-1], 1):
        total += count
        rank += _comb(total - 1, i)
    return rank


def _shares(rank: int, keep: int, levels: int) -> tuple[int, ...]:
    """The shares of at least 1 with this rank."""
    edges = [0, *(c + 1 for c in _members(rank, keep - 1)), levels]
    return tuple(edges[i + 1] - edges[i] for i in range(keep))
