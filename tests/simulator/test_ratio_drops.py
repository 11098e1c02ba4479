"""Guesses with rows over links that drop: at every moment of an answer, whatever is under way then.

Both ends run as they are. The drafter is slow beside the time to connect again, so that the link
goes and comes back during its work, with guesses ahead that have not left yet.
"""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest

from outrider.edge_client import ratio as edge_ratio
from outrider.edge_client.engine import EdgeEngine
from outrider.edge_client.policy import Plan, Steady
from outrider.edge_client.work import DraftWork, Idle
from outrider.protocol.decoding.combine import combined, parse, row_sampling
from outrider.protocol.decoding.noise import gumbel
from outrider.protocol.decoding.ratio import decide
from outrider.protocol.decoding.rules import choose
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.decoding.sparse import Budget, draw, spread
from outrider.protocol.guesses import judge
from outrider.protocol.request import Request
from outrider.runtime.lm.base import follow
from outrider.runtime.lm.drafter import Drafter
from outrider.simulator.lm import DrafterLM, RememberedTarget
from outrider.simulator.pair import ConnectionPair
from outrider.simulator.settings import (
    Costs,
    DrafterSettings,
    EdgeSettings,
    LinkSettings,
    Trouble,
    Turn,
    WorldSettings,
)
from outrider.simulator.world import World

RATIO = Sampling(temperature=1.0, ratio=True)
BOTH = Sampling(temperature=1.0, collaborate=parse("ensemble=0.5,keep=4,levels=64"))
BUDGET = Budget(4, 64)
"""Always the same one, so that a row is a function of the text before it."""

V, TOKENS = 26, 16
STEP, BACK_OFF, PASS = 0.02, 0.05, 0.02
DRAFTER = DrafterSettings(kind="mixed", frame=2, window=8)
FIRST, LAST, GRAIN = 0.5, 1.6, 0.01


@pytest.fixture(autouse=True)
def _one_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_ratio.Rows, "budget", lambda *_: BUDGET)


def turn(sampling: Sampling, which: int) -> Turn:
    seeded = msgspec.structs.replace(sampling, seed=which)
    return Turn(ids=(1, 2 + which), max_tokens=TOKENS, sampling=seeded, objective="latency")


def world(sampling: Sampling, *drops: float) -> World:
    """Two users of one edge, whose link drops at these times."""
    edge = EdgeSettings(
        link=LinkSettings(delay=0.01),
        drafter=DRAFTER,
        sessions=((turn(sampling, 0),), (turn(sampling, 1),)),
        starts=(0.5, 0.53),
        back_off=BACK_OFF,
    )
    return World(
        WorldSettings(
            vocabulary=V,
            edges=(edge,),
            costs=Costs(target_pass=PASS, draft_step=STEP),
            troubles=tuple(Trouble(at=at, kind="cut", notice=0.02) for at in drops),
        )
    )


class Reference:
    """What may stand at a place, by the definitions alone: no machine, no epoch, no link."""

    def __init__(self, settings: WorldSettings) -> None:
        self.target = RememberedTarget(settings)
        self.lm = DrafterLM(self.target, DRAFTER)

    def may_follow(self, ids: list[int], prompt_len: int, sampling: Sampling) -> set[int]:
        """The target's own token, or what the ratio rule makes of the one draft of this place."""
        theirs = follow(self.lm, ids, rows=1)[-1]
        row = self.target.row(ids)
        if sampling.collaborate is not None:
            made = row_sampling(sampling)
            kept = spread(theirs, made, ids, prompt_len, V, budget=BUDGET).row
            found, scores = combined(row, sampling, ids, prompt_len, V, other=kept)
            noisy = scores + gumbel(sampling.seed, 0, len(ids), found)
            return {int(found[noisy.argmax()])}
        kept = spread(theirs, sampling, ids, prompt_len, V, budget=BUDGET).row
        draft = [*ids, draw(kept, sampling, len(ids))]
        logits = [row, self.target.row(draft)]
        judged = decide(logits, sampling, draft, prompt_len, V, rows=[kept])
        return {judged[0].id, choose(row, sampling, ids, prompt_len, V).id}


@pytest.mark.parametrize("sampling", [RATIO, BOTH], ids=["ratio", "combined"])
def test_a_drop_at_any_moment(sampling: Sampling) -> None:
    accepted = 0
    for at in np.arange(FIRST, LAST, GRAIN):
        made = world(sampling, float(at), float(at) + 0.113)
        assert made.run(), f"stuck after a drop at {at:.3f} s"
        reference = Reference(made.settings)
        assert not made.edges[0].failures
        for conversation in made.edges[0].conversations:
            (answer,) = conversation.answers
            assert (answer.ends, answer.faults) == (["length"], []), f"a drop at {at:.3f} s"
            assert len(answer.tokens) == TOKENS
            accepted += answer.accepted
            ids = list(answer.prompt)
            for token in answer.tokens:
                allowed = reference.may_follow(ids, len(answer.prompt), answer.turn.sampling)
                assert token in allowed, f"place {len(ids)}, a drop at {at:.3f} s"
                ids.append(token)
    assert accepted > TOKENS * (LAST - FIRST) / GRAIN / 2  # of twice as many: it was drafts


# --- the engine alone: every order of events ----------------------------------------------------

ORDERS = 6
"""Letters: the link goes, a whole work, another begun, the link comes back, that work ends."""


class Orders:
    """An edge's engine and a cloud's session, moved by single letters.

    ``w``: the drafter begins a work, or ends the one that is under way. ``l``: the link goes, or
    comes back. ``m``: all messages arrive. ``p``: a pass at the cloud.
    """

    def __init__(self) -> None:
        settings = WorldSettings(vocabulary=V)
        self.target = RememberedTarget(settings)
        self.pair = ConnectionPair()
        self.drafter = Drafter(DrafterLM(self.target, DRAFTER), V)
        self.engine = EdgeEngine(self.pair.machine, self.drafter, Steady(Plan(2, 8)))
        self.work: DraftWork | None = None
        self.up = True
        self.pair.connect()
        self.session = self.pair.machine.session()
        self.pair.machine.open(self.session, Request(ids=(1, 2), max_tokens=50, sampling=RATIO))
        self.pair.settle()
        self.engine.next(0.0)

    def w(self) -> None:
        if self.work is not None:
            work, self.work = self.work, None
            self.engine.done(work, work.run(self.drafter), 0.0)
            return
        work = self.engine.next(0.0)
        if not isinstance(work, Idle):
            assert isinstance(work, DraftWork)  # the prompt is short
            self.work = work

    def l(self) -> None:  # noqa: E743 - a letter
        if self.up:
            self.pair.lose()
        else:
            self.pair.connect()
        self.up = not self.up

    def m(self) -> None:
        if self.up:
            self.pair.settle()

    def p(self) -> None:
        cloud = self.pair.cloud_session(self.session)
        if not cloud.active:
            return
        chain, rows = cloud.window.chain(8), cloud.window.chain_rows(8)
        text = [*cloud.ids, *chain]
        logits = [self.target.row(text[:i]) for i in range(len(cloud.ids), len(text) + 1)]
        made = decide(logits, RATIO, text, cloud.prompt_len, V, rows=rows)
        tokens = judge(chain, [choice.id for choice in made])
        cloud.commit(tokens, len(tokens) - 1)

    def rest(self) -> None:
        """The link comes back, everything arrives, and there is one more round."""
        if not self.up:
            self.l()
        for letter in "mwwmwwmpm":
            getattr(self, letter)()


def test_every_order_of_events() -> None:
    for order in itertools.product("wlmp", repeat=ORDERS):
        if order.count("l") < 2:
            continue
        orders = Orders()
        for letter in order:
            getattr(orders, letter)()
        orders.rest()
        cloud = orders.pair.cloud_session(orders.session)
        assert orders.session.ids == cloud.ids, "".join(order)
        assert len(cloud.ids) > 2
        assert orders.pair.machine.failure is None
