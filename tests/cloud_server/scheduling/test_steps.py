"""What is put around a policy: control, shares, weights, load."""

from __future__ import annotations

import random

import pytest

from outrider.cloud_server.scheduling.batch import ROUNDING, Caps, Rank, Request, seconds
from outrider.cloud_server.scheduling.control import LEAST, MOST, SpeculationControl
from outrider.cloud_server.scheduling.policies import SchedulerName
from outrider.cloud_server.scheduling.shares import CEILING, FLOOR, Shares
from outrider.cloud_server.scheduling.step_time import StepTime
from outrider.cloud_server.scheduling.steps import Ask, StepScheduler


def a100() -> StepTime:
    known = StepTime()
    known.fixed, known.row, known.each = 0.022, 0.000084, 0.00024
    return known


def ask(alpha: float = 0.8, count: int = 4, rank: Rank = Rank.VERIFY, **more) -> Ask:
    reach = tuple(alpha ** (i + 1) for i in range(count))
    return Ask(Request(rank=rank, reach=reach), **more)


def test_a_backlog_lowers_and_time_to_spare_raises_what_is_allowed() -> None:
    control = SpeculationControl()
    seen = []
    for _ in range(40):  # one step after another, each leaving work over
        control.stepped(backlog=True)
        seen.append(control.allowed)
    assert seen == sorted(seen, reverse=True)
    assert control.allowed == LEAST
    for _ in range(60):
        control.stepped(backlog=False)
        seen.append(control.allowed)
    assert seen[40:] == sorted(seen[40:])
    assert control.allowed == MOST


def test_the_longest_drafts_are_trimmed_first() -> None:
    control = SpeculationControl()
    control.allowed = 8
    assert control.trim([9, 2, 1]) == [5, 2, 1]
    assert sum(control.trim([9, 8, 1])) == 8
    assert control.trim([9, 8, 1])[2] == 1
    assert control.trim([3, 3, 2]) == [3, 3, 2]
    assert control.trim([]) == []


@pytest.mark.parametrize("seed", range(20))
def test_trimming_takes_exactly_what_is_too_much(seed: int) -> None:
    rng = random.Random(seed)
    lengths = [rng.randint(0, 12) for _ in range(rng.randint(1, 30))]
    control = SpeculationControl()
    control.allowed = rng.randint(0, sum(lengths))
    trimmed = control.trim(lengths)
    assert sum(trimmed) == control.allowed
    assert all(0 <= t <= length for t, length in zip(trimmed, lengths, strict=True))
    cut = [t for t, length in zip(trimmed, lengths, strict=True) if t < length]
    assert not cut or max(trimmed) <= max(cut) + 1  # nobody longer was spared


def test_who_used_more_than_a_share_weighs_less() -> None:
    shares = Shares()
    assert shares.factors(["a", "a"]) == {"a": 1.0}
    shares.charge({"a": 0.3, "b": 0.1}, 0.0)
    factors = shares.factors(["a", "b"])
    assert factors["a"] == pytest.approx(0.2 / 0.3, rel=0.01)
    assert factors["b"] == pytest.approx(0.2 / 0.1, rel=0.02)
    shares.charge({"a": 100.0}, 0.0)
    assert shares.factors(["a", "b"]) == {"a": pytest.approx(0.5, rel=0.01), "b": CEILING}
    assert shares.factors(["a", "b", "c", "d", "e"])["a"] == FLOOR
    shares.charge({}, 1000.0)  # long ago
    assert shares.factors(["a", "b"]) == {"a": pytest.approx(1.0), "b": pytest.approx(1.0)}


def test_a_key_of_twice_the_weight_may_use_twice_as_much() -> None:
    shares = Shares({"a": 2.0})
    shares.charge({"a": 0.2, "b": 0.1}, 0.0)
    assert shares.factors(["a", "b"]) == {"a": pytest.approx(1.0), "b": pytest.approx(1.0)}


def run(bad: bool, steps: int = 200) -> tuple[float, float]:
    """Rows that a neighbour gets a step, and tokens of target time charged to the other key.

    The other key has 40 sessions; with ``bad`` they send eight guesses each of which none is right,
    and of which nothing was learned yet. The step takes 60 of 80 rows.
    """
    scheduler, times, now = StepScheduler(caps=Caps(tokens=60)), a100(), 0.0
    good = charged = 0.0
    for _ in range(steps):
        other = ask(0.7, 8, owner="other") if bad else ask(0, 0, Rank.ADVANCE, owner="other")
        asks = [other] * 40 + [ask(0, 0, Rank.ADVANCE, owner="good")] * 40
        choice = scheduler.choose(asks, times)
        now += 0.04
        used = {
            owner: (len(rows), len(rows) + sum(choice[i] for i in rows), 0)
            for owner in ("other", "good")
            if (rows := [i for i in choice if asks[i].owner == owner])
        }
        scheduler.done(used, times, now)
        good += used.get("good", (0, 0, 0))[0] / steps
        charged += used.get("other", (0, 0, 0))[1] / steps
    return good, charged


def test_bad_guesses_are_paid_for_with_the_own_share() -> None:
    (alone, _), (beside, charged) = run(bad=False), run(bad=True)
    assert alone == pytest.approx(30, abs=1)  # half each
    assert beside > 0.95 * alone
    assert charged < 32


@pytest.mark.parametrize("name", ["fifo", "cosine"])
def test_edges_that_offer_too_much_still_have_a_step_filled(name: SchedulerName) -> None:
    scheduler, times = StepScheduler(name, caps=Caps(seconds=0.4)), a100()
    asks = [ask(0.98, 16)] * 200  # all together 0.84 s
    for _ in range(60):
        choice = scheduler.choose(asks, times)
        took = seconds([a.request for a in asks], choice, times)
        assert took <= 0.4 + ROUNDING
    assert len(choice) == len(asks)
    assert took > 0.3  # what is allowed stays about the cap, and does not fall to the least


def test_optional_rows_stop_under_load() -> None:
    scheduler, times = StepScheduler(caps=Caps(tokens=100)), a100()
    few = [ask()] * 4 + [ask(0, 0, Rank.OPTIONAL)] * 4
    assert len(scheduler.choose(few, times)) == 8
    many = [ask()] * 18 + [ask(0, 0, Rank.OPTIONAL)] * 4  # 94 of 100 tokens
    assert set(scheduler.choose(many, times)) == set(range(18))
    alone = [ask(0, 0, Rank.OPTIONAL)]
    assert set(StepScheduler(caps=Caps(tokens=1)).choose(alone, times)) == {0}


def test_the_load_is_how_right_a_guess_must_be() -> None:
    scheduler, times = StepScheduler(), a100()
    for _ in range(30):
        scheduler.choose([ask()], times)
    assert scheduler.load < 0.05
    for _ in range(30):
        scheduler.choose([ask()] * 200, times)
    assert 0.6 < scheduler.load < 0.9
    weak = [ask(scheduler.load - 0.1, 1)] * 200
    assert set(scheduler.choose(weak, times).values()) == {0}


def test_late_answers_weigh_more_than_early_ones() -> None:
    scheduler, times = StepScheduler(), a100()
    asks = [ask(0.8, 8, pace=(late, 100.0)) for late in (2.0, 3.0, 4.0) for _ in range(8)]
    choice = scheduler.choose(asks, times)
    assert choice[0] < choice[8] < choice[16]


@pytest.mark.parametrize("name", ["fifo", "cosine"])
@pytest.mark.parametrize("seed", range(60))
def test_one_request_alone_gets_what_the_long_way_gives(
    name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    times = StepTime()
    times.fixed, times.row = rng.uniform(0.0005, 0.05), rng.uniform(0, 0.001)
    times.each, times.padded = rng.choice([0.0, 1e-4, 1e-3, 2e-2]), rng.uniform(0, 1e-6)
    rank = rng.choice(list(Rank))
    count = 0 if rank is Rank.PREFILL else rng.randrange(0, 9)
    reach = tuple(sorted((rng.uniform(0.05, 0.99) for _ in range(count)), reverse=True))
    tokens = rng.randrange(1, 200) if rank is Rank.PREFILL else 1
    request = Request(rank=rank, tokens=tokens, reach=reach, context=rng.randrange(10, 500))
    quick, slow = StepScheduler(name), StepScheduler(name)
    found = quick.choose([Ask(request)], times)
    monkeypatch.setattr(StepScheduler, "_alone", lambda *_: None)
    assert found == slow.choose([Ask(request)], times)
    assert quick.load == pytest.approx(slow.load)


def test_an_answer_ahead_of_the_others_sits_out_but_not_for_long() -> None:
    scheduler, times = StepScheduler(caps=Caps(seconds=0.4)), a100()
    even, quick, slow = (10.0, 100.0), (8.0, 100.0), (12.0, 100.0)
    others = [ask(pace=even)] * 150
    special = [ask(pace=quick), ask(pace=quick, idle=0.4), ask(pace=slow)]
    reads = ask(0, 0, Rank.PREFILL, pace=quick)
    asks = [*others, *special, reads]
    scheduler.choose(asks, times)  # from now on it is known how long steps are
    choice = scheduler.choose(asks, times)
    assert set(range(len(asks))) - set(choice) == {150}
    ahead, _, late = scheduler.loads[150:153]
    assert late < scheduler.loads[0] < ahead <= 1


def test_nobody_sits_out_where_reading_the_weights_is_most_of_a_step() -> None:
    scheduler, times = StepScheduler(caps=Caps(seconds=0.4)), a100()
    asks = [ask(count=1, pace=(10.0, 100.0))] * 8 + [ask(count=1, pace=(5.0, 100.0))]
    for _ in range(3):
        choice = scheduler.choose(asks, times)
    assert len(choice) == len(asks)


@pytest.mark.parametrize("name", ["fifo", "cosine"])
@pytest.mark.parametrize("others", [0, 1, 3])
def test_a_target_slower_than_the_cap_still_judges_guesses(
    name: SchedulerName, others: int
) -> None:
    """One token alone may take longer than a step should: guesses beside it cost little more."""
    slow = StepTime()
    slow.fixed, slow.row, slow.each = 0.6, 0.001, 0.005
    scheduler = StepScheduler(name, Caps(seconds=0.4))
    for _ in range(5):
        choice = scheduler.choose([ask(0.9, 4) for _ in range(1 + others)], slow)
        assert set(choice) == set(range(1 + others))
        assert all(guesses == 4 for guesses in choice.values())


def test_a_session_weighs_against_others_of_its_key_only() -> None:
    scheduler, times = StepScheduler(), a100()

    def asks(heavy: float, light: float) -> list[Ask]:
        weights = [heavy] * 16 + [light] * 16
        mine = [
            Ask(Request(rank=Rank.VERIFY, reach=tuple(0.8**j for j in range(1, 9)), weight=w), "a")
            for w in weights
        ]
        return mine + [ask(0.8, 8, owner="b") for _ in range(32)]

    alike = scheduler.choose(asks(1.0, 1.0), times)
    assert alike[0] == alike[16] == alike[40]
    even = scheduler.loads[40]
    apart = StepScheduler().choose(asks(2.0, 1.0), times)
    assert apart[16] < apart[0]
    # Whatever a key says of its sessions: all of its own alike is as if it had said nothing.
    scheduler = StepScheduler()
    assert scheduler.choose(asks(1000.0, 1000.0), times) == alike
    assert scheduler.loads[40] == pytest.approx(even)
