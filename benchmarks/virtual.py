"""One strategy on one link in virtual time: the real machines and engines, replayed models.

The target's pass takes the same time whatever is in it, prompts in pieces of 256 ids a pass. Each
answer is a session of its own, asked for at a fixed time. The same seed is the same weather for
every strategy.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import msgspec

from outrider.benchmarks.rows import Answer
from outrider.benchmarks.strategies import Machine, Strategy
from outrider.cloud_server.planner import EngineSettings
from outrider.cloud_server.rehearsal import SIZES
from outrider.edge_client.policy import Policy
from outrider.simulator import edge
from outrider.simulator.links import Direction, Link, Pipe
from outrider.simulator.settings import (
    LIMITS,
    Costs,
    DrafterSettings,
    EdgeSettings,
    Turn,
    WorldSettings,
)
from outrider.simulator.traced import VOCABULARY, Record, TracedDrafter, TracedTarget, choice
from outrider.simulator.world import World

WARM_UP = 50
"""Tokens of the first answer, which is not counted."""

BEGIN = 3.0
"""Seconds after which the first answer is asked for: the link is up by then."""

SPACING = 97.0
"""Seconds from one question to the next, whenever the answer ended: all meet the same weather."""

N_CTX = 8192
NEAR_PREFILL = 1e4
"""Ids a second that a drafter beside the target reads."""

NEAR = Link(name="beside", up=Direction(), down=Direction())
"""Between two programs of one machine."""

ROOMY = msgspec.structs.replace(
    LIMITS, max_tokens=1 << 16, max_nodes_per_frame=64, max_nodes_in_flight=256, max_prompt=N_CTX
)
"""The limits of a real verifier."""

PATIENT = EngineSettings(patience=1e9, patience_floor=1e9, patience_cap=1e9)
"""A verifier that waits for guesses that it was promised, however long that takes."""

VERDICT, REQUEST, TOKEN = 8, 48, 2
"""Bytes of a verdict's header, a request's, and a token, framing included: for co-located rows."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked: ``answers`` of ``tokens`` tokens each, to prompts of ``prompt`` ids.

    ``chat``: the answers are turns of one conversation, each prompt after all that was said before.
    Recorded answers have prompts and lengths of their own.
    """

    answers: int = 4
    tokens: int = 100
    prompt: int = 32
    chat: bool = False

    @property
    def label(self) -> str:
        """The prompts, in words."""
        return f"chat of {self.answers} turns" if self.chat else f"{self.prompt} ids"


@dataclass(frozen=True, slots=True)
class _Models:
    record: Record
    strategy: Strategy
    seed: int

    def target(self, settings: WorldSettings) -> TracedTarget:
        return TracedTarget(self.record, self.seed, settings.n_ctx, settings.slots)

    def drafter(self, world: WorldSettings, settings: DrafterSettings) -> TracedDrafter:
        del world
        return TracedDrafter(self.record, self.seed, settings.n_ctx)

    def policy(self, settings: DrafterSettings) -> Policy:
        del settings
        return self.strategy.policy()


def run(
    strategy: Strategy,
    machine: Machine,
    link: Link,
    record: Record,
    load: Load,
    *,
    seed: int = 1,
    vocabulary: int = VOCABULARY,
    watch: Callable[[World], None] = lambda _: None,
) -> list[Answer]:
    """The counted answers of one run. ``watch`` is shown the world before it runs.

    Raises:
        RuntimeError: it did not come to an end: a bug.
    """
    here = strategy.group == "co-located"
    if here:
        machine = replace(machine, draft_step=machine.cloud_step, prefill_rate=NEAR_PREFILL)
    users = _users(strategy, record, load)
    settings = _world(strategy, machine, NEAR if here else link, users)
    settings = replace(settings, seed=seed, vocabulary=vocabulary)
    world = World(settings, _Models(record, strategy, seed))
    watch(world)
    if not world.run():
        raise RuntimeError(f"{strategy.name} on {link.name} did not come to an end")
    counted = world.edges[0].conversations[1:]  # the first was the warm-up
    answers = [_answer(each, record, seed) for user in counted for each in user.answers]
    return _carried(answers, link, seed, load) if here else answers


def _users(strategy: Strategy, record: Record, load: Load) -> tuple[tuple[Turn, ...], ...]:
    """The turns of each user, the warm-up's first."""
    recorded = [line for line in record.lines if line.prompt]
    turns = [
        Turn(ids=line.prompt, max_tokens=len(line.tokens), objective=strategy.objective)
        for line in recorded
    ] or [
        Turn(
            ids=tuple(choice(i, 1000 + k) for i in range(load.prompt)),
            max_tokens=load.tokens,
            objective=strategy.objective,
        )
        for k in range(load.answers)
    ]
    warm_up = replace(turns[-1], max_tokens=WARM_UP)
    return ((warm_up,), tuple(turns)) if load.chat else ((warm_up,), *((t,) for t in turns))


def _world(
    strategy: Strategy, machine: Machine, link: Link, users: tuple[tuple[Turn, ...], ...]
) -> WorldSettings:
    return WorldSettings(
        vocabulary=VOCABULARY,
        n_ctx=N_CTX,
        edges=(
            EdgeSettings(
                link=link,
                drafter=DrafterSettings(n_ctx=N_CTX) if strategy.drafts else None,
                sessions=users,
                starts=tuple(BEGIN + i * SPACING for i in range(len(users))),
            ),
        ),
        costs=Costs(
            target_pass=machine.target_pass,
            target_token=machine.target_token,
            draft_step=machine.draft_step,
            draft_prefill=1 / machine.prefill_rate,
            own_step=machine.cloud_step,
            own_prefill=1 / NEAR_PREFILL,
        ),
        own=DrafterSettings(n_ctx=N_CTX) if strategy.own_drafter else None,
        engine=replace(PATIENT if strategy.patient else EngineSettings(), lookup=strategy.lookup),
        rehearsed=SIZES,
        limits=ROOMY,
        limit=3600.0,
        max_steps=10_000_000,
    )


def _answer(seen: edge.Answer, record: Record, seed: int) -> Answer:
    line = record.find(seen.prompt, len(seen.prompt))
    expected = [line.token(i, seed + len(seen.prompt)) for i in range(seen.turn.max_tokens)]
    return Answer(
        asked=seen.started,
        times=tuple(seen.times),
        passes=seen.passes,
        bytes_up=seen.bytes_up,
        bytes_down=seen.bytes_down,
        exact=seen.tokens == expected and seen.ends == ["length"] and not seen.faults,
    )


def _carried(answers: Sequence[Answer], link: Link, seed: int, load: Load) -> list[Answer]:
    """What was committed in the cloud, as it reaches a user at the other end of the link."""
    up = Pipe(link.up, random.Random(f"up {seed}"))
    down = Pipe(link.down, random.Random(f"down {seed}"))
    carried = []
    for answer in answers:
        asking = up.deliver_at(REQUEST + TOKEN * load.prompt, answer.asked) - answer.asked
        times: list[float] = []
        size = 0
        for moment, group in groupby(answer.times):
            count = len(list(group))
            size += VERDICT + TOKEN * count
            arrival = asking + down.deliver_at(VERDICT + TOKEN * count, moment)
            times += [arrival] * count
        carried.append(replace(answer, times=tuple(times), bytes_up=0, bytes_down=size))
    return carried
