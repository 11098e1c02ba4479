"""The verifier's engine: schedule, forward, decide, verdicts. Sans-thread and sans-clock.

``next(now)`` gives the work to do, ``done(work, result, now)`` takes it back; a driver runs it on
the thread that owns the model, or a simulator charges its cost in virtual time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from outrider.cloud_server.grammar import Grammars
from outrider.cloud_server.kv_cache import Slot, SlotTable
from outrider.cloud_server.own_drafter import OwnDraft, OwnDrafter
from outrider.cloud_server.planner import EngineSettings, Held, Part, Planner, Thin
from outrider.cloud_server.scheduling.batch import Caps
from outrider.cloud_server.scheduling.steps import StepScheduler
from outrider.cloud_server.stats import EngineStats
from outrider.cloud_server.targets.base import Decided, Row, Target, TargetInfo
from outrider.cloud_server.together import Leads, combined, part_of
from outrider.protocol.decoding.processors import F32
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.errors import BackendError
from outrider.protocol.guesses import judge
from outrider.protocol.session import CloudSession
from outrider.protocol.table import SessionTable
from outrider.runtime.lm.drafter import Guess
from outrider.runtime.text.ending import Ending

BUSY = 0.5
"""Share of the slots in use above which the verifier's own draft model is left alone."""


class Item(msgspec.Struct, frozen=True):
    """One session's part in a pass, with what it was when the pass began."""

    session: CloudSession
    slot: Slot
    begun: int
    length: int
    part: Part
    ready_at: float


class _Ready(msgspec.Struct):
    """What a session could do in the next pass. ``held``: it would rather wait."""

    session: CloudSession
    slot: Slot
    cached: int
    part: Part
    held: bool = False


@dataclass(frozen=True, slots=True)
class Forward:
    """Evaluate these rows in one pass; ``items[i]`` is whose ``rows[i]`` is.

    ``known``: there is nothing to evaluate, ``known[i]`` are the target's rows for the guesses of
    ``rows[i]``.
    """

    rows: tuple[Row, ...]
    items: tuple[Item, ...]
    started: float
    known: tuple[Sequence[F32], ...] = ()

    def run(self, target: Target) -> list[Decided]:
        """On the thread that owns the target; raises as :meth:`Target.forward`."""
        if self.known:
            return combined(self.rows, self.known, target.info.usable)
        return target.forward(self.rows)


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before ``until`` (None: before something arrives)."""

    until: float | None


Work = Forward | OwnDraft | Wait


class CloudEngine:
    """Owns the slots and the endings of answers; sessions are owned by the table."""

    def __init__(
        self,
        table: SessionTable,
        info: TargetInfo,
        eos: frozenset[int],
        token_bytes: Callable[[int], bytes],
        settings: EngineSettings | None = None,
        *,
        own: OwnDrafter | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        self.table = table
        self.info = info
        self.eos = eos
        self.own = own
        self.grammars = grammars
        settings = settings or EngineSettings()
        self.planner = Planner(info.n_ctx, settings, own, info.leaves)
        caps = Caps(tokens=settings.step_tokens, seconds=settings.step_seconds)
        self.steps = StepScheduler(settings.scheduler, caps)
        self.stats = EngineStats()
        self._token_bytes = token_bytes
        self._slots = SlotTable(info.slots)
        self._prompted: dict[bytes, int] = {}
        table.cached, table.ended = self.cached, self.ended
        self._endings: dict[bytes, tuple[int, Ending]] = {}
        self._leads = Leads(info.usable)
        self._dropped = 0
        self._unmeasured: tuple[Forward, float] | None = None

    # --- work -------------------------------------------------------------------------------

    def next(self, now: float) -> Work:
        """The next pass, guesses of our own to be made before it, or how long there is nothing."""
        if self._unmeasured is not None:  # not before: verdicts leave between done() and next()
            self._measure(*self._unmeasured)
            self._unmeasured = None
        self.table.expire(now)
        self._tidy()
        active = [s for s in self.table.sessions.values() if s.active]
        # Our own draft model runs where there is room, and keeps no row waiting that is ready.
        room = len(active) <= BUSY * self.info.slots
        sharers = len(active) if len(active) == 1 or room else 0
        parts: list[_Ready] = []
        known: list[_Ready] = []
        held: list[_Ready] = []
        further: list[_Ready] = []
        waits: list[float] = []
        thin: list[tuple[CloudSession, Thin]] = []
        # All slots first: what one session takes may be what another hoped to copy.
        slots = [(session, self._slots.obtain(session, now)) for session in active]
        for session, slot in slots:
            if slot is None:
                continue  # more answers under way than slots: it waits for one to end
            cached = self._slots.cached(slot, session)
            if session.collaborates and (lead := self._leads.of(session)) is not None:
                part = part_of(session, lead, now, self.planner.pass_time.of(1), self.info.n_ctx)
                if part is not None:
                    ready = _Ready(session, slot, cached, part, held=part.ahead)
                    (further if part.ahead else known).append(ready)
                continue  # all that is missing is the edge's row
            plan = self.planner.plan(session, cached, now, sharers)
            if isinstance(plan, Held):
                waits.append(plan.until)
                if plan.ready is not None:
                    held.append(_Ready(session, slot, cached, plan.ready, held=True))
                continue
            if isinstance(plan, Thin):
                thin.append((session, plan))
            part = plan.part if isinstance(plan, Thin) else plan
            parts.append(_Ready(session, slot, cached, part))
        if known:
            return self._work(known, now, tuple(map(self._rows_of, known)))
        if not parts:
            until = min((*waits, *self._expiry()), default=None)
            return self._work(further, now) if further else Wait(until)
        if thin and len(thin) == len(parts):
            return self._draft(*thin[0], now)
        # A pass runs anyway: sessions that waited for more guesses come along.
        return self._work(self._chosen(parts + held + further, now), now)

    def _work(
        self, chosen: list[_Ready], now: float, known: tuple[Sequence[F32], ...] = ()
    ) -> Forward:
        rows, items = zip(*(self._row(ready, now) for ready in chosen), strict=True)
        return Forward(rows, items, now, known)

    def _rows_of(self, ready: _Ready) -> Sequence[F32]:
        """The target's rows for guesses that are judged without a pass."""
        lead = self._leads.of(ready.session)
        assert lead is not None
        return lead.rows[: ready.part.want]

    def _chosen(self, ready: list[_Ready], now: float) -> list[_Ready]:
        """What the scheduler takes into the next pass, and with how many guesses."""
        planner = self.planner
        asks = [planner.ask(r.session, r.part, r.cached, now, r.held) for r in ready]
        choice = self.steps.choose(asks, planner.pass_time)
        for asking, load in zip(ready, self.steps.loads, strict=True):
            asking.session.load = load
        chosen = []
        for i, granted in choice.items():
            ready[i].part = _granted(ready[i], granted)
            chosen.append(ready[i])
        return chosen

    def cached(self, session: CloudSession) -> int:
        """How many ids of a prompt that was just opened need not be evaluated again."""
        return min(self._slots.found(session), session.prompt_len - 1)

    def ended(self, session: CloudSession) -> tuple[str, int | None]:
        """How an answer ended that was given back with a full context: no pass can follow it."""
        scan = self._ending(session).scan(())
        return (scan.reason, scan.text_bytes) if scan.reason else ("length", None)

    @property
    def cache_usage(self) -> float:
        """Share of the cache that holds ids, whoever's; 1 is full."""
        return self._slots.held / (self.info.slots * self.info.n_ctx)

    def _draft(self, session: CloudSession, plan: Thin, now: float) -> OwnDraft:
        """Work for our own draft model, behind the edge's live guesses."""
        assert self.own is not None
        part = plan.part
        return self.own.work(session, part.chain[: len(part.chain) - part.own], plan.wish, now)

    def wanted(self, work: OwnDraft) -> bool:
        """Whether guesses under way are still of use, and keep nobody from a first token."""
        session = work.session
        fresh = any(s.active and s.passes == 0 for s in self.table.sessions.values())
        return session.active and session.begun == work.begun and not fresh

    def drafted(self, work: OwnDraft, result: Guess | BackendError, now: float) -> None:
        """Take guesses of our own back. A draft model that fails is off; the answers go on."""
        assert self.own is not None
        self.stats.own_drafts += 1
        self.stats.own_seconds += now - work.started
        kept = self.own.done(work, result, now)
        if isinstance(result, Guess) and not kept:
            self.stats.own_dropped += len(result.tokens)

    def _tidy(self) -> None:
        """Forget what belonged to sessions that are gone."""
        if self._dropped == self.table.dropped:
            return
        self._dropped, alive = self.table.dropped, self.table.sessions.keys()
        self._prompted = {k: v for k, v in self._prompted.items() if k in alive}
        self._endings = {k: v for k, v in self._endings.items() if k in alive}
        self.planner.forget(set(alive))
        if self.grammars is not None:
            self.grammars.forget(alive)
        self._leads.forget(set(alive))

    def _expiry(self) -> list[float]:
        """When the session that has been detached longest is to be forgotten."""
        detached = [s.idle_since for s in self.table.sessions.values() if s.link is None]
        return (
            [min(detached) + self.table.config.limits.detached_seconds + 0.001] if detached else []
        )

    def _row(self, ready: _Ready, now: float) -> tuple[Row, Item]:
        session, slot, part = ready.session, ready.slot, ready.part
        request, prompt = session.request, session.prompt_len
        ids = session.ids[: part.end]
        ids.extend(part.chain)
        row = Row(
            slot=slot.index,
            cut=self._cut(ready, ids),
            ids=ids,
            want=part.want,
            sampling=request.sampling if request else Sampling(),
            prompt_len=min(prompt, part.end),  # a chunk may end inside the prompt
            source=self._slots.source(slot, session.ids) if slot.source else None,
            rows=part.rows,
            parents=part.parents,
            logprobs=request.logprobs if request else None,
            constraint=self.grammars.of(session) if self.grammars else None,
            scored=part.scored,
        )
        if self._prompted.get(session.key) != session.begun:
            self._prompted[session.key] = session.begun
            self.stats.prompt_tokens += prompt
            self.stats.cached_prompt_tokens += min(row.cut, prompt)
        since = session.frame_at if len(part.chain) > part.own else None
        since = now if since is None else since
        return row, Item(session, slot, session.begun, len(session.ids), part, since)

    def _cut(self, ready: _Ready, ids: list[int]) -> int:
        """Of how many of the row's ids the cache serves: the last is evaluated in any case."""
        part = ready.part
        if part.ahead:  # what the slot was fed may reach into the chain
            return min(self._slots.shared(ready.slot, ids), len(ids) - 1)
        return min(ready.cached, part.end - max(part.want - len(part.chain), 1))

    def done(self, work: Forward, result: list[Decided] | BackendError, now: float) -> None:
        """Take the pass back: commit what the target chose, unless the answer changed meanwhile."""
        self.stats.passes += not work.known
        self.stats.target_seconds += now - work.started
        if isinstance(result, BackendError):
            self._failed(work, result)
            return
        self._unmeasured = None if work.known else (work, now)
        known, started, took = bool(work.known), work.started, now - work.started
        for item, row, decided in zip(work.items, work.rows, result, strict=True):
            session = item.session
            if not known:
                self._slots.fed(item.slot, row.kept(decided), (session, item.begun, item.part.end))
                session.target_time = took
            session.queue_time = max(0.0, started - item.ready_at)
            same = session.begun == item.begun and len(session.ids) == item.length
            if row.constraint is not None and row.constraint.error and same:
                self._spoilt(session, row.constraint.error)
            if row.want and session.running and same:
                session.passes += not known
                if decided.ids:
                    self._commit(session, item.part, decided, now)
                if decided.behind is not None:
                    chain = item.part.chain if item.part.ahead else ()
                    self._leads.learn(session, decided.behind, chain)

    def rehearsed(self, times: Sequence[tuple[int, float]]) -> None:
        """Passes made before anybody came: tokens and seconds of each."""
        for tokens, seconds in times:
            self.planner.pass_time.observe(1, tokens, tokens, seconds)
        self.table.pass_times = self.planner.pass_time.curve()

    def _measure(self, work: Forward, now: float) -> None:
        """How long the pass took, and whose rows were in it."""
        owners = [item.session.owner for item in work.items]
        lengths = [len(row.ids) for row in work.rows]
        used: dict[str, tuple[int, int, int]] = {}
        for owner, row, length in zip(owners, work.rows, lengths, strict=True):
            rows, most, context = used.get(owner, (0, 0, 0))
            used[owner] = (rows + 1, most + length - row.cut, context + length)
        tokens = sum(most for _, most, _ in used.values())
        times = self.planner.pass_time
        times.observe(len(work.rows), max(lengths), tokens, now - work.started)
        self.table.pass_times = times.curve()
        self.steps.done(used, times, now)

    def _commit(self, session: CloudSession, part: Part, decided: Decided, now: float) -> None:
        tokens = list(decided.ids) if part.parents else judge(part.chain, decided.ids)
        accepted = len(tokens) - 1
        refused = part.contradicted(tokens) if part.parents else None
        if session.collaborates:
            accepted += tokens == list(part.chain[: len(tokens)])
        elif part.rows and accepted == len(part.rows) and session.expects(accepted):
            del tokens[accepted]  # the next draft is judged there; a bonus would void it
        scan = self._ending(session).scan(tokens)
        if scan.keep < len(tokens):
            del tokens[scan.keep :]
        session.commit(tokens, min(accepted, len(part.rows)), decided.logprobs)
        own = len(tokens) - accepted
        self.planner.judged(session, part, accepted, now, own=own, refused=refused)
        self.stats.count(part, min(accepted, scan.keep), scan.keep)
        reason: str | None = scan.reason
        text_bytes: int | None = scan.text_bytes
        if reason is None and len(session.ids) >= self.info.n_ctx:
            reason, text_bytes = "length", None  # the context is full: nothing is shifted out
        if reason is not None:
            emitted = len(session.ids) - session.prompt_len
            session.finish(reason, emitted, text_bytes)

    def _ending(self, session: CloudSession) -> Ending:
        """The stop rules of the answer under way, having seen what was committed of it before."""
        known = self._endings.get(session.key)
        if known is not None and known[0] == session.begun:
            return known[1]
        request = session.request
        ending = Ending(
            stops=request.stops if request else (),
            eos=frozenset() if request and request.ignore_eos else self.eos,
            max_tokens=request.max_tokens if request else 1,
            token_bytes=self._token_bytes,
        )
        ending.scan(session.ids[session.prompt_len :])
        self._endings[session.key] = (session.begun, ending)
        return ending

    def _failed(self, work: Forward, error: BackendError) -> None:
        """The backend could not run the pass: every answer in it ends, with the reason."""
        self.stats.failures += 1
        for item in work.items:
            self._slots.spoil(item.slot.index)
            session = item.session
            if session.begun == item.begun and session.running:
                session.finish(f"error: {error}", len(session.ids) - session.prompt_len, None)

    def _spoilt(self, session: CloudSession, why: str) -> None:
        """An answer of a form that turned out to be too complex ends with what there is of it."""
        emitted = len(session.ids) - session.prompt_len
        session.finish(f"error: its form is too complex: {why}", emitted, None)


def _granted(ready: _Ready, drafts: int) -> Part:
    """The part with so many of its guesses or, if negative, so many ids of its prompt fewer."""
    part = ready.part
    if part.ahead:
        return part
    if part.end - ready.cached <= 1 and part.want:  # all but the frontier is evaluated
        return part.of_drafts(drafts)
    if drafts == 0:
        return part
    count = part.end - ready.cached + len(part.chain) + drafts
    end = min(part.end, ready.cached + count)
    if end == part.end and part.want:
        return part.of_drafts(count - (part.end - ready.cached))
    return Part(end, 0)
