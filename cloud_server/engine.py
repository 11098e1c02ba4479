"""The verifier's engine: schedule, forward, decide, verdicts. Sans-thread and sans-clock.

``next(now)`` gives the work to do, ``done(work, result, now)`` takes it back; a driver runs it on
the thread that owns the model, or a simulator charges its cost in virtual time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from outrider.cloud_server.kv_cache import Slot, SlotTable
from outrider.cloud_server.targets.base import Decided, Row, TargetInfo
from outrider.protocol.cloud import SessionTable
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.errors import BackendError
from outrider.protocol.session import CloudSession, judge
from outrider.runtime.text.ending import Ending


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Times in seconds, sizes in tokens.

    A riding session's guesses are awaited for ``patience`` times the predicted arrival, but at
    least ``patience_floor`` and at most ``patience_cap``, which also serves while nothing is known.
    """

    prefill_chunk: int = 256
    max_chain: int = 64
    patience: float = 4.0
    patience_floor: float = 0.05
    patience_cap: float = 1.0


@dataclass(frozen=True, slots=True)
class Item:
    """One session's part in a pass, with what it was when the pass began."""

    session: CloudSession
    slot: Slot
    begun: int
    length: int
    chain: tuple[int, ...]
    ready_at: float


@dataclass(frozen=True, slots=True)
class Forward:
    """Evaluate these rows in one pass; ``items[i]`` is whose ``rows[i]`` is."""

    rows: tuple[Row, ...]
    items: tuple[Item, ...]
    started: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before ``until`` (None: before something arrives)."""

    until: float | None


Work = Forward | Wait


@dataclass(slots=True)
class EngineStats:
    """Counters since the start; the names follow the field's metrics."""

    passes: int = 0
    tokens: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    failures: int = 0


class CloudEngine:
    """Owns the slots and the endings of answers; sessions are owned by the table."""

    def __init__(
        self,
        table: SessionTable,
        info: TargetInfo,
        eos: frozenset[int],
        token_bytes: Callable[[int], bytes],
        settings: EngineSettings | None = None,
    ) -> None:
        self.table = table
        self.info = info
        self.eos = eos
        self.settings = settings or EngineSettings()
        self.stats = EngineStats()
        self._token_bytes = token_bytes
        self._slots = SlotTable(info.slots)
        self._endings: dict[bytes, tuple[int, Ending]] = {}

    # --- work -------------------------------------------------------------------------------

    def next(self, now: float) -> Work:
        """The next pass, or how long there is nothing to do."""
        self.table.expire(now)
        active = [s for s in self.table.sessions.values() if s.active]
        self._endings = {k: v for k, v in self._endings.items() if k in self.table.sessions}
        rows: list[Row] = []
        items: list[Item] = []
        wake: list[float] = []
        for session in active:
            slot = self._slots.obtain(session, now)
            if slot is None:
                continue  # more answers under way than slots: it waits for one to end
            planned = self._plan(session, slot, now)
            if isinstance(planned, float):
                wake.append(planned)
            else:
                rows.append(planned[0])
                items.append(planned[1])
        self.table.load = min(1.0, len(active) / self.info.slots)
        if rows:
            return Forward(tuple(rows), tuple(items), now)
        detached = [s.idle_since for s in self.table.sessions.values() if s.link is None]
        if detached:
            wake.append(min(detached) + self.table.config.limits.detached_seconds + 0.001)
        return Wait(min(wake, default=None))

    def _plan(self, session: CloudSession, slot: Slot, now: float) -> tuple[Row, Item] | float:
        """The session's row of the next pass, or until when to wait for its guesses."""
        settings, ids = self.settings, session.ids
        cached = self._slots.cached(slot, ids)
        behind = len(ids) - cached
        chain: list[int] = []
        if behind > settings.prefill_chunk:
            end, want = cached + settings.prefill_chunk, 0
        else:
            room = self.info.n_ctx - len(ids) - 1  # the pass adds a token of its own
            chain = session.window.chain(min(settings.max_chain, room))
            deadline = self._deadline(session, now)
            # The first token, and a text that has to be evaluated anyway, never wait.
            if behind <= 1 and not chain and session.riding and now < deadline:
                return deadline
            if not chain and session.riding and now >= deadline:
                session.riding = False  # it kept us waiting: go on alone until it sends again
            end, want = len(ids), 1 + len(chain)
        cut = min(cached, end - max(want - len(chain), 1))
        row = Row(
            slot=slot.index,
            cut=cut,
            ids=ids[:end] + chain,
            want=want,
            sampling=session.request.sampling if session.request else Sampling(),
            prompt_len=min(session.prompt_len, end),  # a chunk may end inside the prompt
        )
        ready = session.frame_at if chain and session.frame_at is not None else now
        return row, Item(session, slot, session.begun, len(ids), tuple(chain), ready)

    def _deadline(self, session: CloudSession, now: float) -> float:
        """Until when a riding session's next guesses are awaited: it answers what it was told."""
        settings = self.settings
        patience = settings.patience_cap
        if session.reply_time is not None:
            patience = max(settings.patience_floor, settings.patience * session.reply_time)
        since = now if session.has_news else max(session.verdict_at or 0.0, session.frame_at or 0.0)
        return since + min(patience, settings.patience_cap)

    def done(self, work: Forward, result: list[Decided] | BackendError, now: float) -> None:
        """Take the pass back: commit what the target chose, unless the answer changed meanwhile."""
        self.stats.passes += 1
        if isinstance(result, BackendError):
            self._failed(work, result)
            return
        for item, row, decided in zip(work.items, work.rows, result, strict=True):
            item.slot.ids = row.ids
            session = item.session
            session.queue_time = max(0.0, work.started - item.ready_at)
            session.target_time = now - work.started
            same = session.begun == item.begun and len(session.ids) == item.length
            if row.want and session.running and same:
                session.passes += 1
                self._commit(session, item.chain, decided)

    def _commit(self, session: CloudSession, chain: tuple[int, ...], decided: Decided) -> None:
        tokens = judge(chain, decided.ids)
        scan = self._ending(session).scan(tokens)
        session.commit(tokens[: scan.keep])
        self._count(chain, min(len(tokens) - 1, scan.keep), scan.keep)
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

    def _count(self, chain: tuple[int, ...], accepted: int, kept: int) -> None:
        stats = self.stats
        stats.tokens += kept
        if not chain:
            return
        stats.num_drafts += 1
        stats.num_draft_tokens += len(chain)
        stats.num_accepted_tokens += accepted
        missing = accepted - len(stats.accepted_per_position)
        stats.accepted_per_position.extend([0] * max(0, missing))
        for position in range(accepted):
            stats.accepted_per_position[position] += 1
