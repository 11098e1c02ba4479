"""The edge's engine: keep the drafter at the text's end and guess as far as the policy says.

Sans-thread and sans-clock: ``next(now)`` gives Work for the thread that owns the drafter,
``done(work, result, now)`` takes it back. A result whose epoch is over by then is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from outrider.edge_client.branches import Branches, Pace, Side, Trust, places
from outrider.edge_client.combining import MOST_PROPOSED
from outrider.edge_client.decisions import DecisionLog
from outrider.edge_client.health import Health
from outrider.edge_client.policy import Observed, Plan, Policy
from outrider.edge_client.ratio import Known, Rows, judge_of
from outrider.edge_client.standing import stand
from outrider.edge_client.work import DraftWork, Idle, Prefill, Work
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.edge import EdgeMachine
from outrider.protocol.edge_session import EdgeSession
from outrider.protocol.errors import BackendError
from outrider.protocol.messages import OFFERS
from outrider.protocol.packing import id_bits
from outrider.runtime.lm.drafter import Guess

PREFILL_SECONDS = 0.1
"""Longest piece of prefill, so that a verdict is never kept waiting by more."""

FIRST_CHUNK = 32

KNOWN_WELL, USUAL_WEIGHT = 16.0, 8.0
"""Judged guesses after which a session tells how good the drafter is, and for how many that counts
in the next session."""

STEP_GAIN = 1 / 8

AGREE = 0.4
"""Under the coupled rule a guess is right with chance AGREE + (1 - AGREE) * confidence, about, in
the records of real pairs: shared noise settles much that the drafter is unsure of. At temperature 0
it is right about as often as the drafter is sure (``benchmarks/records``)."""

SUREST = 0.98
READING = 0.25
"""Time of an id that is read along with others, in draft steps, until it is known."""

LITTLE = 2
"""Ids that are read along with a guess in about the time of the guess alone."""


@dataclass(slots=True)
class EdgeStats:
    """What the drafter did: guesses made, guesses dropped because their epoch was over, seconds.

    ``branches`` were made beside the chain, ``hits`` of them were where the text went on.
    """

    drafted: int = 0
    dropped: int = 0
    branches: int = 0
    hits: int = 0
    draft_seconds: float = 0.0
    prefilled: int = 0
    prefill_seconds: float = 0.0


class Source(Protocol):
    """What the engine asks of a drafter while it is idle; see :class:`Drafter`."""

    @property
    def n_ctx(self) -> int:
        """Ids that its context holds."""

    def behind(self, ids: Sequence[int]) -> int:
        """How many of ``ids`` it has not evaluated."""


class EdgeEngine:
    """Decides what the drafter does next. The machine owns the sessions, the policy the lengths.

    ``known`` is what earlier answers told. While the drafter is not in ``health``
    answers go on as plain cloud streaming and say so. It is only asked between works, when no
    thread is using it.
    """

    def __init__(
        self,
        machine: EdgeMachine,
        drafter: Source,
        policy: Policy,
        log: DecisionLog | None = None,
    ) -> None:
        self.machine = machine
        self.drafter = drafter
        self.policy = policy
        self.log = log
        self.stats = EdgeStats()
        self.health = Health()
        self._rows = Rows()
        self._turn = 0
        self._step: float | None = None
        self._prefill_rate: float | None = None
        self._usual: dict[str, float] = {}  # acceptance, by what judges
        self._done_with: dict[int, tuple[int, int, int]] = {}
        self._unsure: set[int] = set()
        self._trust = Trust()
        self._branches: dict[int, Branches] = {}

    @property
    def known(self) -> Known:
        """What the choice of a rule rests on."""
        usual = self._usual
        return Known(self.machine.link, self._step, usual.get("coupled"), usual.get("ratio"))

    def next(self, now: float) -> Work:
        """The drafter's next work, sessions in turn."""
        if self.health.rests(now):
            self._end_combined()
            return Idle()
        sessions = self.machine.sessions
        if len(self._branches) > len(sessions):  # some were closed
            open_ones = {session.handle for session in sessions}
            self._branches = {h: b for h, b in self._branches.items() if h in open_ones}
        for i in range(len(sessions)):
            at = (self._turn + i) % len(sessions)
            work = self._plan(sessions[at], now)
            if work is not None:
                # Whoever has begun to read its text goes on to its first guess: in turns, sessions
                # that share one cache would undo each other's reading for ever.
                self._turn = at if isinstance(work, Prefill) else (at + 1) % len(sessions)
                return work
        return Idle()

    def _plan(self, session: EdgeSession, now: float) -> Prefill | DraftWork | None:
        request = session.request
        if not session.may_guess or request is None:
            return None
        ahead = session.window.ahead
        ids = (*session.ids, *ahead)
        branches = self._branches.setdefault(session.handle, Branches(self._trust))
        self.stats.hits += branches.settle(session.answer, session.ids, ahead, now)
        behind = self.drafter.behind(ids)
        plan = self._observe(session, behind, now)
        room = self._room(session, len(ahead))
        count = min(plan.frame, plan.window - len(ahead), room)
        given = self._given(session, plan, room) if count > 0 else ()
        if plan.frame == 0 or (count <= 0 and not ahead):
            session.stop_riding()  # said once: the cloud need not wait for us
            return None
        if self._done_with.get(session.handle) == _place(session):
            count = 0
        longest = plan.branch if behind <= self._chunk() and not session.ratio else 0
        side = self._side(session, longest, now, away=max(0, behind - 1), going_on=count > 0)
        if side is not None or count <= 0:
            session.window.least = 1  # what was kept leaves now
        if side is not None:
            ids, count = (*ids[: side.index], side.second), side.count
        elif count <= 0:
            if not ahead:  # all that was guessed is committed, and no more will come from here
                session.stop_riding()
            return None
        chunk = self._chunk()
        if behind > chunk:
            return Prefill(session, ids, chunk, now)
        if session.handle not in self._unsure:
            session.ride()
        return DraftWork(
            session=session,
            answer=session.answer,
            epoch=session.window.begun,
            ids=ids,
            prompt_len=session.prompt_len,
            sampling=request.sampling,
            count=count,
            window=plan.window,
            never=self.machine.never_draft,
            floor=0.0 if session.collaborates else _floor(request.sampling, plan),
            started=now,
            gather=plan.gather,
            budget=self._rows.budget(session, self.machine.link) if session.ratio else None,
            standing=stand(session, self.machine, self._usual.get(judge_of(session))),
            behind=self.drafter.behind(ids),
            side=side,
            given=given,
        )

    def _given(self, session: EdgeSession, plan: Plan, room: int) -> tuple[int, ...]:
        """The cloud's proposals that are to be scored before there is a guess of our own."""
        welcome = self.machine.welcome
        session.scores = plan.offers and welcome is not None and OFFERS in welcome.features
        if not session.scores or not session.collaborates:
            return ()
        most = max(0, min(room - 1, MOST_PROPOSED))
        return session.offers.beyond(session.window.ahead)[:most]

    def _side(
        self, session: EdgeSession, longest: int, now: float, *, away: int, going_on: bool
    ) -> Side | None:
        """Where beside the chain the next guesses are of more use, if anywhere."""
        link, step = self.machine.link, self._step
        room = session.max_in_flight - session.window.in_flight - longest - 1
        if not longest or room < 0 or step is None or link.target is None or not session.judged:
            return None
        read = 1 / self._prefill_rate if self._prefill_rate else READING * step
        return self._branches[session.handle].best(
            Pace(step, read, link.target, link.srtt or 0.0),
            now,
            min(SUREST, session.right / session.judged),
            longest,
            away=away,
            going_on=going_on,
        )

    def _observe(self, session: EdgeSession, behind: int, now: float) -> Plan:
        request = session.request
        right, judged = session.right, session.judged
        usual = self._usual.get(judge_of(session))
        if judged >= KNOWN_WELL:
            self._usual[judge_of(session)] = right / judged
        elif usual is not None:
            right, judged = right + USUAL_WEIGHT * usual, judged + USUAL_WEIGHT
        observed = Observed(
            session=session.handle,
            answer=session.answer,
            now=now,
            link=self.machine.link,
            objective=session.objective,
            acceptance=right / judged if judged else None,
            judged=judged,
            draft_step=self._step,
            prefill_rate=self._prefill_rate,
            behind=behind,
            left=(request.max_tokens if request else 0) - session.emitted,
            emitted=session.emitted,
            ahead=len(session.window.ahead),
            cap=session.pacer.cap,
            guess_bytes=id_bits(self.machine.vocabulary.size) / 8,
        )
        together = request.sampling.collaborate if request else None
        made = (together, session.origins) if together else None
        plan = self._rows.plan(observed, self.policy, made) if session.ratio else None
        plan = plan or self.policy.plan(observed)
        if self.log is not None:
            reason = self._rows.reason if session.ratio else self.policy.reason
            self.log.consider(now, observed, plan, reason)
        return plan

    def _room(self, session: EdgeSession, ahead: int) -> int:
        """Guesses that can still matter: within both contexts and the answer's length.

        The pass that judges the last guess adds a token of its own, hence one less than is left.
        """
        request, welcome = session.request, self.machine.welcome
        left = (request.max_tokens if request else 0) - session.emitted
        length = len(session.ids) + ahead
        if session.collaborates:
            left += 1  # the cloud adds none of its own to a combined text
        room = min(left - 1 - ahead, self.drafter.n_ctx - length)
        return min(room, welcome.n_ctx - 1 - length) if welcome else room

    def _chunk(self) -> int:
        if self._prefill_rate is None:
            return FIRST_CHUNK
        return max(FIRST_CHUNK, int(self._prefill_rate * PREFILL_SECONDS))

    def done(
        self, work: Prefill | DraftWork, result: Guess | BackendError | None, now: float
    ) -> None:
        """Take a result back."""
        seconds = now - work.started
        if isinstance(result, BackendError):
            self.health.raised(result, now)
            for session in self.machine.sessions:
                session.stop_riding()
            return
        self.health.worked()
        if isinstance(work, Prefill):
            self._prefilled(work, seconds)
        elif result is not None:
            self._drafted(work, result, seconds, now)

    def _prefilled(self, work: Prefill, seconds: float) -> None:
        self.stats.prefilled += work.count
        self.stats.prefill_seconds += seconds
        if seconds > 0:
            self._prefill_rate = work.count / seconds

    def _drafted(self, work: DraftWork, guess: Guess, seconds: float, now: float) -> None:
        self.stats.drafted += len(guess.tokens)
        self.stats.draft_seconds += seconds
        if guess.tokens:
            self._timed(work, max(1, guess.spent - guess.scored), seconds, guess.scored)
        session = work.session
        ahead = self._still_ahead(work, guess)
        if ahead is None and work.side is not None and self._beside(work, work.side, guess, now):
            return
        if ahead is None:
            self.stats.dropped += len(guess.tokens)
            return
        tokens = ahead.tokens
        self.stats.dropped += max(0, len(guess.tokens) - len(tokens))
        # No more here: an end, too unsure, or in lockstep steps spent beside. Stopped says nothing.
        most = guess.depth if work.count >= work.window else guess.spent
        short = most < len(work.given) + work.count and not guess.stopped
        if guess.rows:
            self._rows.observe(session.handle, guess)
        if guess.tokens:
            self._unsure.discard(session.handle)
        else:  # do not announce guesses again before there are some
            self._unsure.add(session.handle)
        if tokens:
            outstanding = len(session.window.ahead) + ahead.depth
            ended = self._room(session, outstanding) <= 0  # no further guess could matter
            full = short or ended or outstanding >= work.window
            added = places(len(session.ids) + len(session.window.ahead), ahead, now)
            session.window.least = 1 if full else work.gather
            session.guess(tokens, ahead.rows, parents=ahead.parents, full=full, scored=ahead.scored)
            if known := self._branches.get(session.handle):
                known.extended(added)
        elif not guess.tokens and not session.window.ahead:
            session.stop_riding()  # too unsure to guess here: the cloud goes on alone
        if short:
            self._done_with[session.handle] = _place(session)

    def _beside(self, work: DraftWork, side: Side, guess: Guess, now: float) -> bool:
        """Guesses beside the chain, if their place is still to be judged."""
        session = work.session
        ahead = session.window.ahead
        before = (*session.ids, *ahead)[: side.index]
        same = session.may_guess and session.answer == work.answer
        at = side.index - len(session.ids)
        if not same or not 0 <= at < len(ahead) or before != work.ids[:-1]:
            return False
        if ahead[at] == side.second:
            return False
        session.window.branch(at, (side.second, *guess.tokens))
        self._branches[session.handle].branched(side.index, places(len(work.ids), guess, now))
        self.stats.branches += 1
        return True

    def _timed(self, work: DraftWork, count: int, seconds: float, scored: int = 0) -> None:
        """A sample of the draft step, unless it is not known how much of it was reading."""
        reading = max(0, work.behind - 1) + scored
        if self._prefill_rate is not None:
            seconds -= reading / self._prefill_rate
        elif reading > LITTLE:
            return
        step = max(0.0, seconds) / count
        known = step if self._step is None else self._step
        self._step = known + STEP_GAIN * (step - known)

    def _still_ahead(self, work: DraftWork, guess: Guess) -> Guess | None:
        """The guesses beyond where the text is by now; None if it went another way.

        What was committed meanwhile may be just what was guessed: the rest is as good as before.
        """
        session = work.session
        if not session.may_guess or session.answer != work.answer:
            return None
        if session.ratio and (work.budget is None or session.window.begun != work.epoch):
            return None  # made without rows, or for an epoch whose rows are gone
        now, then = (*session.ids, *session.window.ahead), work.ids
        if now[: len(then)] != then[: len(now)]:
            return None
        if len(now) < len(then) and work.side is not None:
            return None  # the chain's guess at that place is as likely as it was
        if len(now) < len(then):  # begun again before what was ahead then: that is as good as ever
            guess = guess.after(then[len(now) :])
        return guess.below(now[len(then) :])

    def wanted(self, work: DraftWork) -> bool:
        """The work's epoch is still the session's, and nothing was guessed in it meanwhile."""
        session = work.session
        if not session.may_guess or session.answer != work.answer:
            return False
        text = (*session.ids, *session.window.ahead)
        if work.side is None:
            return session.window.begun == work.epoch and text == work.ids
        before = len(work.ids) - 1
        return len(session.ids) <= len(work.ids) and text[:before] == work.ids[:before]

    def _end_combined(self) -> None:
        """Texts that are partly of the drafter end with it, as often as they are taken up again."""
        for session in self.machine.sessions:
            if session.may_guess and session.collaborates:
                session.stop_riding()


def _floor(sampling: Sampling, plan: Plan) -> float:
    """The confidence under which the drafter stops."""
    agree = AGREE if sampling.temperature > 0 else 0.0
    return max(plan.floor, (plan.chance - agree) / (1 - agree))


def _place(session: EdgeSession) -> tuple[int, int, int]:
    """Where the guesses of a session end: answer, epoch, length."""
    window = session.window
    return session.answer, window.begun, len(session.ids) + len(window.ahead)
