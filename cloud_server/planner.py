"""One session's part in the next pass: what to evaluate and judge, or how long to wait.

Puts the measurements (``estimate``), the look-up (``lookup``) and the rules (``scheduler``)
together. Works on sessions, never on tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from outrider.cloud_server.estimate import (
    LONG_MEMORY,
    USUAL_WEIGHT,
    Acceptance,
    SessionPace,
    arrivals,
    coming,
    powers,
    reach_of_tree,
)
from outrider.cloud_server.lookup import Lookup
from outrider.cloud_server.own_drafter import OwnDrafter, Wish
from outrider.cloud_server.scheduler import STANCES, useful, wait, worth_drafting
from outrider.cloud_server.scheduling.batch import Rank, Request
from outrider.cloud_server.scheduling.policies import SchedulerName
from outrider.cloud_server.scheduling.step_time import StepTime
from outrider.cloud_server.scheduling.steps import Ask
from outrider.protocol.decoding import trees
from outrider.protocol.decoding.row import SparseRow
from outrider.protocol.session import CloudSession

IDLE = 60.0
"""Seconds to the next look at a session that cannot go on before its edge sends something."""

ARRIVALS = 12
"""How many coming guesses a decision looks at."""

QUICK_EDGE = 1.5
"""Gap between an edge's guesses, in steps of our own draft model, up to which it is quick."""

WORST_START = 0.5
"""Acceptance with which an answer begins at least, however bad the drafters were lately."""

UNTAKEN = 0.5
"""Share of a session's load under which a guess is not looked at: it will not be taken."""

VERIFY, PREFILL, ADVANCE, OPTIONAL = Rank
NONE: tuple[float, ...] = ()

SOON = 0.0005
"""A wait shorter than half a millisecond is not worth a timer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Times in seconds, sizes in tokens.

    A riding session's guesses are awaited under the objective ``cost`` for ``patience`` times the
    usual reply, but at least ``patience_floor`` and at most ``patience_cap``, which also serves
    while nothing is known. ``lookup`` is how many guesses the verifier may look up in the text by
    itself; 0: none. ``scheduler`` chooses what a step is made of: of all sessions together it takes
    ``step_tokens`` at most, and ``step_seconds``.
    """

    prefill_chunk: int = 256
    max_chain: int = 64
    patience: float = 4.0
    patience_floor: float = 0.05
    patience_cap: float = 1.0
    lookup: int = 8
    scheduler: SchedulerName = "cosine"
    step_tokens: int = 2048
    step_seconds: float = 0.4


class Part(msgspec.Struct, frozen=True):
    """Feed ids up to ``end``, then ``chain``; its last ``own`` guesses are the verifier's own.

    ``drafted``: those come from its draft model, not from the look-up. ``spare`` are the edge's
    guesses behind the chain that are not judged. ``rows``: under the ratio rule, what the edge's
    guesses were drawn from. ``parents``: ``chain`` is a tree, one parent a node, all the edge's.
    ``scored``: which of them are proposals of this cloud. ``ahead``: nothing is judged, ``chain``
    is what the cloud itself would say.
    """

    end: int
    want: int
    chain: tuple[int, ...] = ()
    own: int = 0
    drafted: bool = False
    spare: tuple[int, ...] = ()
    rows: tuple[SparseRow, ...] = ()
    parents: tuple[int, ...] = ()
    scored: tuple[bool, ...] = ()
    ahead: bool = False

    @property
    def depth(self) -> int:
        """Most guesses that can be right."""
        return 1 + max(trees.depths(self.parents)) if self.parents else len(self.chain)

    def contradicted(self, tokens: Sequence[int]) -> bool:
        """A pass committed these tokens, the last no guess of this tree: others stood there."""
        nodes = trees.follow(self.chain, self.parents, tokens)
        return (nodes[-1] if nodes else trees.ROOT) in self.parents

    def of_drafts(self, count: int) -> Part:
        """The same with the first ``count`` of its guesses only."""
        if count == len(self.chain):
            return self
        theirs = len(self.chain) - self.own
        spare, own = (*self.chain[count:theirs], *self.spare), max(0, count - theirs)
        chain, rows = self.chain[:count], self.rows[:count]
        parents, scored = self.parents[:count], self.scored[:count]
        return Part(self.end, 1 + count, chain, own, self.drafted, spare, rows, parents, scored)


class Held(msgspec.Struct, frozen=True):
    """Wait until then. ``ready``: what may join a pass that runs anyway."""

    until: float
    ready: Part | None


class Thin(msgspec.Struct, frozen=True):
    """A part that may run now but would be worth more with guesses of our own draft model."""

    part: Part
    wish: Wish


@dataclass(slots=True)
class _Known:
    """What was learned in one answer."""

    begun: int
    pace: SessionPace
    lookup: Lookup = field(default_factory=Lookup)


class Planner:
    """Decides for each session; owns what was measured of passes and sessions."""

    def __init__(
        self,
        n_ctx: int,
        settings: EngineSettings,
        own: OwnDrafter | None = None,
        leaves: int = 1,
    ) -> None:
        self.settings = settings
        self._leaves = leaves
        self.own = own
        self.pass_time = StepTime()
        self.usual = Acceptance(keep=LONG_MEMORY)
        self._n_ctx = n_ctx
        self._known: dict[bytes, _Known] = {}

    def forget(self, alive: set[bytes]) -> None:
        """Only these sessions are still there."""
        self._known = {key: value for key, value in self._known.items() if key in alive}
        if self.own is not None:
            self.own.forget(alive)

    def plan(
        self, session: CloudSession, cached: int, now: float, sharers: int = 1
    ) -> Part | Held | Thin:
        """What to do for a session of whose ids ``cached`` are evaluated.

        ``sharers``: answers under way, this one included; 0: our draft model is not to be asked.
        """
        settings, length = self.settings, len(session.ids)
        if length - cached > settings.prefill_chunk:
            return Part(cached + settings.prefill_chunk, 0)
        known = self._of(session)
        part = self._part(session, known)
        if not part.chain and session.collaborates:
            # Nothing can be chosen without the edge's rows, but the text can be read, and the row
            # at its end be made meanwhile where passes are not what is to be saved.
            if session.objective != "cost":
                return Part(length, 1)
            return Part(length, 0) if length - cached > 1 else Held(now + IDLE, None)
        # The first token, and a text that has to be evaluated anyway, never wait; nor does the
        # last that the context takes, for which no guess can help.
        last = length + 1 >= self._n_ctx
        if length - cached > 1 or session.passes == 0 or last:
            return part
        thin = None
        if sharers and self.own is not None and not _awaits(session):
            thin = self._thin(session, part, sharers)
        if not session.riding or part.drafted or (thin and self._better(session, part, thin, now)):
            return thin or part
        live = part.depth if part.parents else len(part.chain)
        until = self._until(session, known.pace, live, now)
        if until > now + SOON:
            joins = part.chain or (session.objective == "latency" and not _awaits(session))
            return Held(until, part if joins else None)
        if thin is None and len(part.chain) == part.own and session.objective == "cost":
            session.riding = False  # it kept us waiting: go on alone until it sends again
        return thin or part

    def _part(self, session: CloudSession, known: _Known) -> Part:
        """The edge's live guesses and, behind them, our own: as many as are worth their share."""
        settings, length = self.settings, len(session.ids)
        window, pace, most = session.window, known.pace, settings.max_chain
        room = self._n_ctx - length - 1  # the pass adds a token of its own
        # A guess must also pay against what the target would do alone, however slow it is now.
        rate = 1 / max(1e-6, self.pass_time.of(1))
        if pace.rate is not None and pace.rate > rate:
            rate = pace.rate
        least = max(self.pass_time.each * rate, session.load * UNTAKEN)
        # More than there are, and as many of our own, need not be thought about.
        chain = window.chain(most + 1)
        branched = self._leaves > 1 and window.branched
        if not branched:
            most = min(most, len(chain) + max(1, settings.lookup))
        limit = max(0, min(room, max(1, useful(pace.edge.alpha, least, 1.0, most))))
        if branched:
            nodes, parents = window.tree(limit, min(most, room), self._leaves)
            if parents:
                return Part(length, 1 + len(nodes), nodes, parents=parents)
        spare = tuple(chain[limit : limit + 1])
        del chain[limit:]
        own, drafted = [], False
        room -= len(chain)
        if (self.own is not None or settings.lookup) and not spare and not _awaits(session):
            own = list(self.own.guesses(session, chain)[:room]) if self.own is not None else []
            drafted = bool(own)
            room = min(settings.lookup, limit - len(chain), room)
            if not drafted and room > 0:
                count = useful(pace.own.alpha, least, 1.0, room)
                own = known.lookup.propose(session.ids, chain, count) if count else []
        guesses = (*chain, *own)
        own_count, want = len(own), 1 + len(guesses)
        if not session.ratio:
            return Part(length, want, guesses, own_count, drafted, spare)
        rows = session.window.chain_rows(len(chain))
        scored = session.window.chain_scored(len(chain)) if session.collaborates else ()
        return Part(length, want, guesses, own_count, drafted, spare, rows, (), scored)

    def ask(self, session: CloudSession, part: Part, cached: int, now: float, held: bool) -> Ask:
        """The part as the scheduler sees it. ``held``: the session would rather wait."""
        pace, length = self._of(session).pace, 0 if part.ahead else len(part.chain)
        tokens, reach = max(1, part.end - cached), NONE
        if tokens > 1 or not part.want:
            rank, tokens = PREFILL, tokens + length
        elif length:
            rank, reach = VERIFY, self._reach(pace, session, part)
        else:
            rank = OPTIONAL if held else ADVANCE
        since = session.frame_at if length and session.frame_at is not None else now
        request = Request(
            rank=rank,
            tokens=tokens,
            reach=reach,
            context=part.end + length,
            weight=session.weight,
            since=since,
        )
        idle = now - pace.committed_at if pace.committed_at is not None else 0.0
        return Ask(request, session.owner, pace.pace(now), idle)

    def _reach(self, pace: SessionPace, session: CloudSession, part: Part) -> tuple[float, ...]:
        """Chances that the first guess, the first two, and so on are all right."""
        theirs = len(part.chain) - part.own
        if part.parents:
            return tuple(reach_of_tree(part.parents, pace.edge.alpha))
        reach = powers(round(pace.edge.alpha, 3))[:theirs]
        if part.own:
            own = pace.own.alpha
            if part.drafted and self.own is not None:
                own = self.own.alpha(session)
            reached = reach[-1] if reach else 1.0
            reach += tuple(reached * chance for chance in powers(round(own, 3))[: part.own])
        return reach

    def _thin(self, session: CloudSession, part: Part, sharers: int) -> Thin | None:
        """The part, if guesses of our own draft model should come before it."""
        request = session.request
        if self.own is None or part.drafted or part.parents or request is None:
            return None
        theirs = part.chain[: len(part.chain) - part.own]
        length = len(session.ids)
        left = request.max_tokens - (length - session.prompt_len)
        worth = STANCES[session.objective].worth
        # An edge about as quick as we are makes more of a second than we would alone. (Under the
        # other objectives a second of the target counts for more than one of the user.)
        gap, step = session.node_gap, self.own.step
        helped = session.riding and worth == 1 and None not in (gap, step)
        helped = helped and (gap or 0.0) < QUICK_EDGE * (step or 0.0)
        wish = self.own.wish(
            session,
            theirs,
            reached=self._of(session).pace.edge.alpha ** len(theirs),
            pass_time=self.pass_time.of(1) * worth,
            each=self.pass_time.each,
            sharers=sharers,
            # The pass adds a token of its own, hence one less than is left.
            room=min(left, self._n_ctx - length) - 1 - len(theirs),
            lately=self._rate(self._of(session).pace) if helped else 0.0,
        )
        return Thin(part, wish) if wish is not None else None

    def _better(self, session: CloudSession, part: Part, thin: Thin, now: float) -> bool:
        """Whether our own draft model should go ahead rather than wait for the edge."""
        pace, wish = self._of(session).pace, thin.wish
        theirs = len(part.chain) - part.own
        since = pace.committed_at if pace.committed_at is not None else now
        cap = STANCES[session.objective].cap * self.pass_time.of(1 + theirs)
        return worth_drafting(
            (wish.tokens / pace.edge.alpha**theirs, wish.seconds),
            arrivals(session, now, ARRIVALS),
            pace.edge.alpha,
            max(wish.rate, self._rate(pace)),
            min(self._patience(session, now), since + cap) - now,
        )

    def _until(self, session: CloudSession, pace: SessionPace, live: int, now: float) -> float:
        """Until when to wait for further guesses of a riding session; ``now`` or less: do not."""
        stance = STANCES[session.objective]
        pass_time = self.pass_time.of(1 + live)
        since = pace.committed_at if pace.committed_at is not None else now
        patience = self._patience(session, now)
        cap = min(patience, since + stance.cap * pass_time)
        if live == 0 and (session.objective == "cost" or session.ratio):
            return patience
        if cap < now:
            return now
        if (expected := coming(session, now)) is None:
            return now
        return now + wait(
            live,
            *expected,
            ARRIVALS,
            alpha=pace.edge.alpha,
            pass_time=pass_time,
            stance=stance,
            longest=cap - now,
        )

    def _patience(self, session: CloudSession, now: float) -> float:
        """Until when an edge that has been told everything may still be silent."""
        settings = self.settings
        patience = settings.patience_cap
        if session.reply_time is not None:
            patience = max(settings.patience_floor, settings.patience * session.reply_time)
        since = now if session.has_news else max(session.verdict_at or 0.0, session.frame_at or 0.0)
        return since + min(patience, settings.patience_cap)

    def judged(
        self,
        session: CloudSession,
        part: Part,
        accepted: int,
        now: float,
        *,
        own: int = 1,
        refused: bool | None = None,
    ) -> None:
        """A pass was decided: so many of the part's guesses were right, ``own`` tokens followed.

        ``refused``: of a tree, whether guesses stood where the token is that followed.
        """
        pace = self._of(session).pace
        theirs = len(part.chain) - part.own
        if theirs:
            wrong = accepted < theirs if refused is None else refused
            pace.edge.observe(min(accepted, theirs), wrong)
            self.usual.observe(min(accepted, theirs), wrong)
        if part.spare and not part.own and accepted == theirs:
            # The pass's own token says of the guess that it did not judge whether it was right.
            right = session.ids[part.end + theirs : part.end + theirs + 1] == [part.spare[0]]
            pace.edge.observe(int(right), not right)
        if part.own and not part.drafted and accepted >= theirs:
            pace.own.observe(accepted - theirs, accepted < len(part.chain))
        if self.own is not None:
            self.own.committed(session)
        pace.committed(accepted + own, now)

    def _rate(self, pace: SessionPace) -> float:
        """Tokens a second lately; until known, what the target does alone."""
        return pace.rate if pace.rate is not None else 1 / max(1e-6, self.pass_time.of(1))

    def _of(self, session: CloudSession) -> _Known:
        known = self._known.get(session.key)
        if known is not None and known.begun == session.begun:
            return known
        usual = max(WORST_START, self.usual.alpha)
        weight = min(USUAL_WEIGHT, self.usual.judged)
        pace = SessionPace(Acceptance(usual, weight, LONG_MEMORY))
        known = self._known[session.key] = _Known(session.begun, pace)
        return known


def _awaits(session: CloudSession) -> bool:
    """Under the ratio rule a token of our own would void the guesses that are on their way."""
    return session.collaborates or (session.ratio and session.riding and not session.full)
