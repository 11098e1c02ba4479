"""What members name becomes one ranking, and rankings the tree that is expected to hold most."""

from __future__ import annotations

import itertools
import math
import random
from functools import cache, partial

import numpy as np
import pytest

from outrider.edge_client.group.crew import AGAIN, Hearing, Odds
from outrider.edge_client.group.growth import Growth, Path
from outrider.edge_client.group.pool import Candidate, log_probabilities, pooled
from outrider.edge_client.group.routing import EVEN, EVIDENCE, Route, Router
from outrider.protocol.decoding.rules import Proposal, choose, propose_some, shared_noise
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.decoding.trees import ROOT, path

SIZE, WIDTH, DEPTH = 12, 3, 3


def quiet(tokens):
    return np.zeros(len(tokens))


@pytest.fixture(params=range(8))
def chances(request):
    """Of each place its candidates' chances, likeliest first, together less than 1."""

    @cache
    def of(place: Path) -> tuple[float, ...]:
        rng = random.Random(f"{request.param} {place}")
        parts = sorted((rng.random() for _ in range(WIDTH + 1)), reverse=True)
        return tuple(part / sum(parts) for part in parts[:WIDTH])

    return of


def grow(chances, steps: int, members=(0,), **settings) -> tuple[Growth, list[dict[int, Path]]]:
    """So many steps; where who proposed in each."""

    def rank(place: Path, _named) -> list[Candidate]:
        # The chance of each is told by its gap.
        return [Candidate(i, i, chance, chance) for i, chance in enumerate(chances(place))]

    growth = Growth(rank, lambda candidate: candidate.gap, **settings)
    asked = []
    for _ in range(steps):
        asked.append(growth.places(members))
        for member, place in asked[-1].items():
            growth.take(place, member, [Proposal(0, 0.5)])
        growth.weigh(sorted(set(asked[-1].values())))
    return growth, asked


def worth(chances, guesses) -> float:
    """Right guesses expected of a set of paths."""
    return sum(
        math.prod(chances(place[:i])[token] for i, token in enumerate(place)) for place in guesses
    )


def paths(guess) -> list[Path]:
    parents = guess.parents or range(ROOT, len(guess.tokens) - 1)
    return [tuple(guess.tokens[n] for n in path(parents, node)) for node in range(len(parents))]


@cache
def trees(nodes: int) -> list[frozenset[Path]]:
    """All trees of so many guesses, each place having the same ``WIDTH`` candidates."""
    if nodes == 0:
        return [frozenset()]
    found = set()
    for tree in trees(nodes - 1):
        for place in {(), *tree}:
            found |= {tree | {(*place, i)} for i in range(WIDTH) if (*place, i) not in tree}
    return list(found)


@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
def test_no_tree_of_as_many_guesses_is_expected_to_hold_more(chances, nodes) -> None:
    growth, _ = grow(chances, nodes)  # as many steps as guesses: what a chain takes
    guess, steps = growth.best(nodes)
    assert len(guess.tokens) == nodes
    assert worth(chances, paths(guess)) == pytest.approx(
        max(worth(chances, tree) for tree in trees(nodes))
    )
    assert ROOT in steps
    chain = [(0,) * (i + 1) for i in range(nodes)]
    assert worth(chances, paths(guess)) >= worth(chances, chain) - 1e-12


def test_guesses_leave_best_first_and_below_their_parents(chances) -> None:
    growth, _ = grow(chances, 6)
    guess, steps = growth.best(12)
    values = [worth(chances, [place]) for place in paths(guess)]
    assert values == sorted(values, reverse=True)
    assert all(parent < node for node, parent in enumerate(guess.parents))
    assert set(steps) <= {ROOT, *range(len(guess.tokens))}


def test_where_nothing_beside_it_pays_there_is_a_chain(chances) -> None:
    growth, asked = grow(chances, 4, price=1.0)
    guess, _ = growth.best(24)
    assert (guess.tokens, guess.parents) == ((0,) * 4, ())
    assert [found[0] for found in asked] == [(), (0,), (0, 0), (0, 0, 0)]
    some, _ = grow(chances, 4, price=0.2)
    beside = [p for p in paths(some.best(24)[0]) if any(p)]
    assert all(worth(chances, [p]) >= 0.2 for p in beside)


def test_nothing_follows_an_end_or_what_is_too_unsure(chances) -> None:
    ended, asked = grow(chances, 3, price=1.0, eos=frozenset({0}))
    assert ended.best(24)[0].tokens == (0,)
    assert asked == [{0: ()}, {}, {}]
    growth, _ = grow(chances, 3, floor=1.0)
    assert growth.best(24)[0].tokens == ()


def test_members_share_the_places_out(chances) -> None:
    everybody = (2, 0, 1)
    together, asked = grow(chances, 3, members=everybody, again=1.0)
    assert [set(found.values()) for found in asked[:2]] == [{()}, {(0,)}]
    assert len(together.best(24)[1]) == 3
    growth, asked = grow(chances, 2, members=everybody, again=0.2)
    assert asked[0] == dict.fromkeys(everybody, ())  # there is no other place yet
    values = {(i,): chance for i, chance in enumerate(chances(()))}
    # By hand: whoever is first takes the best place, and leaves a fifth of it to the next.
    for member in everybody:
        best = max(values, key=lambda place: values[place])
        assert asked[1][member] == best
        values[best] *= 0.2
    assert len(growth.best(24)[1]) == 1 + len(set(asked[1].values()))


class TestPool:
    def test_a_mixture_of_what_is_named(self) -> None:
        named = {
            0: [Proposal(3, 0.6), Proposal(5, 0.3)],
            1: [Proposal(5, 0.8), Proposal(3, 0.1)],
        }
        found = pooled(named, {0: 0.5, 1: 0.5}, quiet)
        assert [c.id for c in found] == [5, 3]
        assert found[0].gap == found[1].gap == pytest.approx(math.log(0.55 / 0.35))
        assert [(c.votes, c.voices, c.confidence) for c in found] == [(1, 2, 0.8), (1, 2, 0.6)]
        assert [c.id for c in pooled(named, {0: 0.9, 1: 0.1}, quiet)] == [3, 5]
        assert pooled({0: []}, {0: 1.0}, quiet) == []
        named[2] = [Proposal(3, 0.2)]  # of equals two name it first, whatever the mixture says
        assert [(c.id, c.votes) for c in pooled(named, None, quiet)] == [(3, 2), (5, 1)]
        assert pooled({0: [Proposal(7, 0.2)]}, {0: 1.0}, quiet)[0].gap == math.inf

    def test_what_is_not_named_scores_under_the_last_that_is(self) -> None:
        rng = np.random.default_rng(3)
        sampling = Sampling(temperature=1.0, seed=2)
        for length in range(1, 20):
            row = (3 * rng.standard_normal(SIZE)).astype(np.float32)
            ids = list(range(length))
            noise = partial(shared_noise, sampling, length)
            few = propose_some(row, sampling, ids, 1, SIZE, count=3)
            every = range(SIZE)
            bounds = log_probabilities(list(every), few, noise)
            right = row - np.log(np.exp(row.astype(np.float64)).sum())
            for token in every:
                if any(p.id == token for p in few):
                    assert bounds[token] == pytest.approx(right[token], abs=1e-5)
                else:  # half a unit below the bound, which holds
                    assert right[token] <= bounds[token] + 0.5 + 1e-5

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_one_member_ranks_by_its_own_noisy_scores(self, temperature) -> None:
        rng = np.random.default_rng(4)
        sampling = Sampling(temperature=temperature, seed=5)
        for length in range(1, 20):
            row = (2 * rng.standard_normal(SIZE)).astype(np.float32)
            ids = list(range(length))
            own = propose_some(row, sampling, ids, 1, SIZE, count=4)
            found = pooled({0: own}, {0: 1.0}, partial(shared_noise, sampling, length))
            best = choose(row, sampling, ids, 1, SIZE)
            assert [c.id for c in found] == [p.id for p in own]
            assert found[0].id == best.id
            assert found[0].gap == pytest.approx(best.margin, abs=1e-4)


class TestParts:
    def test_odds_are_learned(self) -> None:
        odds = Odds()
        first, second = Candidate(1, 0, 3.0, 0.1), Candidate(2, 1, 3.0, 0.1)
        unsure, agreed = Candidate(1, 0, 0.1, 0.9), Candidate(1, 0, 3.0, 0.1, votes=2, voices=2)
        assert odds.of(agreed) > odds.of(first) > odds.of(unsure) > odds.of(second)
        for _ in range(50):
            odds.observe(first, False)
            odds.observe(second, True)
        assert odds.of(first) < 0.1
        assert odds.of(second) > 0.9
        assert odds.of(agreed) > 0.9

    def test_members_are_asked_together_where_that_avoids_mistakes(self) -> None:
        hearing = Hearing()
        assert (hearing.equals, hearing.again) == (False, AGAIN)
        for at in range(300):  # one is right at 2 of 3 places, equals at 5 of 6
            hearing.observe(alike=bool(at % 6), weighed=bool(at % 3), alone=bool(at % 3))
        assert hearing.equals
        assert hearing.again == 1.0
        for at in range(900):  # nothing is gained any more
            hearing.observe(alike=bool(at % 2), weighed=bool(at % 3), alone=bool(at % 3))
        assert not hearing.equals
        assert hearing.again == pytest.approx(AGAIN, abs=0.05)

    def test_who_foresees_the_text_is_heard(self) -> None:
        route = Route([0.5] * 3, [0.0] * 3)
        assert route.weights([0, 1, 2]) == pytest.approx(dict.fromkeys(range(3), 1 / 3))
        for _ in range(60):
            route.foresaw({0: -0.5, 1: -1.0, 2: -math.inf})
        weights = route.weights([0, 1, 2])
        assert weights[0] > weights[1] > weights[2] >= EVEN / 3
        assert sum(weights.values()) == pytest.approx(1)
        # 20 positions, each 0.5 better, tempered.
        heard = [weights[i] - EVEN / 3 for i in range(3)]
        assert heard[0] / heard[1] == pytest.approx(math.exp(EVIDENCE * 20 * 0.5), rel=0.1)

    def test_the_next_answer_begins_with_less_evidence(self) -> None:
        router = Router(2)
        route = router.route((1, 1), "key")
        for _ in range(50):
            route.foresaw({0: -0.1, 1: -3.0})
        router.end((1, 1))
        again = router.route((1, 2), "key")
        assert again.foresight == pytest.approx([-0.1, -3.0], abs=0.01)
        assert 0 < again.foreseen < route.foreseen / 2
        assert 0.5 < again.weights([0, 1])[0] < route.weights([0, 1])[0]


def test_all_permutations_of_members_find_the_same_pool() -> None:
    named = {i: [Proposal(t, 0.2 + 0.1 * t) for t in (i, i + 1)] for i in range(3)}
    found = [
        pooled({m: named[m] for m in order}, dict.fromkeys(order, 1 / 3), quiet)
        for order in itertools.permutations(named)
    ]
    assert all([c.id for c in one] == [c.id for c in found[0]] for one in found)
