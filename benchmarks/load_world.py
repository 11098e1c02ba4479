"""Many clients on one verifier in virtual time: the real machines, engines, scheduler and policy.

What is made up is the target's cost, the drafter's pace and the link; what the drafter gets right
is replayed from a record. Each client asks for one answer after the other, each in a session of
its own. Its first answer is cut short at a place of its own, so that answers do not begin
together; its second is measured, while all others are busy too.

The policy is the adaptive one without its gate, which looks at the cloud alone for some tokens of
an edge's first answers and for at most 3 % of the time later.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import msgspec

from outrider.benchmarks.virtual import ROOMY
from outrider.cloud_server.engine import CloudEngine, Forward, Work
from outrider.cloud_server.planner import EngineSettings
from outrider.cloud_server.scheduling.policies import SchedulerName
from outrider.cloud_server.targets.base import Decided
from outrider.edge_client.adaptive import Adaptive
from outrider.edge_client.policy import Policy
from outrider.protocol.errors import BackendError
from outrider.simulator import edge
from outrider.simulator.settings import (
    Costs,
    DrafterSettings,
    EdgeSettings,
    LinkSettings,
    Turn,
    WorldSettings,
)
from outrider.simulator.traced import VOCABULARY, Line, Record, TracedDrafter, TracedTarget
from outrider.simulator.world import World

ROUND_TRIP = 0.01
"""Seconds, of every client's link: one at home on fibre. No jitter, no loss."""

ANSWERS = 3
"""Of each client: cut short, measured, and one more that keeps the verifier busy meanwhile."""

CONTEXT = 2048
"""Ids of context for which the shapes' row costs and numbers of sessions hold."""

READ = 4.0
"""Seconds before the others that the first clients of each length of prompt come."""

N_CTX = 16_384
BEGIN = 0.1
SEED = 7


@dataclass(frozen=True, slots=True)
class Shape:
    """A target on its machine: seconds of a step, a row, a token, and how many sessions fit."""

    name: str
    fixed: float
    row: float
    each: float
    sessions: int

    def at(self, context: int = CONTEXT, ratio: float | None = None) -> Shape:
        """With another context, or another ratio of row cost to token cost."""
        share = context / CONTEXT
        row = self.row * share if ratio is None else ratio * self.each
        return replace(self, row=row, sessions=max(1, int(self.sessions / share)))


SHAPES = {
    "70b": Shape("70B on four A100", 0.022, 0.000084, 0.00024, 268),
    "8b": Shape("8B on one H100", 0.0048, 0.00008, 0.000027, 238),
}
DRAFTERS = {"jetson": 0.012, "pi": 0.055}
"""Seconds a token."""

PREFILL = {"jetson": 500.0, "pi": 40.0}
"""Prompt ids a second."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the measured answers were like.

    ``rate``: tokens a second that all but 5 % of the answers reach. ``gap``: seconds between two
    arrivals of text that 1 % exceed. ``busy``: share of the time that the target worked.
    ``step_ms``: processor time of this machine that engine and scheduler took a step, all that is
    done between two passes of the target but for what connections do; ``step_wall_ms``: the same by
    the clock on the wall, which counts whatever else the machine did meanwhile. Medians.
    """

    clients: int
    rate: float
    gap: float
    busy: float
    exact: bool
    tokens_a_second: float
    slowness: float
    step_ms: float
    step_wall_ms: float


@dataclass(frozen=True, slots=True)
class _Models:
    record: Record

    def target(self, settings: WorldSettings) -> TracedTarget:
        return TracedTarget(self.record, 1, settings.n_ctx, settings.slots)

    def drafter(self, world: WorldSettings, settings: DrafterSettings) -> TracedDrafter:
        del world
        return TracedDrafter(self.record, 1, settings.n_ctx)

    def policy(self, settings: DrafterSettings) -> Policy:
        del settings
        return Adaptive(gated=False)


class _Clock:
    """Seconds of the engine's part in each step, measured from outside: of processor, of wall."""

    def __init__(self, engine: CloudEngine) -> None:
        self.steps: list[tuple[float, float]] = []
        self._begun = (0.0, 0.0)
        following, finishing = engine.next, engine.done

        def ahead(now: float) -> Work:
            start = _clocks()
            work = following(now)
            self._begun = _since(start)
            return work

        def done(work: Forward, result: list[Decided] | BackendError, now: float) -> None:
            start = _clocks()
            finishing(work, result, now)
            (busy, wall), (begun_busy, begun_wall) = _since(start), self._begun
            self.steps.append((begun_busy + busy, begun_wall + wall))

        engine.next, engine.done = ahead, done  # type: ignore[method-assign]


def _clocks() -> tuple[float, float]:
    return time.thread_time(), time.perf_counter()


def _since(start: tuple[float, float]) -> tuple[float, float]:
    busy, wall = _clocks()
    return busy - start[0], wall - start[1]


def world(
    record: Record,
    shape: Shape,
    clients: int,
    *,
    drafter: str | None = "jetson",
    scheduler: SchedulerName = "cosine",
    prompts: Sequence[int] = (),
    padded: float = 0.0,
) -> World:
    """``clients`` of them. ``drafter`` None: plain cloud streaming.

    ``prompts``: ids before the recorded prompts, a length for each client in turn, the same for
    all of a length: the first of each come sooner, and their cache serves the others. The drafters
    have read them before. ``padded``:
    seconds that an id of the longest row costs each row.
    """
    rng = random.Random(SEED)
    edges = []
    for i in range(clients):
        before = prompts[i % len(prompts)] if prompts else 0
        turns = [_turn(record.lines[(i + k) % len(record.lines)], before) for k in range(ANSWERS)]
        short = max(8, int(turns[0].max_tokens * (i + 0.5) / clients))
        edges.append(
            EdgeSettings(
                link=LinkSettings(delay=ROUND_TRIP / 2),
                drafter=DrafterSettings(n_ctx=N_CTX) if drafter else None,
                sessions=((replace(turns[0], max_tokens=short), *turns[1:]),),
                starts=(BEGIN + 0.1 * rng.random() + (READ if i >= len(prompts) > 0 else 0.0),),
            )
        )
    costs = Costs(
        target_pass=shape.fixed,
        target_row=shape.row,
        target_token=shape.each,
        target_padded=padded,
        draft_step=DRAFTERS[drafter] if drafter else 1.0,
        draft_prefill=1 / PREFILL[drafter] if drafter and not prompts else 0.0,
    )
    return World(
        WorldSettings(
            vocabulary=VOCABULARY,
            n_ctx=N_CTX,
            slots=max(1, shape.sessions),
            edges=tuple(edges),
            costs=costs,
            engine=EngineSettings(lookup=0, scheduler=scheduler),
            limits=msgspec.structs.replace(ROOMY, max_sessions=4096, max_prompt=N_CTX),
            limit=3600.0,
            max_steps=1 << 40,
        ),
        _Models(record),
    )


def _turn(line: Line, before: int) -> Turn:
    ids = tuple((7 * i) % 30_000 + 1 for i in range(before)) + line.prompt
    return Turn(ids=ids, max_tokens=len(line.tokens), objective="latency", afresh=True)


def measure(record: Record, made: World) -> Seen:
    """Run until every client has begun its last answer; look at those before.

    Raises:
        RuntimeError: it did not come to an end: a bug.
    """
    clock = _Clock(made.cloud.engine)
    users = [e.conversations[0] for e in made.edges]
    waiting = set(range(len(users)))
    while waiting:
        for _ in range(64):
            if not made.agenda.step(made.settings.limit):
                raise RuntimeError("the load did not come to an end")
        waiting = {i for i in waiting if len(users[i].answers) < ANSWERS}
    answers = [user.answers[1] for user in users]
    rates = sorted((len(a.times) - 1) / max(1e-9, a.times[-1] - a.times[0]) for a in answers)
    gaps = sorted(
        later - sooner
        for a in answers
        for sooner, later in zip(a.times, a.times[1:], strict=False)
        if later > sooner
    )
    elapsed = made.agenda.now - BEGIN
    stats = made.cloud.engine.stats
    busy, wall = (median(seconds) for seconds in zip(*clock.steps, strict=True))
    return Seen(
        clients=len(users),
        rate=rates[int(0.05 * len(rates))],
        gap=gaps[int(0.99 * len(gaps))],
        busy=stats.target_seconds / elapsed,
        exact=all(_exact(a, record) for a in answers),
        tokens_a_second=stats.tokens / elapsed,
        slowness=1 / rates[int(0.05 * len(rates))],
        step_ms=1e3 * busy,
        step_wall_ms=1e3 * wall,
    )


def _exact(seen: edge.Answer, record: Record) -> bool:
    line = record.find(seen.prompt, len(seen.prompt))
    expected = [line.token(i, 1 + len(seen.prompt)) for i in range(seen.turn.max_tokens)]
    return seen.tokens == expected and seen.ends == ["length"] and not seen.faults
