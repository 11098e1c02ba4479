"""Which requests make up the next step, and with how many guesses: ``fifo`` and ``cosine``.

Both take verifications before prefill, prefill before the self-advance of sessions that do not
ride, and that before optional self-advance, and neither exceeds a cap unless the first request
alone does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite
from typing import Literal, Protocol

import numpy as np

from outrider.cloud_server.scheduling.batch import LATER, ROUNDING, Caps, Choice
from outrider.cloud_server.scheduling.step_time import StepTime
from outrider.cloud_server.scheduling.table import PREFILL, Counts, Floats, Mask, Table

SchedulerName = Literal["fifo", "cosine"]

PREFILL_SHARE = 0.25
"""Share of the longest step that prompts may add to one in which others are verified."""

GROUPS = 4
"""Lengths at which a batch may be cut off, at most."""

WORTH_GROUPING = 0.05
"""Share of a step that its longest row must cost more than its shortest for lengths to matter."""

EXCHANGED = 10
"""Requests up to which a choice that a cap cut short is improved by exchanges."""

STARTS = 2
"""Choices from which such exchanges set out."""

ALL_PAIRS = 24
"""Changes of one row up to which all pairs of them are tried, not only the likely ones."""


class Policy(Protocol):
    """Chooses a step. Pure: the same requests, times and caps, the same choice."""

    def choose(self, requests: Table, times: StepTime, caps: Caps) -> Choice:
        """At least one request, unless there is none."""


class Fifo:
    """First come, first served, with all the guesses that there are."""

    def choose(self, requests: Table, times: StepTime, caps: Caps) -> Choice:
        """In order of rank, then of arrival, until a cap is reached."""
        choice: dict[int, int] = {}
        room, longest, used = min(caps.tokens, caps.memory), 0, 0
        rows = list(zip(*(c.tolist() for c in _columns(requests)), strict=True))
        for i in np.lexsort((requests.since, requests.rank)).tolist():
            rank, tokens, context, most = rows[i]
            longest = max(longest, context)
            least = 1 if rank == PREFILL else tokens
            left = room - used
            time = caps.seconds - times.of(used, len(choice) + 1, longest)
            if times.each > 0 and isfinite(time):
                left = min(left, int(time / times.each))
            if not choice:  # something has to be done
                left = max(left, least)
            count = int(min(tokens + most, left))
            if count < least:
                continue
            choice[i] = count - tokens
            used += count
        return choice


def _columns(requests: Table) -> tuple[Counts, ...]:
    return requests.rank, requests.tokens, requests.context, requests.most


@dataclass(slots=True)
class _Table:
    """The requests that are not prefill, as arrays; a row each.

    ``reach`` are the guesses' chances times the weight. ``index`` says which requests they are.
    """

    index: Counts
    weight: Floats
    tokens: Floats
    context: Floats
    most: Counts
    reach: Floats

    @classmethod
    def of(cls, requests: Table) -> _Table:
        index = np.flatnonzero(~requests.prompts)
        rows = requests.verified()
        width = int(rows.most.max(initial=0))
        return cls(
            index=index,
            weight=rows.weight,
            tokens=rows.tokens.astype(np.float64),
            context=rows.context.astype(np.float64),
            most=rows.most,
            reach=rows.reach[:, :width] * rows.weight[:, None],
        )

    def expected(self) -> Floats:
        """``[i, d]`` are the weighted tokens that are expected with d guesses."""
        weight = self.weight[:, None]
        return weight + np.cumsum(np.hstack((0 * weight, self.reach)), axis=1)


@dataclass(slots=True)
class _Found:
    """Guesses for each row, -1 for one that is left out, and what that is worth."""

    drafts: Counts
    worth: float


class Cosine:
    """The batch of least weighted latency a token, all caps kept.

    Rows up to some length (a long one stretches all) are in the step, in order of weight for their
    time if a cap does not take all. Their guesses are taken in order of what they gain until the
    step gets worse, which is the best that these rows can have. Where a cap was in the way,
    exchanges of rows and guesses make up for what does not fit.
    """

    def choose(self, requests: Table, times: StepTime, caps: Caps) -> Choice:
        """Verification and self-advance by worth; prefill takes what that leaves of the caps."""
        table = _Table.of(requests)
        choice: dict[int, int] = {}
        if len(table.index):
            beside = _beside(requests, times, caps)
            tries = [_Packing(table, mask, times, caps, beside) for mask in _groups(table, times)]
            tries.sort(key=lambda packing: packing.found.worth)
            found = tries[0].found
            # A few requests leave time for a closer look, where there is anything to look for.
            if (tries[0].capped or len(tries) > 1) and len(table.index) <= EXCHANGED:
                found = min((t.exchanged() for t in tries[:STARTS]), key=lambda f: f.worth)
            rows = np.flatnonzero(found.drafts >= 0)
            chosen = table.index[rows].tolist()
            choice = dict(zip(chosen, found.drafts[rows].tolist(), strict=True))
        _prefill(choice, requests, times, caps)
        return choice


class _Packing:
    """The best batch of some of the rows: ``found``, and whether a cap was in the way."""

    def __init__(
        self, table: _Table, mask: Mask, times: StepTime, caps: Caps, beside: float
    ) -> None:
        """``beside``: seconds that prompts will add, which no cap holds against these rows."""
        self.table, self.times = table, times
        self.caps = replace(caps, seconds=caps.seconds + beside)
        self.rows = np.flatnonzero(mask)
        longest = float(table.context[self.rows].max())
        self.fixed, self.each = times.of(0, 0) + beside, times.each
        self.row = (times.row + times.padded * longest) + times.each * table.tokens
        self.room = min(caps.tokens, caps.memory)
        self.found, self.capped = self._greedy()

    def _greedy(self) -> tuple[_Found, bool]:
        """All rows, and guesses by gain; whether a cap was in the way."""
        table, rows = self.table, self.rows
        took, tokens = float(self.row[rows].sum()), float(table.tokens[rows].sum())
        flat = (table.reach if len(rows) == len(table.index) else table.reach[rows]).ravel()
        count = int(np.count_nonzero(flat))
        order = (-flat).argsort(kind="stable")[:count]
        inside = np.zeros(len(table.index), np.bool_)
        inside[rows] = True
        later, outside = self._rest(inside)
        drafts = np.arange(count + 1)
        worth = self.each * drafts
        worth += self.fixed + took + later
        if self.caps.price:
            worth += self.caps.price * (table.tokens.sum() + drafts)
        gain = np.zeros(count + 1)
        np.cumsum(flat[order], out=gain[1:])
        gain += table.weight[rows].sum() + LATER * outside
        worth /= gain
        best, capped = int(worth.argmin()), False
        while self._over(took + self.each * best, tokens + best) and best:
            best, capped = best - 1, True
        if self._over(took, tokens):
            return self._dense(), True
        chosen = np.where(inside, 0, -1)
        if best:
            width = table.reach.shape[1]
            chosen[rows] = np.bincount(order[:best] // width, minlength=len(rows))
        found = _Found(chosen, float(worth[best]))
        return (
            (min(found, self._dense(), key=lambda f: f.worth), True) if capped else (found, False)
        )

    def _over(self, took: float, tokens: float) -> bool:
        return self.fixed + took > self.caps.seconds + ROUNDING or tokens > self.room

    def _dense(self) -> _Found:
        """What fits the caps: rows, each with the guesses that make it densest, then guesses."""
        table, rows = self.table, self.rows
        level = np.arange(table.reach.shape[1] + 1)
        gain = table.expected()[rows] - LATER * table.weight[rows, None]
        cost = np.maximum(self.row[rows, None] + self.each * level, 1e-12)
        dense = np.where(level <= table.most[rows, None], gain / cost, 0.0)
        first = dense.argmax(axis=1)
        # Items: every row with its first guesses, then each guess after those.
        place = np.arange(len(rows))
        after = (level[None, 1:] > first[:, None]) & (level[None, 1:] <= table.most[rows, None])
        who, which = np.nonzero(after)
        drafts = np.concatenate((first, np.ones(len(who), np.int64)))
        density = np.concatenate(
            (dense[place, first], table.reach[rows[who], which] / max(1e-12, self.each))
        )
        chosen, took, tokens = np.full(len(table.index), -1, np.int64), 0.0, 0.0
        for item in np.argsort(-density, kind="stable"):
            row = rows[item] if item < len(rows) else rows[who[item - len(rows)]]
            opens = item < len(rows)
            more = float(table.tokens[row]) if opens else 0.0
            added = float(self.row[row]) if opens else 0.0
            count = int(drafts[item])
            while count and self._over(took + added + self.each * count, tokens + more + count):
                count -= 1
            if self._over(took + added + self.each * count, tokens + more + count) and tokens:
                continue
            if not opens and chosen[row] < 0:
                continue
            chosen[row] = max(chosen[row], 0) + count
            took, tokens = took + added + self.each * count, tokens + more + count
        return _Found(chosen, float(self._worth(chosen[None])[0]))

    def _rest(self, inside: Mask) -> tuple[float, float]:
        """Seconds of a step with everybody else, and their weight."""
        table, times = self.table, self.times
        rest = ~inside
        if not rest.any():
            return 0.0, 0.0
        longest, tokens = float(table.context[rest].max()), float(table.tokens[rest].sum())
        took = times.of(int(tokens), int(rest.sum()), int(longest))
        return took, float(table.weight[rest].sum())

    def exchanged(self) -> _Found:
        """Change one row or two at a time for as long as that helps and keeps the caps."""
        drafts, least = self.found.drafts, self.found.worth
        if least == np.inf:  # the densest row alone is too much
            drafts = np.full_like(drafts, -1)
        while True:
            tries = self._neighbours(drafts)
            worth = self._worth(tries)
            best = int(worth.argmin())
            if worth[best] >= least - 1e-12:
                return _Found(drafts, least) if least < np.inf else self.found
            drafts, least = tries[best], float(worth[best])

    def _neighbours(self, drafts: Counts) -> Counts:
        """One row with any number of its guesses or left out, and another one besides."""
        rows, most = range(len(self.table.index)), self.table.most
        single = [(row, d) for row in rows for d in range(-1, most[row] + 1)]
        beside = single
        if len(single) > ALL_PAIRS:
            beside = [(row, drafts[row] + step) for row in rows for step in (-1, 1)]
            beside += [(row, -1) for row in rows] + [(row, most[row]) for row in rows]
        one = np.repeat(drafts[None], len(single), axis=0)
        one[np.arange(len(single)), [row for row, _ in single]] = [d for _, d in single]
        two = np.repeat(one, len(beside), axis=0)
        again = np.tile(np.arange(len(beside)), len(single))
        where = np.array([row for row, _ in beside])[again]
        two[np.arange(len(two)), where] = np.array([d for _, d in beside])[again]
        two = np.clip(two, -1, most)
        return np.concatenate((one, two))

    def _worth(self, tries: Counts) -> Floats:
        """What each try is worth; infinite: it exceeds a cap or is empty."""
        table, caps = self.table, self.caps
        inside, more = tries >= 0, np.maximum(tries, 0)
        tokens = inside @ table.tokens + more.sum(axis=1)
        took = self._seconds(inside) + self.each * more.sum(axis=1)
        bad = (took > caps.seconds + ROUNDING) | (tokens > self.room) | ~inside.any(axis=1)
        expected = table.expected()[np.arange(tries.shape[1]), more]
        gain = (expected * inside).sum(axis=1) + LATER * (~inside @ table.weight)
        took += self._seconds(~inside)
        worth: Floats = took + caps.price * (table.tokens.sum() + more.sum(axis=1))
        worth /= gain
        worth[bad] = np.inf
        return worth

    def _seconds(self, inside: Mask) -> Floats:
        """How long a step with these rows takes, without guesses; a set of rows a line."""
        table, times = self.table, self.times
        count, longest = inside.sum(axis=1), (table.context * inside).max(axis=1)
        took: Floats = (count > 0) * self.fixed + count * (times.row + times.padded * longest)
        return took + times.each * (inside @ table.tokens)


def _groups(table: _Table, times: StepTime) -> list[Mask]:
    """Sets of rows to try: all, and where lengths matter the shorter and the longer ones."""
    context, everybody = table.context, np.ones(len(table.index), np.bool_)
    spread = times.padded * float(context.max() - context.min()) * len(context)
    if spread <= WORTH_GROUPING * times.of(len(context), len(context), int(context.max())):
        return [everybody]
    ordered = np.sort(context)
    lengths = sorted({float(ordered[(len(ordered) - 1) * k // GROUPS]) for k in range(GROUPS + 1)})
    shorter = [context <= length for length in lengths[:-1]]
    return [everybody, *(mask for short in shorter for mask in (short, ~short))]


def _beside(requests: Table, times: StepTime, caps: Caps) -> float:
    """Seconds that prompts will add to a step: the longer it takes, the more guesses pay."""
    asked = int(requests.tokens[requests.prompts].sum()) if requests.reads else 0
    share = PREFILL_SHARE * caps.seconds
    return min(times.each * asked, share) if isfinite(share) else times.each * asked


def _prefill(choice: dict[int, int], requests: Table, times: StepTime, caps: Caps) -> None:
    """Add pieces of prompts, first come first, as far as tokens, memory and time go."""
    if not requests.reads:
        return
    waiting = np.flatnonzero(requests.prompts)
    rows = list(choice)
    used = int(requests.tokens[rows].sum()) + sum(choice.values())
    longest = int(requests.context[rows].max(initial=0))
    limit = caps.seconds
    if choice and isfinite(limit):  # whoever is verified waits for what is read beside it
        limit = min(limit, times.of(used, len(choice), longest) + PREFILL_SHARE * limit)
    for i in waiting[np.argsort(requests.since[waiting], kind="stable")].tolist():
        tokens = int(requests.tokens[i])
        longest = max(longest, int(requests.context[i]))
        left = min(caps.tokens, caps.memory) - used
        time = limit - times.of(used, len(choice) + 1, longest)
        if times.each > 0 and isfinite(time):
            left = min(left, time / times.each)
        count = int(min(tokens, left if choice else max(1, left)))
        if count > 0:
            choice[i] = count - tokens
            used += count


POLICIES: dict[SchedulerName, type[Fifo] | type[Cosine]] = {"fifo": Fifo, "cosine": Cosine}
