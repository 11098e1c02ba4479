"""Guesses beside the chain: where, with invented numbers, and what is learned from the text."""

from __future__ import annotations

import pytest

from outrider.edge_client.branches import LEADS, RIGHT, Branches, Pace, Place, Side, Trust, places
from outrider.runtime.lm.drafter import Guess

LAPTOP = Pace(step=0.005, read=0.001, target=0.1, rtt=0.002)
BOARD = Pace(step=0.055, read=0.025, target=0.03, rtt=0.002)


def standing(leads: list[float], trust: Trust | None = None) -> Branches:
    """A chain from index 10 on, all in the pass under way: guesses 0, 1, ..., runner-ups 90."""
    branches = Branches(trust or Trust())
    branches.settle(1, list(range(10)), [0], now=1.0)  # a verdict came
    count = len(leads)
    guess = Guess(tuple(range(count)), (0.5,) * count, runners_up=(90,) * count, leads=tuple(leads))
    branches.extended(places(10, guess, now=0.5))
    return branches


def best(branches: Branches, pace: Pace = LAPTOP, *, going_on: bool = True) -> Side | None:
    return branches.best(pace, 1.01, 0.8, 8, away=0, going_on=going_on)


def test_the_least_certain_place_is_foreseen() -> None:
    side = best(standing([5.0, 0.1, 5.0, 5.0]), going_on=False)
    assert side is not None
    assert (side.index, side.second) == (11, 90)
    assert 1 < side.count <= 8


def test_going_on_is_better_while_the_chain_is_likely() -> None:
    assert best(standing([5.0, 5.0, 5.0])) is None
    assert best(standing([0.1, 0.1, 0.1, 0.1, 0.1, 0.1])) is not None


def test_a_drafter_that_is_slower_than_the_target_is_never_away_for_long() -> None:
    side = best(standing([0.1, 0.1]), BOARD, going_on=False)
    assert side is None or side.count == 1


def test_guesses_that_are_in_no_pass_yet_can_wait() -> None:
    branches = standing([])
    guess = Guess((1, 2), (0.5, 0.5), runners_up=(90, 90), leads=(0.1, 0.1))
    branches.extended(places(10, guess, now=1.005))
    assert best(branches, going_on=False) is None


def test_a_place_is_foreseen_once() -> None:
    branches = standing([0.1])
    assert best(branches, going_on=False) is not None
    branches.branched(10, [])
    assert best(branches, going_on=False) is None


def test_a_hit_goes_on_with_what_is_known_of_the_side() -> None:
    branches = standing([0.1, 5.0])
    branches.branched(10, [Place(11, 91, 7, 0.1, 0.5), Place(12, 92, 7, 0.1, 0.5)])
    text = [*range(10), 90]
    assert branches.settle(1, text, [91, 92], now=1.1) == 1
    assert [place.token for place in branches.line] == [91, 92]
    assert branches.settle(1, [*text, 91, 7], [], now=1.2) == 0  # nothing stood there
    assert branches.line == []


def test_another_answer_or_a_chain_by_somebody_else_is_forgotten() -> None:
    branches = standing([0.1, 0.1])
    branches.settle(1, list(range(10)), [5, 6], now=1.1)
    assert branches.line == []
    branches = standing([0.1, 0.1])
    branches.settle(2, list(range(10)), [0, 1], now=1.1)
    assert branches.line == []


@pytest.mark.parametrize("lead", [0.1, 0.3, 0.7, 1.5, 3.0, 9.0])
def test_trust_begins_with_the_records_and_follows_what_is_seen(lead: float) -> None:
    trust = Trust()
    kind = sum(lead >= end for end in LEADS)
    assert trust.right(lead) == pytest.approx(RIGHT[kind])
    for i in range(400):
        trust.judged(lead, i % 4 == 0)
    assert trust.right(lead) == pytest.approx(0.25, abs=0.05)
    for _ in range(400):
        trust.refused(second=True)
    assert trust.second > 0.95
