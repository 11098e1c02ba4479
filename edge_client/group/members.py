"""One member of a group: a model that proposes, and what is known of its speed and health.

A member that is slow or dead is passed by, never waited for without bound: its deadline comes from
its own history, as the retransmission timeout of TCP does (RFC 6298), and it is asked again when it
has finished or when its back-off is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from time import monotonic
from typing import TypeVar

import numpy as np

from outrider.protocol.decoding.rules import Proposal, propose_some
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.errors import AwayError, BackendError, OutriderError
from outrider.runtime.lm.base import common_prefix, follow
from outrider.runtime.lm.drafter import Drafter

GAIN, SPREAD_GAIN, SPREADS = 1 / 8, 1 / 4, 4.0
"""How fast the mean and the spread of a member's times follow, and how many spreads are waited."""

LEAST_WAIT, FIRST_WAIT = 0.005, 5.0
"""Seconds that any member is given, and one of which nothing is known."""

ALONG = 2
"""Ids that a step reads in about the time of one."""

BUSY = 0.02
"""Seconds after which members that are all busy with something older are looked at again."""

BACK_OFF, BACK_OFF_MAX = 0.5, 30.0
"""Seconds after which a member that failed is tried again, doubled each time that it fails."""

T = TypeVar("T")


class Member:
    """A drafter of a group. One thread at a time may use it.

    ``drafter`` is the model where it is in this process. One that is not ``there`` is not asked,
    ``trouble`` says why. ``load`` is what others want of it, from 0 to 1.
    """

    load = 0.0
    trouble: OutriderError | None = None
    drafter: Drafter | None

    def __init__(self, name: str, drafter: Drafter) -> None:
        self.name = name
        self.drafter = drafter
        self.lm = drafter.lm
        self.n_ctx = drafter.n_ctx

    @property
    def there(self) -> bool:
        """It can be asked, as far as is known."""
        return True

    def behind(self, ids: Sequence[int]) -> int:
        """How many of ``ids`` its cache does not hold."""
        return len(ids) - common_prefix(self.lm.ids, ids)

    def read(self, ids: Sequence[int], count: int) -> None:
        """Evaluate up to ``count`` more of ``ids``."""
        assert self.drafter is not None  # one that is elsewhere reads in its own way
        self.drafter.prefill(ids, count)

    def propose(
        self,
        ids: Sequence[int],
        prompt_len: int,
        sampling: Sampling,
        count: int,
        never: frozenset[int],
    ) -> list[Proposal]:
        """The ``count`` likeliest choices of the target after ``ids``, best first.

        It reads whatever of ``ids`` it has not: a token that another member chose, for one.
        """
        row = follow(self.lm, ids, rows=1)[-1]
        assert self.drafter is not None
        usable = self.drafter.usable
        row = np.ascontiguousarray(row[:usable])
        return propose_some(row, sampling, ids, prompt_len, usable, count=count, never=never)

    def forget(self, ids: Sequence[int]) -> None:
        """The answer with this text was broken off. A cache in this process may keep it."""

    def interrupt(self) -> None:
        """Nobody waits for it any more: a model ends its step, what is elsewhere need not."""

    def close(self) -> None:
        """Free the model."""
        if self.drafter is not None:
            self.drafter.close()


@dataclass(slots=True)
class Pace:
    """What a member's steps take, in seconds; None: nothing is known."""

    mean: float | None = None
    spread: float = 0.0

    def observe(self, seconds: float) -> None:
        """A step took so long."""
        if self.mean is None:
            self.mean, self.spread = seconds, seconds / 2
            return
        self.spread += SPREAD_GAIN * (abs(seconds - self.mean) - self.spread)
        self.mean += GAIN * (seconds - self.mean)

    @property
    def patience(self) -> float:
        """Seconds after which it is not waited for any more."""
        if self.mean is None:
            return FIRST_WAIT
        return self.mean + SPREADS * self.spread


@dataclass(slots=True)
class _Seat:
    """A member and its state: what it is busy with, and when it may be asked after a failure."""

    member: Member
    threads: ThreadPoolExecutor
    pace: Pace = field(default_factory=Pace)
    reads: Pace = field(default_factory=Pace)
    busy: Future[object] | None = None
    failures: int = 0
    away_until: float = 0.0
    error: BackendError | None = None
    late: int = 0

    @property
    def trouble(self) -> OutriderError | None:
        """Why it cannot be asked."""
        return self.error if self.member.there else self.member.trouble

    def patience(self, reading: int) -> float:
        """Seconds that a step is given which begins with reading so many ids."""
        more = reading * self.reads.patience if reading > ALONG else 0.0
        return max(LEAST_WAIT, self.pace.patience + more)

    def took(self, seconds: float, reading: int) -> None:
        """A step that read so many ids took so long: those read along with others cost less."""
        if reading <= ALONG:
            self.pace.observe(seconds)
        else:
            self.reads.observe(seconds / reading)


class Table:
    """The members, each on a thread of its own, and the steps that they take together."""

    def __init__(self, members: Sequence[Member], clock: Callable[[], float] = monotonic) -> None:
        self.members = list(members)
        self._clock = clock
        self._seats = [_Seat(m, ThreadPoolExecutor(1, f"drafter-{m.name}")) for m in members]

    def ready(self) -> list[int]:
        """Members that can be asked now: not failed lately, and not busy with an older step."""
        now = self._clock()
        found = []
        for i, seat in enumerate(self._seats):
            if seat.busy is not None and seat.busy.done():
                self._take_back(seat)
            if seat.busy is None and now >= seat.away_until and seat.member.there:
                found.append(i)
        return found

    def pace(self, member: int) -> float | None:
        """Seconds that a member's steps take; None: not known."""
        return self._seats[member].pace.mean

    def lateness(self, member: int) -> int:
        """How often it was passed by."""
        return self._seats[member].late

    def together(
        self, wanted: Sequence[int], job: Callable[[Member], T], tokens: Callable[[Member], int]
    ) -> dict[int, T]:
        """Let members do a job side by side; the results of those that were in time.

        ``tokens``: how many ids the job makes a member evaluate, so that a step that begins with
        reading is given longer. At least one result is waited for, if any can come; there is none
        where all of them failed.
        """
        started = self._clock()
        jobs: dict[int, Future[T]] = {}
        limits: dict[int, float] = {}
        for i in wanted:
            seat = self._seats[i]
            reading = tokens(seat.member)
            limits[i] = seat.patience(reading)
            jobs[i] = seat.threads.submit(self._timed, seat, job, reading)
            seat.busy = jobs[i]  # type: ignore[assignment]  # only asked whether it is done
        done: dict[int, T] = {}
        left = dict(jobs)
        while left:
            patience = max(limits[i] for i in left) - (self._clock() - started)
            wait(left.values(), None if not done and patience <= 0 else max(0.0, patience))
            finished = [i for i in left if left[i].done()]
            for i in finished:
                result = self._result(i, left.pop(i))
                if result is not None:
                    done[i] = result
            if left and done and self._clock() - started >= max(limits[i] for i in left):
                break
        for i in left:
            self._seats[i].late += 1
        return done

    def away(self) -> AwayError:
        """Why nobody can be asked, and when to ask again."""
        if any(seat.busy is not None for seat in self._seats):
            return AwayError("the drafters are busy", retry_after=BUSY, busy=True)
        errors = "; ".join(str(seat.trouble) for seat in self._seats)
        back = min((s.away_until for s in self._seats if s.member.there), default=0.0)
        pause = max(BUSY, back - self._clock())
        return AwayError(f"every drafter of the group failed: {errors}", retry_after=pause)

    def _timed(self, seat: _Seat, job: Callable[[Member], T], reading: int) -> T:
        began = self._clock()
        result = job(seat.member)
        seat.took(self._clock() - began, reading)
        return result

    def _result(self, index: int, future: Future[T]) -> T | None:
        """What a member did; None if it failed, which sends it away for a while."""
        seat = self._seats[index]
        seat.busy = None
        try:
            result = future.result()
        except BackendError as error:
            self._failed(seat, error)
            return None
        except Exception as error:
            self._failed(seat, BackendError(f"{seat.member.name} failed: {error}"))
            return None
        seat.failures, seat.error = 0, None
        return result

    def _take_back(self, seat: _Seat) -> None:
        """A step that was passed by has ended."""
        if seat.busy is not None:
            self._result(self._seats.index(seat), seat.busy)

    def _failed(self, seat: _Seat, error: BackendError) -> None:
        seat.error = error
        pause = min(BACK_OFF_MAX, BACK_OFF * 2**seat.failures)
        seat.failures += 1
        seat.away_until = self._clock() + pause

    def close(self) -> None:
        """Free all models, when what they are busy with has ended."""
        for seat in self._seats:
            seat.member.interrupt()
        for seat in self._seats:
            seat.threads.shutdown(wait=True, cancel_futures=True)
            seat.member.close()
