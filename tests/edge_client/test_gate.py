"""The gate with invented numbers: it stops what loses, keeps what wins, and pays for its tries."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from outrider.edge_client.adaptive import Adaptive
from outrider.edge_client.gate import BUDGET, Gate, most_gained
from outrider.edge_client.policy import Observed
from outrider.protocol.link import LinkEstimator, PassCurve

ALONE = 20.0
DEAR = ((1.0, 0.049), (2.0, 0.096), (4.0, 0.178), (8.0, 0.425))
"""Passes of a 4-bit model of 1.5 billion weights on one core, as measured."""

FLAT = ((1.0, 1 / ALONE), (2.0, 1 / ALONE), (8.0, 1.1 / ALONE))


@dataclass
class World:
    """Answers that go on at one rate with riding and at another without.

    Riding commits ``run`` tokens at a time, give or take; alone it is one by one. ``reading`` is
    how long it takes until riding is what it is, after every change: meanwhile it is ``starting``
    times as fast as the cloud alone.
    """

    riding: float
    alone: float = ALONE
    run: int = 3
    reading: float = 0.0
    starting: float = 1.0
    noise: float = 0.1
    length: int = 200
    passes: tuple[tuple[float, float], ...] = FLAT
    objective: str = "balanced"
    policy: Adaptive = field(default_factory=Adaptive)
    now: float = 100.0
    answer: int = 0
    emitted: int = 0
    tokens: int = 0
    seconds: float = 0.0
    rode: float = 0.0
    changes: int = 0
    was: bool = False
    since: float = 0.0
    random: random.Random = field(default_factory=lambda: random.Random(3))

    def __post_init__(self) -> None:
        self.link = LinkEstimator(srtt=0.002, rttvar=0.0005, min_rtt=0.002, target=1 / ALONE)
        self.link.queue, self.link.passes = 0.0, PassCurve(self.passes)

    def step(self) -> None:
        """The policy plans, and some tokens come."""
        if self.emitted >= self.length or not self.answer:
            self.answer += 1
            self.emitted, self.now = 0, self.now + 30.0
        plan = self.policy.plan(
            Observed(
                session=0,
                answer=self.answer,
                now=self.now,
                link=self.link,
                objective=self.objective,
                acceptance=0.8,
                judged=33.0,
                draft_step=0.012,
                prefill_rate=500.0,
                behind=1,
                left=self.length - self.emitted,
                emitted=self.emitted,
            )
        )
        rides = plan.frame > 0
        if rides != self.was:
            self.was, self.since = rides, self.now
            self.changes += 1
        count = max(1, round(self.random.uniform(0.4, 1.6) * self.run)) if rides else 1
        rate = self.alone
        if rides:
            ready = self.now - self.since >= self.reading
            rate = self.riding if ready else self.alone * self.starting
        took = count / rate * self.random.uniform(1 - self.noise, 1 + self.noise)
        self.now += took
        self.emitted += count
        self.tokens, self.seconds = self.tokens + count, self.seconds + took
        self.rode += took * rides

    def live(self, tokens: int) -> float:
        """Tokens a second over so many more."""
        tokens_before, seconds_before = self.tokens, self.seconds
        while self.tokens - tokens_before < tokens:
            self.step()
        return (self.tokens - tokens_before) / (self.seconds - seconds_before)


@pytest.mark.parametrize("share", [0.2, 0.35, 0.5, 0.7, 0.85, 0.93])
def test_riding_that_loses_is_stopped(share: float) -> None:
    """Never slower than the cloud alone by more than five per cent, over a few answers."""
    world = World(riding=share * ALONE)
    assert world.live(1000) > 0.95 * ALONE
    assert world.live(5000) > 0.965 * ALONE


@pytest.mark.parametrize("share", [0.35, 0.6, 0.9])
def test_where_the_cloud_says_nothing_of_its_passes(share: float) -> None:
    """An early look tells what it gives alone; the first tokens may be slow."""
    world = World(riding=share * ALONE, passes=())
    assert world.live(1000) > 0.93 * ALONE
    assert world.live(3000) > 0.96 * ALONE


@pytest.mark.parametrize("share", [1.1, 1.3, 2.0, 4.0])
def test_riding_that_wins_goes_on(share: float) -> None:
    world = World(riding=share * ALONE)
    world.live(100)
    assert world.live(4000) > 0.97 * share * ALONE


@pytest.mark.parametrize("share", [0.97, 1.0, 1.03])
def test_where_it_makes_no_difference(share: float) -> None:
    world = World(riding=share * ALONE)
    assert world.live(3000) > 0.95 * ALONE


def test_an_attempt_that_has_to_read_first() -> None:
    """Both ends share a machine: while the drafter reads, the cloud is slow."""
    world = World(riding=0.4 * ALONE, reading=1.0, starting=0.5, passes=DEAR)
    assert world.live(1000) > 0.95 * ALONE


def test_the_time_for_attempts_is_bounded() -> None:
    world = World(riding=0.5 * ALONE)
    world.live(1000)
    world.rode, before = 0.0, world.seconds
    rate = world.live(20_000)
    assert rate > (1 - BUDGET) * ALONE
    assert 0 < world.rode < 0.05 * (world.seconds - before)


def test_riding_that_begins_to_lose() -> None:
    world = World(riding=1.5 * ALONE)
    world.live(600)
    world.riding = 0.5 * ALONE
    assert world.live(400) > 0.9 * ALONE
    assert world.live(2000) > 0.96 * ALONE


def test_riding_that_begins_to_win() -> None:
    """Found by an attempt, the first of which come soon: within some thousand tokens."""
    world = World(riding=0.6 * ALONE)
    world.live(400)
    world.riding = 1.6 * ALONE
    world.live(3000)
    assert world.live(2000) > 0.97 * world.riding


def test_a_machine_that_becomes_busy_slows_both_ways() -> None:
    """Riding is compared with what the cloud alone gives now, not with what it gave before."""
    world = World(riding=1.4 * ALONE)
    world.live(600)
    world.riding, world.alone = 0.6 * ALONE, 0.4 * ALONE
    world.live(200)
    assert world.live(2000) > 0.95 * world.riding


def test_a_cloud_that_becomes_quick_is_seen() -> None:
    """The drafter is the limit, and riding goes on as before: only a look tells."""
    world = World(riding=1.5 * ALONE)
    world.live(600)
    world.alone = 3 * ALONE
    world.live(768)
    assert world.live(3000) > 0.95 * world.alone


def test_passes_that_are_dear() -> None:
    """The cloud says so at the handshake: nothing is tried at first, and little later."""
    world = World(riding=0.5 * ALONE, passes=DEAR)
    assert world.live(150) > 0.98 * ALONE
    assert world.rode == 0
    assert "guesses cannot pay" in world.policy.reason


def test_dear_passes_may_pay_after_all() -> None:
    """What is measured counts for more than what was told."""
    world = World(riding=1.5 * ALONE, passes=DEAR)
    world.live(2000)
    assert world.live(2000) > 0.97 * world.riding


def test_passes_that_are_not() -> None:
    world = World(riding=1.5 * ALONE, passes=FLAT)
    assert world.live(60) > 1.3 * ALONE
    assert world.changes == 1


def test_cost_is_not_stopped_for_being_slow() -> None:
    """Fewer passes are what was asked for."""
    world = World(riding=0.5 * ALONE, objective="cost", passes=DEAR)
    world.live(1000)
    assert world.rode == world.seconds


def test_it_keeps_still() -> None:
    """No change of mind but for its looks and attempts, which become rare."""
    for share in (0.5, 1.5):
        world = World(riding=share * ALONE)
        world.live(1000)
        world.changes = 0
        world.live(10_000)
        assert world.changes <= 30


@pytest.mark.parametrize(
    ("passes", "alpha", "gain"),
    [
        (DEAR, 0.7, 1.0),
        (DEAR, 0.95, 1.0212),
        (((1, 1.0), (2, 1.0), (4, 1.0)), 0.5, 2.0),
        (((1, 1.0), (2, 2.0)), 0.5, 1.0),
        (((1, 1.0), (2, 1.8)), 0.9, 1.9 / 1.8),
    ],
)
def test_what_free_guesses_would_gain(passes, alpha: float, gain: float) -> None:
    assert most_gained(PassCurve(passes), alpha) == pytest.approx(gain, rel=1e-3)


def test_a_curve_of_passes() -> None:
    """Lines between what was told; nonsense of a peer is left out."""
    curve = PassCurve([(4, 0.2), (1, 0.05), (2, 0.1), (0, 1.0), (3, -1.0), (5, float("nan"))])
    assert [curve.of(n) for n in (1, 2, 3, 4)] == pytest.approx([0.05, 0.1, 0.15, 0.2])
    assert curve.of(8) == pytest.approx(0.4)
    assert PassCurve([(1, 0.2), (4, 0.1)]).of(8) == pytest.approx(0.2)
    assert not PassCurve([(1, 0.2)]).known


def test_it_begins_open() -> None:
    assert Gate().open
