"""A session's part is exactly what the plain rules give, written without thought for speed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outrider.cloud_server.estimate import Acceptance, SessionPace, powers, reach_of_tree
from outrider.cloud_server.planner import (
    ARRIVALS,
    IDLE,
    SOON,
    UNTAKEN,
    EngineSettings,
    Held,
    Part,
    Planner,
    Thin,
    _awaits,
    _Known,
)
from outrider.cloud_server.scheduler import STANCES, Stance, useful
from outrider.cloud_server.scheduling.batch import Rank, Request
from outrider.cloud_server.scheduling.steps import Ask
from outrider.protocol.decoding.row import SparseRow
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.messages import Draft, EpochStart
from outrider.protocol.session import CloudSession

ROW = SparseRow((3, 7, 11), (128, 64, 64))


def arrivals(session: CloudSession, now: float, limit: int) -> list[float]:
    """Seconds from now until each of the next guesses is expected, at most ``limit`` of them.

    An unbroken stream goes on at its own gap, and has to catch up first if it was overtaken. After
    a contradiction the edge needs its usual time to answer the verdict that told it so, and then
    has to catch up with what was committed since. Empty: nothing is expected (not riding, nothing
    known yet, or the edge waits for us).
    """
    if not session.riding or session.frame_at is None:
        return []
    window, gap = session.window, session.node_gap
    length, tip = len(session.ids), window.tip_position
    sent = window.guesses
    below = sent is not None and bool(sent.children.get(window.tip))
    if (below and not window.caught_up) or tip is None:
        if session.reply_time is None:
            return []
        told, since = next((e for e in session.told_log if e[0] > (tip or 0) + 1), (length, now))
        first = since + session.reply_time + (length - told) * (gap or 0.0)
    elif gap is None or session.full:
        return []  # lockstep, or its window is full: it waits for us
    else:
        first = session.frame_at + gap * (length - tip)
    if first < now:  # overdue: the longer, the later it is expected
        first = now + (now - first)
    return [first - now + i * (gap or 0.0) for i in range(limit)]


def wait(
    live: int,
    arrivals: Sequence[float],
    gap: float,
    *,
    alpha: float,
    pass_time: float,
    stance: Stance,
    longest: float = float("inf"),
) -> float:
    """Seconds to wait for further guesses; 0: start now.

    ``arrivals[j]`` is when the (j+1)-th next guess is expected, in seconds from now, ``gap`` after
    the one before. Those that
    come after ``longest`` are not waited for: setting out for them would be a wait for nothing.
    """
    if not arrivals:
        return 0.0
    meanwhile = pass_time / gap if gap > 0 else float(len(arrivals))
    meanwhile = max(1.0, meanwhile)
    further = (1 - 1 / meanwhile) / (1 - alpha**meanwhile)
    target = stance.worth * pass_time
    best, best_wait = target * alpha ** (live + 1) * further, 0.0
    for j, delay in enumerate(arrivals, start=1):
        if delay > longest:
            break
        cost = delay + target * alpha ** (live + j + 1) * further
        if cost < best:
            best, best_wait = cost, delay
    return best_wait


class PlainPlanner(Planner):
    """The rules one after the other, each thing looked up where it is used."""

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
        thin = self._thin(session, part, sharers) if sharers and not _awaits(session) else None
        if not session.riding or part.drafted or (thin and self._better(session, part, thin, now)):
            return thin or part
        until = self._until(session, known.pace, part.depth, now)
        if until > now + SOON:
            joins = part.chain or (session.objective == "latency" and not _awaits(session))
            return Held(until, part if joins else None)
        if thin is None and len(part.chain) == part.own and session.objective == "cost":
            session.riding = False  # it kept us waiting: go on alone until it sends again
        return thin or part

    def _part(self, session: CloudSession, known: _Known) -> Part:
        """The edge's live guesses and, behind them, our own: as many as are worth their share."""
        settings, length = self.settings, len(session.ids)
        room = self._n_ctx - length - 1  # the pass adds a token of its own
        # A guess must also pay against what the target would do alone, however slow it is now.
        each = self.pass_time.each
        rate = max(self._rate(known.pace), 1 / max(1e-6, self.pass_time.of(1)))
        least = max(each * rate, session.load * UNTAKEN)
        # More than there are, and as many of our own, need not be thought about.
        chain = session.window.chain(settings.max_chain + 1)
        most = min(settings.max_chain, len(chain) + max(1, settings.lookup))
        branched = self._leaves > 1 and session.window.branched
        most = settings.max_chain if branched else most
        limit = max(0, min(room, max(1, useful(known.pace.edge.alpha, least, 1.0, most))))
        if branched:
            nodes, parents = session.window.tree(limit, min(settings.max_chain, room), self._leaves)
            if parents:
                return Part(length, 1 + len(nodes), nodes, parents=parents)
        spare = tuple(chain[limit : limit + 1])
        more = bool(spare) or _awaits(session)
        del chain[limit:]
        room -= len(chain)
        drafted = list(self.own.guesses(session, chain)[:room]) if self.own and not more else []
        own = drafted
        room = min(settings.lookup, limit - len(chain), room)
        if not drafted and room > 0 and not more:
            count = useful(known.pace.own.alpha, least, 1.0, room)
            own = known.lookup.propose(session.ids, chain, count) if count else []
        guesses = (*chain, *own)
        own_count, want = len(own), 1 + len(guesses)
        if not session.ratio:
            return Part(length, want, guesses, own_count, bool(drafted), spare)
        rows = session.window.chain_rows(len(chain))
        scored = session.window.chain_scored(len(chain)) if session.collaborates else ()
        return Part(length, want, guesses, own_count, bool(drafted), spare, rows, (), scored)

    def ask(self, session: CloudSession, part: Part, cached: int, now: float, held: bool) -> Ask:
        """The part as the scheduler sees it. ``held``: the session would rather wait."""
        pace, length = self._of(session).pace, 0 if part.ahead else len(part.chain)
        tokens, reach = max(1, part.end - cached), self._reach(pace, session, part)
        if tokens > 1 or not part.want:
            rank, tokens, reach = Rank.PREFILL, tokens + length, ()
        else:
            rank = Rank.VERIFY if length else Rank.OPTIONAL if held else Rank.ADVANCE
        since = session.frame_at if length and session.frame_at is not None else now
        request = Request(
            rank=rank, tokens=tokens, reach=reach, context=part.end + length, since=since
        )
        idle = now - pace.committed_at if pace.committed_at is not None else 0.0
        return Ask(request, session.owner, pace.pace(now), idle)

    def _reach(self, pace: SessionPace, session: CloudSession, part: Part) -> tuple[float, ...]:
        """Chances that the first guess, the first two, and so on are all right."""
        theirs = len(part.chain) - part.own
        own = pace.own.alpha
        if part.drafted and self.own is not None:
            own = self.own.alpha(session)
        if part.parents:
            return tuple(reach_of_tree(part.parents, pace.edge.alpha))
        reach = powers(round(pace.edge.alpha, 3))[:theirs]
        if part.own:
            reached = reach[-1] if reach else 1.0
            reach += tuple(reached * chance for chance in powers(round(own, 3))[: part.own])
        return reach

    def _until(self, session: CloudSession, pace: SessionPace, live: int, now: float) -> float:
        """Until when to wait for further guesses of a riding session; ``now`` or less: do not."""
        stance = STANCES[session.objective]
        expected = arrivals(session, now, ARRIVALS)
        pass_time = self.pass_time.of(1 + live)
        since = pace.committed_at if pace.committed_at is not None else now
        patience = self._patience(session, now)
        cap = min(patience, since + stance.cap * pass_time)
        if live == 0 and (session.objective == "cost" or session.ratio):
            return patience
        delay = wait(
            live,
            expected,
            session.node_gap or 0.0,
            alpha=pace.edge.alpha,
            pass_time=pass_time,
            stance=stance,
            longest=cap - now,
        )
        return now + delay


def drawn(desk: Any, rng: random.Random) -> Any:
    """A desk with one session in some state, and what its planner knows of it."""
    own = rng.choice((None, None, "good"))
    made = EngineSettings(lookup=rng.choice((0, 4)), max_chain=rng.choice((3, 64)))
    d = desk(settings=made, own=own)
    d.engine.planner._leaves = rng.choice((1, 4))
    ids = [rng.randrange(26) for _ in range(rng.choice((3, 30, 30, 190)))]
    session = d.open(b"a", ids, objective=rng.choice(("latency", "balanced", "cost")))
    ratio = own is None and rng.random() < 0.3
    if ratio:
        sampling = Sampling(temperature=1.0, ratio=True)
        session.request = msgspec.structs.replace(session.request, sampling=sampling)
    for _ in range(rng.randrange(3)):
        _frame(d, session, rng, ratio)
        d.now += rng.uniform(0, 0.1)
        right = session.window.chain(rng.randrange(5))
        tokens = [*right, rng.randrange(26)][: d.n_ctx - len(session.ids)]
        session.commit(tokens, len(right) if ratio else 0)
        if rng.random() < 0.7:
            session.news(d.now, 0.0)
    if rng.random() < 0.7:
        _frame(d, session, rng, ratio)
    session.node_gap = rng.choice((None, rng.uniform(0, 0.01), rng.uniform(0, 0.1)))
    session.passes = rng.choice((0, 1, 1, 1, 1))
    session.reply_time = rng.choice((None, rng.uniform(0, 0.5)))
    session.full, session.load = rng.random() < 0.2, rng.choice((0.0, rng.random()))
    session.riding = session.riding or rng.random() < 0.7
    d.now += rng.choice((0.0, rng.uniform(0, 0.01), rng.uniform(0, 0.3)))
    pace = SessionPace(Acceptance(rng.random(), rng.uniform(1, 50)), Acceptance(rng.random()))
    pace.rate = rng.choice((None, rng.uniform(1, 100)))
    pace.committed_at = rng.choice((None, d.now - rng.choice((0.0, rng.uniform(0, 0.2)))))
    d.engine.planner._known[b"a"] = _Known(session.begun, pace)
    times = d.engine.planner.pass_time
    times.fixed, times.row = rng.choice((0.01, 0.1, 0.3)), rng.uniform(0, 0.001)
    times.each = rng.choice((0.0, rng.uniform(0, 0.01)))
    return d, session


def _frame(d: Any, session: CloudSession, rng: random.Random, ratio: bool) -> None:
    """Guesses of a new epoch arrive, perhaps none, perhaps a tree."""
    count, base = rng.randrange(7), len(session.ids)
    start = EpochStart(answer=session.answer & 0xFF, base=base, digest=session.digests.at(base))
    tokens = tuple(rng.sample(range(26), count))
    deltas = (1, *(rng.randrange(1, i + 2) for i in range(1, count))) if count else ()
    deltas = deltas if not ratio and rng.random() < 0.2 else ()
    frame = Draft(
        epoch=(session.window.last_epoch + 1) & 0xFF,
        start=start,
        tokens=tokens,
        deltas=deltas,
        rows=(ROW,) * count if ratio else (),
    )
    session.draft(frame, d.now, 64)


@settings(max_examples=3000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**64), sharers=st.integers(0, 2), behind=st.sampled_from([1, 1, 1, 2]))
def test_the_plan_is_that_of_the_plain_rules(
    desk: Any, *, seed: int, sharers: int, behind: int
) -> None:
    d, session = drawn(desk, random.Random(seed))
    planner = d.engine.planner
    plain = PlainPlanner(d.n_ctx, planner.settings, planner.own, planner._leaves)
    plain._known, plain.pass_time = planner._known, planner.pass_time
    cached, riding = len(session.ids) - behind, session.riding
    found = planner.plan(session, cached, d.now, sharers)
    after, session.riding = session.riding, riding
    assert found == plain.plan(session, cached, d.now, sharers)
    assert after == session.riding
    held = isinstance(found, Held)
    part = found.ready if held else found.part if isinstance(found, Thin) else found
    if part is not None:
        assert planner.ask(session, part, cached, d.now, held) == plain.ask(
            session, part, cached, d.now, held
        )
