"""Nasty worlds by the thousand: one seed, one world."""

from __future__ import annotations

import math
import random
from dataclasses import replace

from outrider.cloud_server.planner import EngineSettings
from outrider.protocol.decoding.sampling import Sampling
from outrider.simulator.settings import (
    Costs,
    DrafterKind,
    DrafterSettings,
    EdgeSettings,
    Kind,
    LinkSettings,
    Trouble,
    Turn,
    WorldSettings,
)

KINDS: tuple[Kind, ...] = ("cut", "stall", "cloud_first", "replace", "replace", "restart")
DRAFTERS: tuple[DrafterKind, ...] = ("good", "mixed", "mixed", "random", "bad")


OBJECTIVES = (None, "cost", "cost", "balanced", "latency")

FOR_EVER = EngineSettings(patience=1e9, patience_floor=1e9, patience_cap=1e9, lookup=0)
"""A cloud that waits for the guesses it was promised, however long that takes."""


def patient(seed: int) -> WorldSettings:
    """The same world, but nothing moves an answer on while its edge says that it rides."""
    world = capped(seed)
    edges = tuple(
        replace(
            edge,
            sessions=tuple(
                tuple(replace(turn, objective="cost") for turn in turns) for turns in edge.sessions
            ),
        )
        for edge in world.edges
    )
    return replace(world, edges=edges, engine=FOR_EVER)


def capped(seed: int) -> WorldSettings:
    """The same world, but its cloud says how many bytes of guesses may come, now and then."""
    world = nasty(seed)
    return replace(world, troubles=(*world.troubles, *_caps(random.Random(f"caps {seed}"))))


def nasty(seed: int) -> WorldSettings:
    """A world with everything that can go wrong, drawn from its seed."""
    rng = random.Random(seed)
    size = rng.choice((2, 8, 16, 16))
    edges = tuple(_edge(rng, size) for _ in range(rng.choice((1, 1, 1, 2))))
    edges = tuple(
        _beside(edge, random.Random(f"beside {seed} {i}")) for i, edge in enumerate(edges)
    )
    users = sum(len(edge.sessions) for edge in edges)
    cap = rng.choice((0.05, 0.3, 1.0))
    return WorldSettings(
        seed=seed,
        vocabulary=size,
        target_seed=rng.randrange(1 << 20),
        slots=rng.choice((1, users, users + 1)),
        n_ctx=rng.choice((48, 4096, 4096)),
        eos=frozenset({rng.randrange(size)} if size > 2 and rng.random() < 0.3 else ()),
        edges=edges,
        costs=Costs(
            target_pass=rng.choice((0.002, 0.02, 0.1)),
            target_token=rng.choice((0.0, 0.001)),
            draft_step=rng.choice((0.0005, 0.005, 0.04)),
            draft_prefill=rng.choice((0.0, 0.001)),
        ),
        engine=EngineSettings(
            prefill_chunk=rng.choice((4, 256)),
            max_chain=rng.choice((1, 3, 64)),
            patience_floor=min(cap, 0.05),
            patience_cap=cap,
            lookup=rng.choice((0, 8)),
        ),
        troubles=_troubles(rng, len(edges)),
    )


def _edge(rng: random.Random, size: int) -> EdgeSettings:
    users = rng.choice((1, 1, 2, 3))
    return EdgeSettings(
        link=LinkSettings(
            delay=rng.choice((0.0005, 0.01, 0.05, 0.2)),
            jitter=rng.choice((0.0, 0.0, 0.02, 0.1)),
            up=rng.choice((300.0, 3e3, 1e6)),
            down=rng.choice((300.0, 3e3, 1e6)),
        ),
        drafter=_drafter(rng) if rng.random() < 0.9 else None,
        sessions=tuple(
            tuple(_turn(rng, size) for _ in range(rng.choice((1, 2, 3)))) for _ in range(users)
        ),
        starts=tuple(rng.choice((0.0, rng.random())) for _ in range(users)),
        back_off=rng.choice((0.0, 0.05, 0.5)),
        part_bytes=rng.choice((16, 16_384)),
    )


def _beside(edge: EdgeSettings, rng: random.Random) -> EdgeSettings:
    """The same edge, which may guess beside its chain too."""
    if edge.drafter is None:
        return edge
    return replace(edge, drafter=replace(edge.drafter, branch=rng.choice((0, 2, 6))))


def _drafter(rng: random.Random) -> DrafterSettings:
    frame = rng.choice((1, 2, 4, 24))
    return DrafterSettings(
        kind=rng.choice(DRAFTERS),
        agreement=rng.random(),
        floor=rng.choice((0.0, 0.0, 0.5)),
        frame=frame,
        window=frame * rng.choice((1, 2, 4)),
        n_ctx=rng.choice((24, 4096, 4096)),
        dies_after=rng.choice((None, None, None, rng.randrange(20))),
    )


def _turn(rng: random.Random, size: int) -> Turn:
    temperature = rng.choice((0.0, 0.0, 1.0))
    written = rng.random() < 0.15
    ids = tuple(rng.randrange(size) for _ in range(rng.choice((1, 3, 12))))
    return Turn(
        ids=() if written else ids,
        text=rng.choice(("hello", "a longer text to be rendered")) if written else None,
        keep=rng.choice((1.0, 1.0, 0.5, 0.0)),
        max_tokens=rng.choice((1, 6, 16, 32)),
        sampling=Sampling(temperature=temperature, seed=rng.randrange(1 << 30)),
        stops=rng.choice(((), (), (), ("A", "BC"), ("BAC", "AC"))),
        ignore_eos=rng.random() < 0.2,
        objective=rng.choice(OBJECTIVES),
        cancel_after=rng.choice((None, None, None, None, None, 1, 3, 10)),
        cancel_in=rng.choice((None,) * 7 + (0.0, rng.random())),
        afresh=rng.random() < 0.15,
    )


def _caps(rng: random.Random) -> tuple[Trouble, ...]:
    """A cloud that says now and then how many bytes of guesses may come."""
    rates = (16.0, 40.0, 200.0, 2000.0, math.inf)
    return tuple(
        Trouble(at=rng.random() * rng.choice((0.3, 4.0)), kind="cap", cap=rng.choice(rates))
        for _ in range(rng.choice((1, 2, 5)))
    )


def _troubles(rng: random.Random, edges: int) -> tuple[Trouble, ...]:
    """Trouble seldom comes alone: a connection is often replaced before it has said a word."""
    troubles = []
    for _ in range(rng.choice((0, 1, 3, 6, 10))):
        trouble = _trouble(rng, edges)
        troubles.append(trouble)
        while rng.random() < 0.4:
            soon = trouble.at + rng.choice((0.001, 0.02, 0.1))
            late = rng.choice((0.1, 0.5, 2.0))
            trouble = Trouble(at=soon, kind="replace", edge=trouble.edge, late=late)
            troubles.append(trouble)
    return tuple(troubles)


def _trouble(rng: random.Random, edges: int) -> Trouble:
    return Trouble(
        at=rng.random() * rng.choice((0.3, 1.0, 4.0)),
        kind=rng.choice(KINDS),
        edge=rng.randrange(edges),
        notice=rng.choice((0.0, 0.1, 1.0)),
        late=rng.choice((0.0, 0.1, 0.5, 2.0)),
    )
