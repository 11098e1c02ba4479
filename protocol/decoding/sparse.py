"""Sparse rows: a distribution cut to few ids and few levels, so that it can be sent exactly.

*Sample what you send*: the drafter's distribution is truncated, quantized and renormalised first,
the draft is drawn from the result, and the result is what travels. Output under the ratio rule is
then exactly the target's; only acceptance changes, to 1 - TV(p, row). (PAPERS 4.10: Q-S-V, SQS.)

A row gives an id ``count / levels`` of the mass. ``levels`` is a power of two, so that a draw from
52 random bits is exact to the last one. Which ids and counts a row has is a function of the
distribution alone; nothing here looks at what is drawn from it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from outrider.protocol.decoding.noise import Domain, noise_bits
from outrider.protocol.decoding.processors import (
    F32,
    F64,
    I64,
    check_best,
    cut,
    has_cuts,
    processed,
    top,
)
from outrider.protocol.decoding.row import MAX_KEEP, MAX_LEVELS, SparseRow
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.errors import BackendError, SettingError

HEAD = 512
"""Likeliest tokens of a large vocabulary that the cuts and a row look at; a small one is whole."""


class Budget(NamedTuple):
    """How much of a distribution a row keeps: a fixed K, a threshold, or both.

    At most ``keep`` ids, in ``levels`` steps (a power of two), without ids of a probability below
    ``floor``; the likeliest id always stays.
    """

    keep: int
    levels: int
    floor: float = 0.0

    def check(self) -> Budget:
        """The budget itself.

        Raises:
            SettingError: a number out of range.
        """
        if not 1 <= self.keep <= MAX_KEEP:
            raise SettingError(f"a row of {self.keep} ids; it must be 1 to {MAX_KEEP}")
        if not 1 <= self.levels <= MAX_LEVELS or self.levels & (self.levels - 1):
            raise SettingError(
                f"{self.levels} levels; it must be a power of two, 1 to {MAX_LEVELS}"
            )
        if not 0.0 <= self.floor <= 1.0:
            raise SettingError(f"a floor of {self.floor}; it must be 0 to 1")
        return self


def quantize(ids: I64, masses: F64, levels: int) -> SparseRow:
    """The nearest row in ``levels`` steps: largest remainders, the likelier and then the lower id
    first. Ids that are left without a step drop out.

    Args:
        ids: int64 ``[n]``, n at least 1, in any order, each once.
        masses: float64 ``[n]``, of any sum above 0.
    """
    share = masses * (levels / masses.sum())
    counts = np.floor(share).astype(np.int64)
    left = levels - int(counts.sum())
    order = np.lexsort((ids, -masses, counts - share))
    counts[order[: max(0, left)]] += 1
    kept = np.flatnonzero(counts)
    kept = kept[np.argsort(ids[kept])]
    return SparseRow(tuple(ids[kept].tolist()), tuple(counts[kept].tolist()))


class Spread(NamedTuple):
    """A row and ``dropped``: the mass of the distribution that the row left out, 0 to 1."""

    row: SparseRow
    dropped: float


def spread(
    row: F32,
    sampling: Sampling,
    ids: Sequence[int],
    prompt_len: int,
    usable: int,
    *,
    budget: Budget,
    never: Collection[int] = (),
) -> Spread:
    """A model's distribution for the token after ``ids``, as a sparse row.

    Args:
        row: logits, float32; the settings are applied as the target applies them.
        never: ids that the row must not have, whatever their probability.

    Raises:
        BackendError: a NaN or an infinite logit, or every token is in ``never``.
    """
    z = processed(row, sampling, ids, prompt_len, usable, single=True)
    if never:
        z = z.copy()
        z[[token for token in never if token < z.size]] = -np.inf
    best = float(z.max()) if z.size else -np.inf
    check_best(best)
    e = np.exp((z - z.dtype.type(best)) / z.dtype.type(sampling.temperature or 1.0))
    total = float(e.sum())
    head = max(HEAD, budget.keep)
    listed: I64 = np.flatnonzero(z > -np.inf) if z.size <= head * 16 else top(z, head)
    if has_cuts(sampling):
        scores = z[listed].astype(np.float64) / (sampling.temperature or 1.0)
        outside = max(0.0, total - float(e[listed].sum(dtype=np.float64)))
        kept, total = cut(listed, scores, sampling, outside)
        listed = listed[kept]
    return kept_of(listed, e[listed].astype(np.float64) / total, budget)


def kept_of(listed: I64, masses: F64, budget: Budget) -> Spread:
    """The row of a distribution of which ``listed`` ids have these ``masses``.

    Raises:
        BackendError: there is no id.
    """
    if not listed.size:
        raise BackendError("the drafter has no token left to propose: every id is ruled out")
    strong = masses >= min(budget.floor, float(masses.max()))
    listed, masses = listed[strong], masses[strong]
    if listed.size > budget.keep:
        leading = top(masses, budget.keep)
        listed, masses = listed[leading], masses[leading]
    return Spread(quantize(listed, masses, budget.levels), max(0.0, 1.0 - float(masses.sum())))


def draw(row: SparseRow, sampling: Sampling, position: int) -> int:
    """The token that the draft noise of ``position`` picks from the row: exactly by its counts."""
    levels = row.levels
    bits = int(noise_bits(sampling.seed, sampling.choice, position, (0,), Domain.DRAFT)[0])
    step = bits * levels >> 52
    for token, count in zip(row.ids, row.counts, strict=True):
        step -= count
        if step < 0:
            return token
    raise AssertionError("the counts of a row are its levels")


def uniform(sampling: Sampling, position: int, domain: Domain) -> float:
    """A number from 0 to 1, neither included, that belongs to a position and a domain."""
    bits = int(noise_bits(sampling.seed, sampling.choice, position, (0,), domain)[0])
    return (bits + 0.5) * 2.0**-52


class Threshold:
    """Moves a budget's floor so that rows leave out ``target`` of the mass on average.

    Where the drafter is unsure its rows grow, where it is sure they shrink (C-SQS, PAPERS 4.10:
    threshold - eta * (dropped - target)). It sees rows, never what is drawn from them. ``eta`` is
    ours, on a log scale.
    """

    def __init__(self, target: float, start: float = 0.02, eta: float = 0.5) -> None:
        self.target, self.eta = target, eta
        self.floor = start

    def observe(self, dropped: float) -> None:
        """A row left out ``dropped`` of its distribution's mass."""
        error = max(-1.0, min(1.0, (dropped - self.target) / max(self.target, 1e-3)))
        self.floor = min(0.5, max(1e-5, self.floor * float(np.exp(-self.eta * 0.1 * error))))
