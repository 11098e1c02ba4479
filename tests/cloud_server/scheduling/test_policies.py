"""Which batch is chosen, beside a search of all that there are."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product

import pytest

from outrider.cloud_server.scheduling.batch import Caps, Choice, Rank, Request, fed, seconds, worth
from outrider.cloud_server.scheduling.policies import POLICIES, Cosine, Fifo
from outrider.cloud_server.scheduling.step_time import StepTime
from outrider.cloud_server.scheduling.table import Table

INF = float("inf")


def times(fixed: float, row: float, each: float, padded: float = 0.0) -> StepTime:
    """What a step takes, known beforehand."""
    known = StepTime()
    known.fixed, known.row, known.each, known.padded = fixed, row, each, padded
    return known


A100 = times(0.022, 0.000084, 0.00024)


def guesses(alpha: float, count: int) -> tuple[float, ...]:
    return tuple(alpha ** (i + 1) for i in range(count))


def verify(alpha: float = 0.8, count: int = 4, **more) -> Request:
    return Request(rank=Rank.VERIFY, reach=guesses(alpha, count), **more)


def exhaustive(requests: Sequence[Request], known: StepTime, caps: Caps) -> float | None:
    """The least worth of any batch with any number of guesses: the slow reference."""
    every = product(*(range(-1, len(request.reach) + 1) for request in requests))
    choices = ({i: d for i, d in enumerate(each) if d >= 0} for each in every)
    found = (worth(requests, choice, known, caps) for choice in choices if choice)
    return min((value for value in found if value is not None), default=None)


def drawn(rng: random.Random, most: int, drafts: int) -> list[Request]:
    requests = []
    for _ in range(rng.randint(1, most)):
        count = rng.randint(0, drafts)
        rank = Rank.VERIFY if count else rng.choice((Rank.ADVANCE, Rank.OPTIONAL))
        requests.append(
            Request(
                rank=rank,
                reach=guesses(rng.random(), count),
                context=rng.choice((100, 500, 2000, 8000)),
                weight=rng.choice((0.25, 0.5, 1.0, 1.0, 2.0, 4.0)),
            )
        )
    return requests


@pytest.mark.parametrize(("most", "drafts"), [(10, 0), (7, 1), (5, 2), (3, 6)])
def test_it_is_within_two_per_cent_of_an_exhaustive_search(most: int, drafts: int) -> None:
    rng, compared = random.Random(most), 0
    for _ in range(100):
        requests = drawn(rng, most, drafts)
        n = len(requests)
        known = times(
            rng.choice((0.004, 0.022)),
            rng.choice((0.0, 0.00008, 0.001)),
            rng.choice((0.00003, 0.00024, 0.002)),
            rng.choice((0.0, 0.0, 1e-7, 1e-6, 4e-6)),
        )
        caps = Caps(
            tokens=rng.choice((2048, n + 2, 2 * n)),
            seconds=rng.choice((INF, 0.03, 0.05)),
            price=rng.choice((0.0, 0.0001, 0.001)),
        )
        best = exhaustive(requests, known, caps)
        if best is None:
            continue  # no batch at all keeps the caps
        found = worth(requests, Cosine().choose(Table.of(requests), known, caps), known, caps)
        assert found is not None
        assert found <= 1.02 * best
        compared += 1
    assert compared > 50


def test_ten_requests_with_guesses_beside_an_exhaustive_search() -> None:
    rng = random.Random(5)
    requests = [verify(rng.uniform(0.3, 0.95), 1, weight=rng.uniform(0.5, 2)) for _ in range(10)]
    caps = Caps(tokens=13)
    best = exhaustive(requests, A100, caps)
    assert best is not None
    found = worth(requests, Cosine().choose(Table.of(requests), A100, caps), A100, caps)
    assert found is not None
    assert found <= 1.02 * best


@pytest.mark.parametrize("name", POLICIES)
def test_caps_hold_for_a_crowd(name) -> None:
    rng = random.Random(2)
    requests = [verify(rng.random(), rng.randint(0, 16)) for _ in range(80)]
    caps = Caps(tokens=100, seconds=0.04, memory=90)
    choice = POLICIES[name]().choose(Table.of(requests), A100, caps)
    assert 0 < fed(requests, choice) <= 90
    assert seconds(requests, choice, A100) <= 0.04 + 1e-9


@pytest.mark.parametrize("name", POLICIES)
def test_something_is_done_whatever_the_caps(name) -> None:
    choice = POLICIES[name]().choose(Table.of([verify()]), A100, Caps(seconds=0.001))
    assert choice == {0: 0}
    assert POLICIES[name]().choose(Table.of([]), A100, Caps()) == {}


def test_nobody_is_left_out_without_need() -> None:
    requests = [verify(0.1, 3, weight=0.25), verify(0.95, 8, weight=4.0), verify(0.5, 0)]
    assert set(Cosine().choose(Table.of(requests), A100, Caps())) == {0, 1, 2}


def granted(alpha: float, rows: int) -> int:
    """Guesses of each of so many equal rows."""
    requests = [verify(alpha, 16) for _ in range(rows)]
    choice = Cosine().choose(Table.of(requests), A100, Caps())
    return round(sum(choice.values()) / rows)


def test_the_more_rows_the_fewer_guesses_pay() -> None:
    lengths = [granted(0.8, rows) for rows in (1, 8, 64, 256)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > 10  # an idle verifier takes nearly all
    assert lengths[-1] <= 2


def test_guesses_that_do_not_pay_are_not_taken_under_load() -> None:
    assert granted(0.2, 200) == 0
    requests = [verify(0.05, 8)] + [verify(0.9, 8) for _ in range(99)]
    choice = Cosine().choose(Table.of(requests), A100, Caps())
    assert choice[0] == 0
    assert choice[1] > 2


def test_equal_rows_get_what_goodput_says() -> None:
    """With one acceptance the best length is that of TurboSpec's goodput, by search."""
    for rows in (4, 16, 64):
        goodput = {
            k: rows * sum(0.8**i for i in range(k + 1)) / (0.022 + rows * (0.000324 + 0.00024 * k))
            for k in range(17)
        }
        assert granted(0.8, rows) == max(goodput, key=lambda k: goodput[k])


def test_late_ones_get_more_guesses() -> None:
    requests = [verify(0.8, 8, weight=w) for w in (0.5, 1.0, 2.0) for _ in range(30)]
    choice = Cosine().choose(Table.of(requests), A100, Caps())
    assert choice[0] < choice[30] < choice[60]


def test_lengths_are_grouped_where_a_long_row_stretches_all() -> None:
    stretching = times(0.004, 0.0, 0.0002, padded=2e-6)
    requests = [verify(0.8, 2, context=c) for c in (100,) * 10 + (8000,)]
    choice = Cosine().choose(Table.of(requests), stretching, Caps())
    assert set(choice) == set(range(10))
    alike = [verify(0.8, 2, context=200)] * 11
    assert len(Cosine().choose(Table.of(alike), stretching, Caps())) == 11
    assert (
        len(Cosine().choose(Table.of(requests), A100, Caps())) == 11
    )  # where length costs nothing


def test_prefill_takes_what_the_step_has_left() -> None:
    prompt = Request(rank=Rank.PREFILL, tokens=256, context=256)
    requests: list[Request] = [prompt, verify(0.9, 3), verify(0.9, 3), prompt]
    for name in POLICIES:
        choice: Choice = POLICIES[name]().choose(Table.of(requests), A100, Caps(tokens=300))
        assert {1, 2} <= set(choice)
        assert fed(requests, choice) <= 300
        assert choice[0] == 0  # the first prompt in full
        assert 256 + choice[3] == 300 - fed(requests, {i: choice[i] for i in (0, 1, 2)})


def test_fifo_serves_in_order_of_rank_and_arrival() -> None:
    requests = [
        Request(rank=Rank.OPTIONAL, since=0.0),
        Request(rank=Rank.ADVANCE, since=1.0),
        verify(0.9, 4, since=3.0),
        verify(0.9, 4, since=2.0),
    ]
    assert list(Fifo().choose(Table.of(requests), A100, Caps())) == [3, 2, 1, 0]
    assert Fifo().choose(Table.of(requests), A100, Caps(tokens=7)) == {3: 4, 2: 1}
