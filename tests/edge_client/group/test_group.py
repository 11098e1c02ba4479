"""Groups of drafters: trees, routing, members that lie, stall, die and come back."""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import Future

import numpy as np
import pytest

from outrider.cloud_server.targets.scripted import ScriptedTarget
from outrider.edge_client.group.crew import Crew
from outrider.edge_client.group.group import Group, GroupSettings
from outrider.edge_client.group.members import Member, Pace, Table
from outrider.edge_client.group.routing import Route, Router, signal
from outrider.protocol.decoding.rules import choose, propose, propose_some
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.decoding.sparse import Budget
from outrider.protocol.decoding.trees import ROOT, follow
from outrider.protocol.errors import AwayError, BackendError
from outrider.runtime.lm.base import ListedLM, Rows, check_feed
from outrider.runtime.lm.drafter import Drafter, Standing

SIZE = 16
GREEDY = Sampling()
WARM = Sampling(temperature=1, seed=4)
CHEAP = Standing(price=0.0)


class PartialLM(ListedLM):
    """Right where the last id is in ``knows``, wrong and as sure of it elsewhere."""

    def __init__(self, target: ScriptedTarget, knows: range, name: str = "partial") -> None:
        super().__init__(name, SIZE, 512)
        self.target, self.knows = target, knows
        self.gate = threading.Event()
        self.gate.set()
        self.dead = False

    def feed(self, ids, rows=1) -> Rows:
        self.gate.wait(5)
        if self.dead:
            raise BackendError(f"{self.name} died")
        check_feed(self, ids, rows, len(self._ids))
        self._ids.extend(ids)
        found = []
        for i in range(len(self._ids) - rows + 1, len(self._ids) + 1):
            row = self.target.row(self._ids[:i])
            found.append(row if self._ids[i - 1] in self.knows else 0.5 * np.roll(row, 3))
        return np.array(found, np.float32).reshape(rows, SIZE)

    def fork(self) -> PartialLM:
        return PartialLM(self.target, self.knows)


@pytest.fixture
def target() -> ScriptedTarget:
    return ScriptedTarget(vocabulary=SIZE, order=2, peak=4.0)


def group_of(target, *knows, clock=None, **settings) -> Group:
    members = [
        Member(f"m{i}", Drafter(PartialLM(target, k, f"m{i}"), SIZE)) for i, k in enumerate(knows)
    ]
    table = Table(members, clock) if clock else Table(members)
    return Group(table, settings=GroupSettings(fixed=True, **settings))


def truth(target, sampling, ids, count):
    ids = list(ids)
    for _ in range(count):
        ids.append(choose(target.row(ids), sampling, ids, 1, SIZE).id)
    return ids


@pytest.mark.parametrize("sampling", [GREEDY, WARM])
def test_runners_up_come_after_the_proposal(target, sampling) -> None:
    cut = Sampling(temperature=0.9, seed=1, top_k=5, top_p=0.8)
    for n in range(30):
        ids = [n % SIZE, 3]
        for settings in (sampling, cut):
            row = target.row(ids)
            found = propose_some(row, settings, ids, 1, SIZE, count=3)
            assert found[0] == propose(row, settings, ids, 1, SIZE)
            assert len({p.id for p in found}) == len(found)
            assert all(0 <= p.confidence <= 1 for p in found)
    never = frozenset({found[1].id})
    assert never.isdisjoint(
        p.id for p in propose_some(row, GREEDY, ids, 1, SIZE, count=SIZE, never=never)
    )


@pytest.mark.parametrize("sampling", [GREEDY, WARM])
def test_two_halves_make_a_whole(target, sampling) -> None:
    """Members that each know half of the contexts: the tree holds the target's text more often."""
    group = group_of(target, range(8), range(8, 16), width=1)
    alone = group_of(target, range(8), width=1)
    ids, reached = [1], Counter()
    for _ in range(30):
        text = truth(target, sampling, ids, 6)
        for name, drafter in (("group", group), ("alone", alone)):
            standing = Standing(price=0.0, verified=len(ids))
            guess = drafter.draft(ids, 1, sampling, 4, standing=standing)
            parents = guess.parents or range(ROOT, len(guess.tokens) - 1)
            reached[name] += len(follow(guess.tokens, parents, text[len(ids) :]))
        ids = text
    assert reached["group"] > 1.5 * reached["alone"]
    group.close()


def test_equal_guesses_are_joined_and_the_chain_comes_first(target) -> None:
    group = group_of(target, range(16), range(16), range(0), width=2)
    guess = group.draft([1, 2], 1, GREEDY, 4, standing=CHEAP)
    keys = list(zip(guess.parents, guess.tokens, strict=True))
    assert len(set(keys)) == len(keys) > 4
    node, chain = ROOT, []
    while (found := next((i for i, p in enumerate(guess.parents) if p == node), None)) is not None:
        chain.append(guess.tokens[found])
        node = found
    assert [1, 2, *chain] == truth(target, GREEDY, [1, 2], 4)
    few = group.draft([1, 2], 1, GREEDY, 4, standing=Standing(price=0.0, nodes=5))
    assert len(few.tokens) == 5
    assert group.draft([1, 2], 1, GREEDY, 4).parents == ()  # nothing beside the chain pays
    group.close()


def test_under_the_ratio_rule_one_member_draws_alone(target) -> None:
    group = group_of(target, range(16), range(8))
    sampling = Sampling(temperature=1, seed=2, ratio=True)
    guess = group.draft([1, 2], 1, sampling, 3, budget=Budget(8, 64), standing=CHEAP)
    assert (len(guess.rows), guess.parents) == (len(guess.tokens), ())
    group.close()


def test_scores_follow_who_is_right(target) -> None:
    group = group_of(target, range(0), range(16), width=1)
    ids = [1]
    for _ in range(12):
        group.draft(ids, 1, GREEDY, 3, standing=Standing(price=0.0, verified=len(ids)))
        ids = truth(target, GREEDY, ids, 3)
    route = group.router.route((0, 0))
    assert route.scores[1] > route.scores[0] + 0.3
    # The next answer begins from there.
    again = group.router.route((0, 0))
    group.draft(ids, 1, GREEDY, 1, standing=Standing(request=(0, 1), verified=len(ids)))
    assert (0, 0) not in group.router.routes
    assert group.router.route((0, 1)).scores == again.scores
    group.close()


def test_a_member_that_stalls_is_passed_by_and_comes_back(target) -> None:
    group = group_of(target, range(16), range(16), width=1)
    slow = group.steps.members[1].lm
    for n in range(8):
        group.draft([1, n], 1, GREEDY, 2, standing=CHEAP)
    slow.gate.clear()
    guess = group.draft([1, 2, 3], 1, GREEDY, 3, standing=CHEAP)
    assert [1, 2, 3, *guess.tokens] == truth(target, GREEDY, [1, 2, 3], 3)
    assert group.steps.ready() == [0]
    assert group.steps.lateness(1) == 1
    slow.gate.set()
    group.steps._seats[1].busy.result(5)
    assert group.steps.ready() == [0, 1]
    group.close()


def test_a_member_that_dies_is_asked_again_later(target) -> None:
    now = [0.0]
    group = group_of(target, range(16), range(16), width=1, clock=lambda: now[0])
    lm = group.steps.members[0].lm
    lm.dead = True
    guess = group.draft([1, 2], 1, GREEDY, 3, standing=CHEAP)
    assert [1, 2, *guess.tokens] == truth(target, GREEDY, [1, 2], 3)
    assert group.steps.ready() == [1]
    now[0], lm.dead = 1.0, False
    assert group.steps.ready() == [0, 1]
    group.draft([1, 2], 1, GREEDY, 3, standing=CHEAP)
    assert group.steps.ready() == [0, 1]
    for member in group.steps.members:
        member.lm.dead = True
    with pytest.raises(AwayError, match="every drafter of the group failed: m. died") as refused:
        group.draft([3, 4, 5], 1, GREEDY, 3, standing=CHEAP)
    assert (refused.value.retry_after, refused.value.busy) == (0.5, False)
    now[0], group.steps.members[1].lm.dead = 1.5, False
    guess = group.draft([3, 4, 5], 1, GREEDY, 3, standing=CHEAP)
    assert [3, 4, 5, *guess.tokens] == truth(target, GREEDY, [3, 4, 5], 3)
    group.close()


@pytest.mark.parametrize("fuse", [True, False])
def test_where_the_one_that_was_asked_dies_another_takes_over(target, fuse) -> None:
    group = group_of(target, range(16), range(16), width=1, most=1, fuse=fuse)
    group.steps.members[0].lm.dead = True
    guess = group.draft([1, 2], 1, GREEDY, 3, standing=CHEAP)
    assert [1, 2, *guess.tokens] == truth(target, GREEDY, [1, 2], 3)
    warm = Sampling(temperature=1, seed=2, ratio=True)
    assert group.draft([1, 2], 1, warm, 3, budget=Budget(8, 64), standing=CHEAP).rows
    group.close()


def test_members_that_are_all_busy_pass(target) -> None:
    group = group_of(target, range(16), range(16), width=1)
    group.draft([1, 2], 1, GREEDY, 2, standing=CHEAP)
    for seat in group.steps._seats:
        seat.busy = Future()
    with pytest.raises(AwayError) as refused:
        group.draft([1, 2], 1, GREEDY, 3, standing=CHEAP)
    assert refused.value.busy
    assert refused.value.retry_after < 0.1
    for seat in group.steps._seats:
        seat.busy.set_result(None)
    assert group.draft([1, 2], 1, GREEDY, 3, standing=CHEAP).depth == 3
    group.close()


@pytest.mark.parametrize("fuse", [True, False])
def test_a_draft_that_was_stopped_says_so(target, fuse) -> None:
    group = group_of(target, range(16), fuse=fuse)
    for drafter in (group, group.steps.members[0].drafter):
        guess = drafter.draft([1, 2], 1, GREEDY, 3, stop=lambda: True)
        assert (guess.depth, guess.stopped) == (1, True)
        assert not drafter.draft([1, 2], 1, GREEDY, 1, stop=lambda: True).stopped
        assert not drafter.draft([1, 2], 1, GREEDY, 3).stopped
    group.close()


class TestParts:
    def test_a_sure_and_wrong_member_loses(self) -> None:
        assert signal(0.99, 0.0) == 0.0 < signal(0.3, 1.0) < signal(0.9, 1.0) <= 1.0
        assert signal(0.9, -0.5) == 0.0

    def test_routes_explore_while_little_is_accepted(self) -> None:
        route = Route([0.8, 0.7, 0.2], [20.0, 20.0, 0.0])
        assert route.exploring
        assert route.choose([0, 1, 2], 2, lambda _: 0.0) == [2, 0]
        assert route.choose([0, 1, 2], 1, lambda _: 0.0) == [0]
        for _ in range(20):
            route.accepts(4, 4)
        assert not route.exploring
        assert route.choose([0, 1, 2], 2, lambda _: 0.0) == [0, 1]
        assert route.choose([0, 1], 1, lambda m: 1.0 - m) == [1]  # the other is busy

    def test_members_that_are_not_asked_are_forgotten(self) -> None:
        route = Route([0.9, 0.0], [5.0, 5.0])
        for _ in range(100):
            route.observe({0: 1.0})
        assert route.scores[1] > 0.4
        assert route.tried[1] < 0.5

    def test_a_prior_decays(self) -> None:
        router = Router(2)
        route = router.route((1, 1), "key")
        for _ in range(50):
            route.observe({0: 1.0, 1: 0.0})
        router.end((1, 1))
        assert router.route((1, 2), "key").scores[0] > 0.9
        assert router.route((1, 2), "key").tried[0] < 5
        assert router.route((2, 1), "another").scores == [0.5, 0.5]

    def test_one_drafter_is_left_where_more_do_not_pay(self) -> None:
        rng = random.Random(1)
        for group, single, step, best in ((0.8, 0.5, 0.002, 4), (0.6, 0.6, 0.02, 1)):
            crew, sizes = Crew(4), Counter()
            for _ in range(2000):
                size = crew.size(0.02, 0.0)
                sizes[size] += 1
                crew.took(size, step if size > 1 else 0.002)
                crew.judged(size, rng.random() < (group if size > 1 else single))
            assert sizes[best] > 0.95 * 2000
        assert Crew(4).size(0.02, 0.9) == 1  # the verifier has no time

    def test_patience_comes_from_history(self) -> None:
        pace = Pace()
        first = pace.patience
        assert Pace(mean=0.01).patience == 0.01
        for _ in range(30):
            pace.observe(0.02)
        assert 0.02 <= pace.patience < 0.03 < first
