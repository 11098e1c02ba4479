"""The ratio rule end to end: the law of whole answers, and what happens to it under each fault.

Every fault replaces a piece of the code by the mistake that is named, and the same comparison that
passes without it must fail.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from outrider.cloud_server import engine as cloud_engine
from outrider.edge_client import ratio as edge_ratio
from outrider.edge_client.policy import Plan
from outrider.protocol.decoding import ratio, rules
from outrider.protocol.decoding.noise import Domain
from outrider.protocol.decoding.row import SparseRow
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.decoding.sparse import Budget, draw
from outrider.protocol.edge_session import EdgeSession
from outrider.runtime.lm import drafter
from outrider.runtime.lm.drafter import Drafter, Guess
from outrider.simulator.settings import Trouble

Patch = pytest.MonkeyPatch

SOUND, BROKEN = 3.5, 5.5
"""Standard deviations of chi-square: what is sound stays under, what is broken must be above."""

ANSWERS = 400


@pytest.mark.parametrize("plan", [Plan(1, 4)])
def test_answers_have_the_targets_law(worlds: Any, plan: Plan) -> None:
    tables = worlds.Tables()
    made = worlds.world(ANSWERS, tables, plan)
    assert worlds.misfit(worlds.texts(made), tables) < SOUND
    answers = made.edges[0].conversations[0].answers
    assert sum(answer.accepted for answer in answers) > ANSWERS  # it was drafts that were judged
    assert not made.edges[0].failures


@pytest.mark.parametrize("budget", [Budget(1, 1), Budget(3, 4)])
def test_whatever_is_left_of_a_row(worlds: Any, budget: Budget, monkeypatch: Patch) -> None:
    monkeypatch.setattr(edge_ratio.Rows, "budget", lambda *_: budget)
    tables = worlds.Tables()
    found = worlds.texts(worlds.world(ANSWERS, tables, Plan(2, 2), seed=1))
    assert worlds.misfit(found, tables) < SOUND


def test_drops_and_crashes_change_nothing(worlds: Any) -> None:
    tables = worlds.Tables()
    kinds = ("cut", "stall", "cloud_first", "replace", "restart")
    troubles = tuple(
        Trouble(at=0.7 + 0.31 * i, kind=kinds[i % 5], notice=0.03, late=0.02) for i in range(90)
    )
    made = worlds.world(ANSWERS, tables, Plan(2, 4), seed=2, troubles=troubles)
    assert worlds.misfit(worlds.texts(made), tables) < SOUND


# --- faults -------------------------------------------------------------------------------------


def inverted_ratio(patch: Patch) -> None:
    def odds(log_p: float, row: SparseRow, token: int, sampling: Sampling, position: int) -> float:
        u = ratio.uniform(sampling, position, Domain.ACCEPT)
        return math.log(row.mass(token)) - log_p - math.log(u)

    patch.setattr(ratio, "odds", odds)


def q_not_as_sampled(patch: Patch) -> None:
    def even(row: SparseRow, sampling: Sampling, position: int) -> int:
        return draw(SparseRow(row.ids, (1,) * len(row.ids)), sampling, position)

    patch.setattr(drafter, "draw", even)


def tokens_kept_after_a_reject(patch: Patch) -> None:
    judge = cloud_engine.judge

    def lenient(chain: Sequence[int], decided: Sequence[int]) -> list[int]:
        tokens = judge(chain, decided)
        return [*tokens, *chain[len(tokens) :]]

    patch.setattr(cloud_engine, "judge", lenient)


def residual_left_out(patch: Patch) -> None:
    patch.setattr(rules, "without", lambda _tokens, scores, _minus: scores)


def likelier_of_two_drafters(patch: Patch) -> None:
    def fused(row: SparseRow, sampling: Sampling, position: int) -> int:
        return max((draw(row, sampling, position + k * 10_000) for k in range(2)), key=row.mass)

    patch.setattr(drafter, "draw", fused)


def branch_cache_alternative(patch: Patch) -> None:
    def second(row: SparseRow, sampling: Sampling, position: int) -> int:
        if position % 2:
            return draw(row, sampling, position)
        return sorted(row.ids, key=lambda t: -row.mass(t))[:2][-1]

    patch.setattr(drafter, "draw", second)


def withheld_for_its_own_probability(patch: Patch) -> None:
    whole = Drafter.draft

    def shy(self: Drafter, *args: Any, **named: Any) -> Guess:
        guess = whole(self, *args, **named)
        sure = [r.mass(t) >= 0.4 for t, r in zip(guess.tokens, guess.rows, strict=True)]
        n = sure.index(False) if False in sure else len(sure)
        return Guess(guess.tokens[:n], guess.confidences[:n], guess.rows[:n])

    patch.setattr(Drafter, "draft", shy)


def withdrawn_and_redrawn(patch: Patch) -> None:
    def again(row: SparseRow, sampling: Sampling, position: int) -> int:
        token = draw(row, sampling, position)
        return token if row.mass(token) >= 0.3 else draw(row, sampling, position + 10_000)

    patch.setattr(drafter, "draw", again)


def frame_cut_after_the_draw(patch: Patch) -> None:
    guess = EdgeSession.guess

    def cut(self: EdgeSession, tokens: Sequence[int], rows: Any = (), **more: Any) -> None:
        n = next((i for i, t in enumerate(tokens) if t == 0), len(tokens))
        guess(self, tokens[:n], rows[:n], **more)

    patch.setattr(EdgeSession, "guess", cut)


FAULTS: list[Callable[[Patch], None]] = [
    inverted_ratio,
    q_not_as_sampled,
    tokens_kept_after_a_reject,
    residual_left_out,
    likelier_of_two_drafters,
    branch_cache_alternative,
    withheld_for_its_own_probability,
    withdrawn_and_redrawn,
    frame_cut_after_the_draw,
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_noticed(
    worlds: Any, fault: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    fault(monkeypatch)
    monkeypatch.setattr(edge_ratio.Rows, "budget", lambda *_: Budget(4, 64))
    tables = worlds.Tables()
    found = worlds.texts(worlds.world(ANSWERS, tables, Plan(2, 2), seed=3))
    assert worlds.misfit(found, tables) > BROKEN
