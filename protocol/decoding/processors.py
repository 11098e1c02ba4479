"""From a row of logits to the tokens that may be chosen, and their scores.

The order is fixed: bias, penalties, temperature, top-k, top-p, min-p. Logits come in float32, every
sum is float64. Where a cut has to choose between equal scores the lower id stays: score descending,
id ascending is the one order everywhere. At temperature 0 nothing is sampled, so only bias and
penalties matter.

Definitions, with z the processed logit, w the score z / temperature, and e = exp(w - largest w):

- bias: ``z + bias``.
- repetition, for ids among the last ``repetition_window`` ids of prompt and output:
  ``z / penalty`` where z > 0, else ``z * penalty``.
- frequency and presence, for ids that occur c > 0 times in the output:
  ``z - frequency * c - presence``.
- top-k keeps the first k tokens of the order; top-p keeps a token while the e before it sum to less
  than ``top_p`` times the sum of all e that top-k left; min-p keeps ``e >= min_p``.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.errors import BackendError, SettingError

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

WIDE = 8192
"""Rows wider than this take the short cuts that only pay for wide rows; results are the same."""
NARROW = 512
"""How many leading tokens such a short cut looks at."""


class Edits(NamedTuple):
    """What penalties touch at one position: few ids, however wide the row is.

    ``repeated``: ids inside the repetition window. ``counted``, ``counts``: ids that occur in the
    output and how often. All are below ``usable``, each id once; empty where the penalty is off.
    """

    repeated: I64
    counted: I64
    counts: I64


def check_sampling(sampling: Sampling, usable: int) -> None:
    """Refuse settings that name tokens this vocabulary lacks. Call it when an answer opens.

    Raises:
        SettingError: ``logit_bias`` names an id that is no token.
    """
    for token, _ in sampling.logit_bias:
        if token >= usable:
            raise SettingError(
                f"logit_bias names token {token}, but the model's ids end at {usable - 1}"
            )


def has_penalties(sampling: Sampling) -> bool:
    """Whether any penalty is on."""
    repetition = sampling.repetition_penalty != 1.0 and sampling.repetition_window != 0
    return repetition or sampling.presence_penalty != 0 or sampling.frequency_penalty != 0


def has_cuts(sampling: Sampling) -> bool:
    """Whether top-k, top-p or min-p can remove a token."""
    if sampling.temperature == 0:
        return False
    return sampling.top_k > 0 or sampling.top_p < 1.0 or sampling.min_p > 0


def penalty_edits(sampling: Sampling, ids: Sequence[int], prompt_len: int, usable: int) -> Edits:
    """Which ids the penalties touch for the token after ``ids`` (the whole sequence so far)."""
    repeated: Collection[int] = ()
    if sampling.repetition_penalty != 1.0 and sampling.repetition_window != 0:
        window = sampling.repetition_window
        repeated = set(ids if window < 0 else ids[-window:])
    counts: Counter[int] = Counter()
    if sampling.presence_penalty != 0 or sampling.frequency_penalty != 0:
        counts = Counter(ids[prompt_len:])
    return Edits(
        np.array([t for t in repeated if t < usable], np.int64),
        np.array([t for t in counts if t < usable], np.int64),
        np.array([c for t, c in counts.items() if t < usable], np.int64),
    )


@functools.lru_cache(maxsize=256)
def bias_arrays(bias: tuple[tuple[int, float], ...], usable: int) -> tuple[I64, F64]:
    """The ids and values of a bias, without ids that are no tokens (those never survive)."""
    kept = [(token, value) for token, value in bias if token < usable]
    ids = np.array([token for token, _ in kept], np.int64)
    return ids, np.array([value for _, value in kept], np.float64)


def processed(
    row: F32,
    sampling: Sampling,
    ids: Sequence[int],
    prompt_len: int,
    usable: int,
    *,
    single: bool = False,
) -> F64 | F32:
    """The first ``usable`` logits with bias and penalties applied: a new array, float64.

    With neither, it is a view of ``row`` as it came, so that the usual case copies nothing.
    ``single`` makes it float32: for drafters, whom half the memory helps more than the last digits.
    """
    row = row[:usable]
    penalties = has_penalties(sampling)
    if not penalties and not sampling.logit_bias:
        return row
    z: F64 | F32 = row.copy() if single else row.astype(np.float64)
    if sampling.logit_bias:
        biased, values = bias_arrays(sampling.logit_bias, row.size)
        z[biased] += values
    if penalties:
        repeated, counted, counts = penalty_edits(sampling, ids, prompt_len, row.size)
        if repeated.size:
            old = z[repeated]
            penalty = sampling.repetition_penalty
            z[repeated] = np.where(old > 0, old / penalty, old * penalty)
        if counted.size:
            lost = z[counted] - sampling.frequency_penalty * counts
            z[counted] = lost - sampling.presence_penalty
    return z


def check_best(best: float) -> None:
    """Refuse a row whose largest score is not a finite number.

    NaN and +inf both surface in the maximum, so one comparison covers the row.

    Raises:
        BackendError: the model produced no usable distribution.
    """
    if not np.isfinite(best):
        what = "no token left" if best == -np.inf else "a logit that is not a finite number"
        raise BackendError(
            f"the model produced {what} ({best}); its weights or its number format are broken"
        )


def survivors(
    row: F32,
    sampling: Sampling,
    ids: Sequence[int],
    prompt_len: int,
    usable: int,
    *,
    banned: Collection[int] = (),
) -> tuple[I64, F64]:
    """The tokens that may follow ``ids`` and their scores, in order of id.

    Args:
        row: logits of the model after ``ids``, float32, at least one; columns from ``usable`` on
            are padding and never survive.
        ids: the whole sequence before the token to be chosen, prompt included.
        prompt_len: how many of ``ids`` are the prompt.
        banned: ids removed before the cuts, as if the model gave them no probability.

    Returns:
        Ids (int64, ascending) and scores (float64): processed logits, divided by the temperature
        unless that is 0. Not normalised.

    Raises:
        BackendError: a NaN or an infinite logit, or nothing survived.
    """
    z = processed(row, sampling, ids, prompt_len, usable).astype(np.float64, copy=False)
    if banned:
        z = z.copy()
        z[[token for token in banned if token < z.size]] = -np.inf
    best = z.max() if z.size else -np.inf
    check_best(best)
    tokens: I64 = np.arange(z.size)
    if z.min() == -np.inf:
        tokens = np.flatnonzero(z > -np.inf)
        z = z[tokens]
    if sampling.temperature == 0:
        return tokens, z
    scores = z / sampling.temperature
    if not has_cuts(sampling):
        return tokens, scores
    kept = cut(tokens, scores, sampling)[0]
    return tokens[kept], scores[kept]


class Cut(NamedTuple):
    """Indices that top-k, top-p and min-p left, ascending, and their mass (sum of e)."""

    kept: I64
    mass: float


def cut(tokens: I64, scores: F64, sampling: Sampling, outside: float = 0.0) -> Cut:
    """Apply top-k, top-p and min-p to ascending ``tokens`` with their scores.

    ``outside`` is the mass (sum of e) of tokens that are not listed and all rank below those
    listed: a drafter that looks at its likeliest tokens only passes it, everybody else 0. Top-k
    beyond the listed tokens then cuts nothing.
    """
    kept: I64 = np.arange(tokens.size)
    if 0 < sampling.top_k < tokens.size:
        kept = top(scores, sampling.top_k)
    if 0 < sampling.top_k <= tokens.size:
        outside = 0.0
    e = np.exp(scores[kept] - scores.max())
    mass = float(e.sum()) + outside
    if sampling.top_p < 1.0:
        limit = sampling.top_p * mass
        order = _leading(scores[kept], e, limit)
        before = np.cumsum(e[order])
        length = 1 + int(np.searchsorted(before[:-1], limit, side="left"))
        listed = float(before[length - 1])
        chosen = np.sort(order[:length])
        kept, e = kept[chosen], e[chosen]
        # All listed tokens kept, and still less than the limit: the cut lies further out.
        mass = max(listed, limit) if length == order.size and outside > 0 else listed
    if sampling.min_p > 0:
        strong = e >= sampling.min_p
        if not strong.all():
            kept, e = kept[strong], e[strong]
            mass = float(e.sum())
    return Cut(kept, mass)


def _leading(scores: F64, e: F64, limit: float) -> I64:
    """Indices in the total order: all of them, or as many as surely hold more than ``limit``.

    A real model puts nearly all mass on few tokens, and sorting a wide row is what would cost.
    """
    first: I64 = np.arange(scores.size)
    for count in (NARROW, WIDE):
        if scores.size > WIDE:
            head = top(scores, count)
            if float(e[head].sum()) > limit * (1 + 1e-9):  # beyond any rounding of the two sums
                first = head
                break
    return first[np.argsort(-scores[first], kind="stable")]  # stable: equal scores stay by id


def top(scores: F64 | F32, count: int) -> I64:
    """Indices of the ``count`` first scores in the total order, ascending. ``count`` < size."""
    if scores.size <= WIDE or count > NARROW:
        return _top_by_partition(scores, count)
    # The count-th largest of many column maxima is a floor that at least count scores reach and
    # few others do: two cheap passes over a wide row instead of a partition of it.
    columns = scores.size // 16
    maxima = scores[: 16 * columns].reshape(16, columns).max(axis=0)
    floor = np.partition(maxima, -count)[-count]
    reach = np.flatnonzero(scores >= floor)
    return reach if reach.size == count else reach[_top_by_partition(scores[reach], count)]


def _top_by_partition(scores: F64 | F32, count: int) -> I64:
    edge = np.partition(scores, -count)[-count]
    above = np.flatnonzero(scores > edge)
    level = np.flatnonzero(scores == edge)[: count - above.size]
    return np.sort(np.concatenate((above, level)))
