"""What one session's part in the next pass is, by objective and by what is known."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outrider.cloud_server.estimate import Acceptance
from outrider.cloud_server.lookup import Lookup
from outrider.cloud_server.planner import UNTAKEN, EngineSettings, Held, Part
from outrider.cloud_server.scheduler import useful

PROMPT = (1, 2, 3)


def riding(d, objective: str, *, gap: float = 0.012, reply: float = 0.02, **more):
    """A session past its first pass whose edge has said that it rides; nothing has come yet."""
    session = d.open(b"a", objective=objective, **more)
    d.step()
    d.guess(session, [])
    session.node_gap, session.reply_time = gap, reply
    session.told, session.verdict_at = len(session.ids), d.now
    return session


def plan(d, session):
    return d.engine.planner.plan(session, len(session.ids) - 1, d.now)


def test_the_first_token_never_waits(desk) -> None:
    d = desk()
    for objective in ("latency", "balanced", "cost"):
        session = d.open(objective.encode(), objective=objective)
        d.guess(session, [])
        assert d.engine.planner.plan(session, 0, d.now) == Part(3, 1)


def test_a_session_that_does_not_ride_goes_on_alone(desk) -> None:
    d = desk()
    session = d.open(b"a", objective="cost")
    d.step()
    assert plan(d, session) == Part(4, 1)


def test_cost_waits_for_guesses_as_long_as_patience(desk) -> None:
    d = desk()
    session = riding(d, "cost")
    held = plan(d, session)
    assert isinstance(held, Held)
    assert held.until == pytest.approx(d.now + 4 * 0.02)  # four usual replies
    assert held.ready is None
    d.now = held.until
    assert plan(d, session) == Part(4, 1)
    assert not session.riding  # from now on it goes on alone


def test_patience_has_a_floor_and_a_cap(desk) -> None:
    d = desk()
    session = riding(d, "cost", reply=0.001)
    assert plan(d, session).until == pytest.approx(d.now + 0.05)
    session.reply_time = 50.0
    assert plan(d, session).until == pytest.approx(d.now + 1.0)
    session.reply_time = None
    assert plan(d, session).until == pytest.approx(d.now + 1.0)


def test_latency_waits_less_than_a_third_of_a_pass(desk) -> None:
    d = desk()
    session = riding(d, "latency", gap=0.002)
    found = plan(d, session)
    until = found.until if isinstance(found, Held) else d.now
    assert until <= d.now + 0.3 * 0.03 + 1e-9


def test_latency_does_not_wait_for_a_slow_edge(desk) -> None:
    d = desk()
    assert plan(d, riding(d, "latency", gap=0.055)) == Part(4, 1)


def test_the_dearer_the_objective_the_shorter_the_wait(desk) -> None:
    waits = []
    for objective in ("latency", "balanced", "cost"):
        d = desk()
        session = riding(d, objective, gap=0.004)
        found = plan(d, session)
        waits.append(found.until - d.now if isinstance(found, Held) else 0.0)
    assert waits == sorted(waits)
    assert waits[0] < waits[2]


def test_held_guesses_join_a_pass_that_runs_anyway(desk) -> None:
    d = desk()
    truth = d.expected(PROMPT, 9)
    session = d.open(b"a", objective="cost")
    d.step()
    d.guess(session, truth[1:2])
    session.node_gap, session.reply_time = 0.004, 0.02
    assert isinstance(plan(d, session), Held)
    other = d.open(b"b", (4, 5))
    work = d.next()
    assert {item.session for item in work.items} == {session, other}
    assert next(i.part.chain for i in work.items if i.session is session) == (truth[1],)


def test_what_the_pass_costs_bounds_the_guesses(desk) -> None:
    d = desk()
    truth = d.expected(PROMPT, 20)
    session = d.open(b"a")
    d.step()
    d.guess(session, truth[1:15])
    assert len(plan(d, session).chain) == 14
    planner = d.engine.planner
    planner.pass_time.each = 0.01  # against a token in 30 ms or so
    assert 1 <= len(plan(d, session).chain) < 8
    planner.settings = EngineSettings(lookup=0, max_chain=3)
    planner.pass_time.each = 0.0
    assert len(plan(d, session).chain) == 3


def test_the_look_up_stands_behind_the_edges_guesses(desk) -> None:
    d = desk(settings=EngineSettings(lookup=4))
    prompt = (5, 6, 7, 8, 9, 10, 11, 5)
    session = d.open(b"a", prompt)
    session.passes = 1
    session.commit([6])
    part = d.engine.planner.plan(session, 8, d.now)
    assert (part.chain, part.own, part.drafted) == ((7, 8, 9, 10), 4, False)
    d.guess(session, [7, 8])
    part = plan(d, session)
    assert part.chain[:2] == (7, 8)
    assert part.chain[2:] == (9, 10, 11, 5)
    assert part.own == 4


def test_a_look_up_that_is_always_wrong_is_given_up(desk) -> None:
    d = desk(settings=EngineSettings(lookup=4))
    session = d.open(b"a", (5, 6, 7, 5, 6))
    d.step()
    planner = d.engine.planner
    planner.pass_time.each = 0.003
    for _ in range(30):
        planner.judged(session, Part(6, 3, (1, 2), 2), 0, d.now)
    session.commit([5, 6])
    assert plan(d, session).own == 0


def test_the_last_id_of_the_context_takes_no_guess(desk) -> None:
    d = desk(n_ctx=8)
    session = d.open(b"a", max_tokens=50)
    d.guess(session, d.expected(PROMPT, 5))
    part = d.engine.planner.plan(session, 0, d.now)
    assert len(part.chain) == 4  # 3 + 4 + the pass's own token fill the context
    session.commit(d.expected(PROMPT, 4))
    part = plan(d, session)
    assert (part.end, part.want, part.chain) == (7, 1, ())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    alpha=st.floats(0.01, 0.99),
    each=st.floats(0, 0.02),
    load=st.floats(0, 1),
    right=st.integers(0, 56),
    wrong=st.integers(0, 4),
    lookup=st.integers(0, 8),
)
def test_only_what_is_there_is_thought_about(
    desk, *, alpha, each, load, right, wrong, lookup
) -> None:
    """The part is the same as with every length up to the longest looked at."""
    d = desk(settings=EngineSettings(lookup=lookup))
    session = d.open(b"a", (1, 2, 1, 2, 1), max_tokens=90)
    d.step()
    truth = d.expected((1, 2, 1, 2, 1), 80)
    d.guess(session, [*truth[1 : 1 + right], *(1, 2) * wrong])
    planner = d.engine.planner
    planner.pass_time.each, session.load = each, load
    known = planner._of(session)
    known.pace.edge = Acceptance(alpha, 1.0)
    part = planner._part(session, known)

    most = planner.settings.max_chain
    alone = 1 / planner.pass_time.of(1)
    least = max(each * max(known.pace.rate or alone, alone), load * UNTAKEN)
    limit = max(1, useful(known.pace.edge.alpha, least, 1.0, most))
    pending = session.window.chain(1 << 20)
    chain, spare = pending[:limit], pending[limit : limit + 1]
    count = useful(known.pace.own.alpha, least, 1.0, min(lookup, limit - len(chain)))
    own = Lookup().propose(session.ids, chain, count) if count and not spare else []
    assert part == Part(
        len(session.ids), 1 + len(chain) + len(own), (*chain, *own), len(own), False, tuple(spare)
    )
