"""One session's part in the next pass: what to evaluate and judge, or how long to wait.

Puts the measurements (``estimate``), the look-up (``lookup``) and the rules (``scheduler``)
together. Works on sessions, never on tensors.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from outrider.cloud_server.estimate import PassTime, SessionPace, arrivals
from outrider.cloud_server.lookup import Lookup
from outrider.cloud_server.scheduler import STANCES, useful, wait
from outrider.protocol.session import CloudSession

ARRIVALS = 12
"""How many coming guesses a decision looks at."""

SOON = 0.0005
"""A wait shorter than half a millisecond is not worth a timer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Times in seconds, sizes in tokens.

    A riding session's guesses are awaited under the objective ``cost`` for ``patience`` times the
    usual reply, but at least ``patience_floor`` and at most ``patience_cap``, which also serves
    while nothing is known. ``lookup`` is how many guesses the verifier may add of its own; 0: none.
    """

    prefill_chunk: int = 256
    max_chain: int = 64
    patience: float = 4.0
    patience_floor: float = 0.05
    patience_cap: float = 1.0
    lookup: int = 8


@dataclass(frozen=True, slots=True)
class Part:
    """Feed ids up to ``end``, then ``chain``; its last ``own`` guesses are the verifier's own."""

    end: int
    want: int
    chain: tuple[int, ...] = ()
    own: int = 0


@dataclass(frozen=True, slots=True)
class Held:
    """Wait until then. ``ready``: there are guesses, which may join a pass that runs anyway."""

    until: float
    ready: Part | None


@dataclass(slots=True)
class _Known:
    """What was learned in one answer."""

    begun: int
    pace: SessionPace = field(default_factory=SessionPace)
    lookup: Lookup = field(default_factory=Lookup)


class Planner:
    """Decides for each session; owns what was measured of passes and sessions."""

    def __init__(self, n_ctx: int, settings: EngineSettings) -> None:
        self.settings = settings
        self.pass_time = PassTime()
        self._n_ctx = n_ctx
        self._known: dict[bytes, _Known] = {}

    def forget(self, alive: set[bytes]) -> None:
        """Only these sessions are still there."""
        self._known = {key: value for key, value in self._known.items() if key in alive}

    def plan(self, session: CloudSession, cached: int, now: float) -> Part | Held:
        """What to do for a session of whose ids ``cached`` are evaluated."""
        settings, length = self.settings, len(session.ids)
        if length - cached > settings.prefill_chunk:
            return Part(cached + settings.prefill_chunk, 0)
        chain, own = self._guesses(session)
        part = Part(length, 1 + len(chain) + len(own), (*chain, *own), len(own))
        # The first token, and a text that has to be evaluated anyway, never wait; nor does the
        # last that the context takes, for which no guess can help.
        last = length + 1 >= self._n_ctx
        if length - cached > 1 or session.passes == 0 or not session.riding or last:
            return part
        until = self._until(session, len(part.chain), now)
        if until > now + SOON:
            return Held(until, part if part.chain else None)
        if not chain and session.objective == "cost":
            session.riding = False  # it kept us waiting: go on alone until it sends again
        return part

    def _guesses(self, session: CloudSession) -> tuple[list[int], list[int]]:
        """The edge's live guesses and, behind them, our own: as many as are worth their share."""
        settings, known = self.settings, self._of(session)
        room = self._n_ctx - len(session.ids) - 1  # the pass adds a token of its own
        each, rate = self.pass_time.each, self._rate(known.pace)
        limit = max(1, useful(known.pace.edge.alpha, each, rate, settings.max_chain))
        chain = session.window.chain(min(limit, room))
        room = min(settings.lookup, limit - len(chain), room - len(chain))
        if room <= 0 or len(session.window.chain(limit + 1)) > len(chain):
            return chain, []
        count = useful(known.pace.own.alpha, each, rate, room)
        return chain, known.lookup.propose(session.ids, chain, count) if count else []

    def _until(self, session: CloudSession, live: int, now: float) -> float:
        """Until when to wait for further guesses of a riding session; ``now`` or less: do not."""
        pace, stance = self._of(session).pace, STANCES[session.objective]
        expected = arrivals(session, now, ARRIVALS)
        pass_time = self.pass_time.of(1 + live)
        since = pace.committed_at if pace.committed_at is not None else now
        patience = self._patience(session, now)
        cap = min(patience, since + stance.cap * pass_time)
        if live == 0 and session.objective == "cost":
            return patience
        delay = wait(
            live,
            expected,
            alpha=pace.edge.alpha,
            pass_time=pass_time,
            stance=stance,
        )
        return min(now + delay, cap)

    def _patience(self, session: CloudSession, now: float) -> float:
        """Until when an edge that has been told everything may still be silent."""
        settings = self.settings
        patience = settings.patience_cap
        if session.reply_time is not None:
            patience = max(settings.patience_floor, settings.patience * session.reply_time)
        since = now if session.has_news else max(session.verdict_at or 0.0, session.frame_at or 0.0)
        return since + min(patience, settings.patience_cap)

    def judged(self, session: CloudSession, part: Part, accepted: int, now: float) -> None:
        """A pass was decided: so many of the part's guesses were right."""
        pace = self._of(session).pace
        theirs = len(part.chain) - part.own
        if theirs:
            pace.edge.observe(min(accepted, theirs), accepted < theirs)
        if part.own and accepted >= theirs:
            pace.own.observe(accepted - theirs, accepted < len(part.chain))
        pace.committed(accepted + 1, now)

    def _rate(self, pace: SessionPace) -> float:
        """Tokens a second lately; until known, what the target does alone."""
        return pace.rate if pace.rate is not None else 1 / max(1e-6, self.pass_time.of(1))

    def _of(self, session: CloudSession) -> _Known:
        known = self._known.get(session.key)
        if known is None or known.begun != session.begun:
            known = self._known[session.key] = _Known(session.begun)
        return known
