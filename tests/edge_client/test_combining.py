"""Whether a text of several models waits, goes on or goes in turns: figures in, a plan out."""

from __future__ import annotations

import pytest

from outrider.edge_client.combining import LONGEST, TURNS_KNOWN, Combining
from outrider.edge_client.policy import Plan
from outrider.protocol.decoding.sampling import Collaboration, Combination
from outrider.protocol.origins import Origins

ENSEMBLE = Collaboration(kind=Combination.ENSEMBLE, weight=0.5)
CONTRASTIVE = Collaboration(kind=Combination.CONTRASTIVE, weight=0.1)
WAIT, TURNS = Plan(1, 1), Plan(1, 1, offers=True)


def costs(
    alpha: float, *, step: float | None = 0.024, rtt: float | None = 0.002, judged: float = 30.0
) -> Combining:
    error = (alpha * (1 - alpha) / (judged + 8)) ** 0.5
    return Combining(alpha, error, judged, step, target=0.03, rtt=rtt, row=0.0)


def plan(made: Combining, of: Collaboration = ENSEMBLE, origins: Origins | None = None) -> Plan:
    return made.plan(of, origins or Origins())


def test_a_step_as_long_as_a_pass_goes_on_only_where_nearly_all_guesses_stand() -> None:
    assert plan(costs(0.98)).window > 1
    assert plan(costs(0.82)) == WAIT  # a refused guess wastes the step that is under way


def test_a_few_lucky_guesses_are_no_reason() -> None:
    sure = costs(0.9, judged=2000)
    assert sure.going_on(0.9) < sure.waiting()
    assert plan(sure).window > 1
    assert plan(costs(0.9, judged=2)) == WAIT


def test_a_long_way_is_reason_enough_from_the_start() -> None:
    assert plan(costs(0.7, rtt=0.06, judged=0)).window > 1


def test_what_is_not_known() -> None:
    assert plan(costs(0.7, step=None)) == WAIT
    assert plan(costs(0.7, rtt=None)) == Plan(1, LONGEST)


def test_turns_where_the_way_is_long_and_r_is_near_the_cloud() -> None:
    assert plan(costs(0.5, rtt=0.6), CONTRASTIVE) == TURNS
    assert plan(costs(0.5, rtt=0.6, judged=TURNS_KNOWN - 1), CONTRASTIVE) != TURNS
    assert plan(costs(0.98, rtt=0.6), CONTRASTIVE) != TURNS


def test_what_the_edge_s_guesses_tell_of_the_cloud_s_in_an_ensemble() -> None:
    made = costs(0.9, rtt=0.6)
    assert made._stands(ENSEMBLE, Origins()) == pytest.approx(0.9)
    heavy = Collaboration(kind=Combination.ENSEMBLE, weight=0.75)
    assert made._stands(heavy, Origins()) == pytest.approx(0.7)
    light = Collaboration(kind=Combination.ENSEMBLE, weight=0.1)
    assert made._stands(light, Origins()) == pytest.approx(0.95)  # a hope, not more
    tried = Origins()
    tried.right, tried.judged = 1.0, 4.0
    assert made._stands(ENSEMBLE, tried) == 0.25
