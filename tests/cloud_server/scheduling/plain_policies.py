"""The policies on plain lists of requests, slow and short: what those on arrays must choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from outrider.cloud_server.scheduling.batch import LATER, ROUNDING, Caps, Choice, Rank, Request
from outrider.cloud_server.scheduling.policies import (
    ALL_PAIRS,
    EXCHANGED,
    GROUPS,
    PREFILL_SHARE,
    STARTS,
    WORTH_GROUPING,
)
from outrider.cloud_server.scheduling.step_time import StepTime

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Fifo:
    """First come, first served, with all the guesses that there are."""

    def choose(self, requests: Sequence[Request], times: StepTime, caps: Caps) -> Choice:
        """In order of rank, then of arrival, until a cap is reached."""
        choice: dict[int, int] = {}
        room, longest, used = min(caps.tokens, caps.memory), 0, 0
        order = sorted(range(len(requests)), key=lambda i: (requests[i].rank, requests[i].since))
        for i in order:
            request = requests[i]
            longest = max(longest, request.context)
            least = 1 if request.rank is Rank.PREFILL else request.tokens
            most = room - used
            time = caps.seconds - times.of(used, len(choice) + 1, longest)
            if times.each > 0 and np.isfinite(time):
                most = min(most, int(time / times.each))
            if not choice:  # something has to be done
                most = max(most, least)
            count = int(min(request.tokens + len(request.reach), most))
            if count < least:
                continue
            choice[i] = count - request.tokens
            used += count
        return choice


@dataclass(slots=True)
class _Table:
    """The requests that are not prefill, as arrays; a row each.

    ``reach`` are the guesses' chances times the weight, ``expected[i, d]`` the weighted tokens
    expected with d guesses. ``index`` says which requests they are.
    """

    index: list[int]
    weight: Floats
    tokens: Floats
    context: Floats
    most: Floats
    reach: Floats
    expected: Floats

    @classmethod
    def of(cls, requests: Sequence[Request]) -> _Table:
        index = [i for i, r in enumerate(requests) if r.rank is not Rank.PREFILL]
        rows = [requests[i] for i in index]
        most = np.array([len(r.reach) for r in rows], np.int64)
        width = int(most.max(initial=0))
        reach = np.zeros((len(rows), width))
        reach[np.arange(width) < most[:, None]] = [chance for r in rows for chance in r.reach]
        weight = np.array([r.weight for r in rows])
        reach *= weight[:, None]
        return cls(
            index=index,
            weight=weight,
            tokens=np.array([float(r.tokens) for r in rows]),
            context=np.array([float(r.context) for r in rows]),
            most=most.astype(np.float64),
            reach=reach,
            expected=weight[:, None] + np.cumsum(np.hstack((0 * weight[:, None], reach)), axis=1),
        )


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

    def choose(self, requests: Sequence[Request], times: StepTime, caps: Caps) -> Choice:
        """Verification and self-advance by worth; prefill takes what that leaves of the caps."""
        table = _Table.of(requests)
        choice: dict[int, int] = {}
        if table.index:
            beside = _beside(requests, times, caps)
            tries = [_Packing(table, mask, times, caps, beside) for mask in _groups(table, times)]
            tries.sort(key=lambda packing: packing.found.worth)
            found = tries[0].found
            # A few requests leave time for a closer look, where there is anything to look for.
            if (tries[0].capped or len(tries) > 1) and len(table.index) <= EXCHANGED:
                found = min((t.exchanged() for t in tries[:STARTS]), key=lambda f: f.worth)
            rows = np.flatnonzero(found.drafts >= 0)
            choice = {table.index[row]: int(found.drafts[row]) for row in rows}
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
        flat = table.reach[rows].ravel()
        count = int(np.count_nonzero(flat))
        order = np.argsort(-flat, kind="stable")[:count]
        inside = np.zeros(len(table.index), np.bool_)
        inside[rows] = True
        later, outside = self._rest(inside)
        drafts = np.arange(count + 1)
        worth = self.fixed + took + later + self.each * drafts
        worth += self.caps.price * (table.tokens.sum() + drafts)
        gain = table.weight[rows].sum() + LATER * outside
        worth /= gain + np.concatenate(([0.0], np.cumsum(flat[order])))
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
        gain = table.expected[rows] - LATER * table.weight[rows, None]
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
        rows, most = range(len(self.table.index)), self.table.most.astype(np.int64)
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
        expected = table.expected[np.arange(tries.shape[1]), more]
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
    lengths = np.unique(np.quantile(context, np.linspace(0, 1, GROUPS + 1), method="lower"))
    shorter = [context <= length for length in lengths[:-1]]
    return [everybody, *(mask for short in shorter for mask in (short, ~short))]


def _beside(requests: Sequence[Request], times: StepTime, caps: Caps) -> float:
    """Seconds that prompts will add to a step: the longer it takes, the more guesses pay."""
    asked = sum(r.tokens for r in requests if r.rank is Rank.PREFILL)
    share = PREFILL_SHARE * caps.seconds
    return min(times.each * asked, share) if np.isfinite(share) else times.each * asked


def _prefill(
    choice: dict[int, int], requests: Sequence[Request], times: StepTime, caps: Caps
) -> None:
    """Add pieces of prompts, first come first, as far as tokens, memory and time go."""
    waiting = [i for i, r in enumerate(requests) if r.rank is Rank.PREFILL]
    if not waiting:
        return
    used = sum(requests[i].tokens + drafts for i, drafts in choice.items())
    longest = max((requests[i].context for i in choice), default=0)
    limit = caps.seconds
    if choice and np.isfinite(limit):  # whoever is verified waits for what is read beside it
        limit = min(limit, times.of(used, len(choice), longest) + PREFILL_SHARE * limit)
    for i in sorted(waiting, key=lambda i: requests[i].since):
        request = requests[i]
        longest = max(longest, request.context)
        left = min(caps.tokens, caps.memory) - used
        time = limit - times.of(used, len(choice) + 1, longest)
        if times.each > 0 and np.isfinite(time):
            left = min(left, time / times.each)
        count = int(min(request.tokens, left if choice else max(1, left)))
        if count > 0:
            choice[i] = count - request.tokens
            used += count


POLICIES = {"fifo": Fifo, "cosine": Cosine}
