"""Policies with invented numbers: what they choose, how quickly they move, that they keep still."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from outrider.edge_client.adaptive import LONGEST, RETRY, TRIAL, Adaptive
from outrider.edge_client.engine import _floor
from outrider.edge_client.policy import MAX_DRAFT, Fixed, Observed, Plan, Policy, Steady
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.edge_session import FORGETTING
from outrider.protocol.errors import SettingError
from outrider.protocol.link import LinkEstimator

MS = 1e-3
ALL = ("latency", "balanced", "cost")


def seen(
    *,
    rtt: float | None = 15 * MS,
    target: float | None = 30 * MS,
    step: float | None = 12 * MS,
    acceptance: float | None = 0.8,
    judged: float = 33.0,
    objective: str = "balanced",
    **more,
) -> Observed:
    """A Jetson-class edge on a decent link in mid answer, unless told otherwise."""
    link = more.pop("link", None)
    if link is None:
        link = LinkEstimator(srtt=rtt, rttvar=None if rtt is None else rtt / 4, min_rtt=rtt)
        link.target, link.queue = target, None if target is None else 0.0
    usual = {"session": 0, "answer": 1, "now": 0.0, "prefill_rate": 500.0, "behind": 1}
    usual |= {"left": 400, "emitted": 100}
    return Observed(
        link=link,
        objective=objective,
        acceptance=acceptance,
        judged=judged,
        draft_step=step,
        **(usual | more),
    )


def settled(policy: Policy, observed: Observed, rounds: int = 16) -> Plan:
    """What the policy comes to while nothing changes."""
    for _ in range(rounds):
        plan = policy.plan(observed)
    return plan


@dataclass
class Life:
    """An answer without end: a verdict a round, estimators as the product has them."""

    policy: Policy
    rtt: float = 2 * MS
    target: float = 30 * MS
    step: float = 12 * MS
    alpha: float = 0.85
    objective: str = "balanced"
    session: int = 0
    link: LinkEstimator = field(default_factory=LinkEstimator)
    plans: list[Plan] = field(default_factory=list)
    emitted: int = 1
    right: float = 0.0
    judged: float = 0.0
    random: random.Random = field(default_factory=lambda: random.Random(7))

    def round(self) -> Plan:
        """The policy plans; what it sends is judged and timed; what it does not, is not."""
        plan = self.policy.plan(
            seen(
                link=self.link,
                step=self.step,
                acceptance=self.right / self.judged if self.judged else None,
                judged=self.judged,
                objective=self.objective,
                emitted=self.emitted,
                session=self.session,
            )
        )
        self.plans.append(plan)
        self.emitted += 1
        if not plan.frame:
            return plan
        jitter = self.random.uniform(0.9, 1.1)
        self.link.round_trip(self.rtt * jitter + self.target, self.target)
        self.link.served(0.0, self.target * self.random.uniform(0.95, 1.05), 0.0)
        for _ in range(plan.frame):
            hit = self.random.random() < self.alpha
            self.right, self.judged = FORGETTING * self.right + hit, FORGETTING * self.judged + 1
            self.emitted += hit
            if not hit:
                break
        return plan

    def live(self, rounds: int) -> list[Plan]:
        return [self.round() for _ in range(rounds)]

    def until(self, reached: Callable[[Plan], bool], limit: int) -> int:
        """Rounds until a plan is as wanted."""
        for count in range(1, limit + 1):
            if reached(self.round()):
                return count
        raise AssertionError(f"not within {limit} rounds: {self.plans[-5:]}")


def changes(plans: list[Plan]) -> int:
    """How often drafting was switched on or off, or the draft length changed."""
    return sum(a.frame != b.frame for a, b in itertools.pairwise(plans))


def switches(plans: list[Plan]) -> int:
    """How often drafting was switched on or off."""
    return sum(bool(a.frame) != bool(b.frame) for a, b in itertools.pairwise(plans))


# --- plans that never change --------------------------------------------------------------------


def test_fixed_is_lockstep() -> None:
    assert Fixed(5, 0.3).plan(seen()) == Plan(5, 5, 0.3)
    assert Fixed(5).about == "5 tokens a frame"
    assert Steady(Plan(1, 8)).about == "1 token a frame, up to 8 ahead"


@pytest.mark.parametrize(("length", "floor"), [(-1, 0.0), (MAX_DRAFT + 1, 0.0), (4, 1.5)])
def test_what_cannot_be_fixed(length: int, floor: float) -> None:
    with pytest.raises(SettingError):
        Fixed(length, floor)


# --- what is chosen -----------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ALL)
def test_unknown_values(objective: str) -> None:
    """Whatever is not known yet: drafting is tried, for nobody learns by not trying."""
    unknown = {"rtt": None, "target": None, "step": None, "acceptance": None, "prefill_rate": None}
    for count in range(len(unknown) + 1):
        for names in itertools.combinations(unknown, count):
            more = dict.fromkeys(names) | ({"judged": 0.0} if "acceptance" in names else {})
            policy = Adaptive()
            plan = policy.plan(seen(objective=objective, **more))
            assert 1 <= plan.frame <= plan.window <= 2 * LONGEST, names
            assert policy.reason


def test_nothing_known_at_all() -> None:
    plan = Adaptive().plan(
        seen(rtt=None, target=None, step=None, acceptance=None, judged=0.0, emitted=0, left=0)
    )
    assert plan.frame > 0


@pytest.mark.parametrize("objective", ["latency", "balanced"])
@pytest.mark.parametrize(
    "figures",
    [
        {"rtt": 600 * MS, "acceptance": 0.7},
        {"step": 31 * MS},
        {"rtt": 60 * MS, "step": 25 * MS, "acceptance": 0.6},
        {"rtt": 60 * MS, "acceptance": 0.05},
    ],
    ids=["geo", "slow drafter", "slow drafter, long link", "bad drafter"],
)
def test_off_where_it_cannot_pay(objective: str, figures) -> None:
    policy = Adaptive()
    observed = seen(objective=objective, **figures)
    assert settled(policy, observed) == Plan(0, 0)
    assert "round trip" in policy.reason


@pytest.mark.parametrize("objective", ["latency", "balanced"])
@pytest.mark.parametrize("rtt", [0.3, 2, 8, 30, 60])
def test_streaming_where_it_pays(objective: str, rtt: float) -> None:
    plan = settled(Adaptive(), seen(objective=objective, rtt=rtt * MS))
    assert 1 <= plan.frame < plan.window <= 2 * LONGEST


def test_the_window_covers_the_trip() -> None:
    near, far = (settled(Adaptive(), seen(rtt=r * MS, acceptance=0.95)).window for r in (2, 60))
    assert near < far
    assert far * 12 >= 60


def test_guesses_share_a_message_where_that_costs_nothing() -> None:
    """Those that will have been overtaken, and those that the cloud has in store already."""
    for rtt, counts in ((2, [1] * 8), (60, [3, 3, 1, 1, 2, 2, 2, 2])):
        plans = [settled(Adaptive(), seen(rtt=rtt * MS, ahead=ahead)) for ahead in range(8)]
        assert [plan.gather for plan in plans] == counts
    slow = settled(Adaptive(), seen(rtt=60 * MS, step=18 * MS, acceptance=0.95, ahead=7))
    assert slow.gather == 1  # the next guess comes too late for the same pass
    begun = settled(Adaptive(), seen(rtt=60 * MS, emitted=0))
    assert begun.gather == 1  # both ends begin at once


def test_a_prompt_that_is_read_too_late() -> None:
    """Two thousand ids at forty a second, for an answer that is over in three."""
    policy = Adaptive()
    late = seen(prefill_rate=40.0, behind=2000, left=100)
    assert policy.plan(late) == Plan(0, 0)
    assert "ended" in policy.reason
    assert policy.plan(replace(late, prefill_rate=5000.0)).frame > 0
    assert Adaptive().plan(replace(late, prefill_rate=1 / 0.03)) == Plan(0, 0)  # never catches up


# --- lockstep, for the objective ``cost`` -------------------------------------------------------


def test_cost_is_lockstep_and_longer_where_the_link_is() -> None:
    lengths = []
    for rtt in (0.3, 30, 100, 300):
        plan = settled(Adaptive(), seen(objective="cost", rtt=rtt * MS))
        assert plan.frame == plan.window
        lengths.append(plan.frame)
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1] <= LONGEST
    assert settled(Adaptive(3), seen(objective="cost", rtt=0.3)).frame == 3


def test_cost_gives_up_little_speed_for_fewer_passes() -> None:
    """At most a tenth of the best lockstep's speed, at no more passes than that."""
    a, step, target, rtt = 0.8, 12 * MS, 30 * MS, 15 * MS
    rates = {g: (1 - a ** (g + 1)) / (1 - a) / (g * step + rtt + target) for g in range(1, 17)}
    best = max(rates, key=lambda g: rates[g])
    chosen = settled(Adaptive(), seen(objective="cost")).frame
    assert chosen >= best
    assert rates[chosen] >= 0.9 * rates[best]
    passes = (1 - a) / (1 - a ** (chosen + 1))
    assert passes <= 0.35


def test_cost_stops_where_it_saves_nothing() -> None:
    """A drafter that is hardly ever right costs the user a round trip and saves no pass."""
    assert settled(Adaptive(), seen(objective="cost", acceptance=0.02)) == Plan(0, 0)
    assert settled(Adaptive(), seen(objective="cost", acceptance=0.4)).frame > 0


def test_lengths_move_a_step_at_a_time() -> None:
    policy = Adaptive()
    settled(policy, seen(objective="cost", rtt=0.3 * MS))
    far = seen(objective="cost", rtt=300 * MS)
    frames = [policy.plan(far).frame for _ in range(16)]
    steps = [b - a for a, b in itertools.pairwise(frames)]
    assert all(0 <= step <= 2 for step in steps)
    assert frames[-1] == frames[-8] > frames[0]


# --- stopping, and trying again -----------------------------------------------------------------


def test_tries_again_after_a_while() -> None:
    policy = Adaptive()
    geo = seen(rtt=600 * MS, acceptance=0.6)
    on = [bool(policy.plan(replace(geo, emitted=100 + i)).frame) for i in range(400)]
    assert not any(on[:RETRY])
    assert all(on[RETRY : RETRY + TRIAL])
    assert "trying again" not in policy.reason or on[-1]
    runs = [len(list(run)) for value, run in itertools.groupby(on) if value]
    assert len(runs) >= 2
    assert sum(on) < len(on) / 2


def test_each_session_has_its_own_memory() -> None:
    policy = Adaptive()
    bad, good = seen(rtt=600 * MS, acceptance=0.6, session=1), seen(session=2)
    for i in range(RETRY):
        assert policy.plan(replace(bad, emitted=100 + i)) == Plan(0, 0)
        assert policy.plan(replace(good, emitted=3 * i)).frame > 0
    costly = [seen(objective="cost", rtt=r * MS, session=s) for r, s in ((0.3, 3), (300, 4))]
    for _ in range(16):
        short, long = (policy.plan(observed).frame for observed in costly)
    assert short == settled(Adaptive(), costly[0]).frame
    assert long == settled(Adaptive(), costly[1]).frame
    assert short < long


# --- a world that changes -----------------------------------------------------------------------


@pytest.mark.parametrize("objective", ALL)
def test_it_keeps_still_where_nothing_changes(objective: str) -> None:
    """Noise of a tenth in every figure, and luck in what is accepted."""
    life = Life(Adaptive(), rtt=15 * MS, objective=objective)
    life.live(60)
    plans = life.live(400)
    assert all(plan.frame for plan in plans)
    assert changes(plans) <= 40 if objective == "cost" else changes(plans) == 0


def test_a_link_that_becomes_long() -> None:
    """From lan to geo in mid answer: off within 20 rounds, and it stays off but for its trials."""
    life = Life(Adaptive(), rtt=2 * MS, alpha=0.7)
    assert all(plan.frame for plan in life.live(50))
    life.rtt = 600 * MS
    life.until(lambda plan: not plan.frame, 20)
    plans = life.live(300)
    trials = 300 / (RETRY + TRIAL)
    assert changes(plans) <= 2 * trials + 2
    assert sum(bool(plan.frame) for plan in plans) < 0.5 * len(plans)


def test_a_link_that_becomes_short_again() -> None:
    """What it learns in its trials brings it back: within four of them."""
    life = Life(Adaptive(), rtt=600 * MS, alpha=0.7)
    life.until(lambda plan: not plan.frame, 40)
    life.rtt = 2 * MS
    life.live(4 * (RETRY + TRIAL + 40))
    assert all(plan.frame for plan in life.live(100))


@pytest.mark.parametrize("rtt", [15, 60])
def test_a_drafter_that_becomes_bad(rtt: float) -> None:
    """From nearly always right to never: within 60 rounds off, or hardly ahead at all."""
    life = Life(Adaptive(), rtt=rtt * MS, alpha=0.92)
    before = life.live(100)[-1]
    assert before.window > 4
    life.alpha = 0.0
    life.until(lambda plan: plan.window <= 4, 60)
    plans = life.live(300)
    assert changes(plans) <= 2 * 300 / (RETRY + TRIAL) + 2
    assert max(plan.window for plan in plans) <= 4


def test_a_drafter_that_becomes_bad_for_cost() -> None:
    life = Life(Adaptive(), rtt=15 * MS, alpha=0.92, objective="cost")
    assert life.live(100)[-1].frame >= 6
    life.alpha = 0.0
    life.until(lambda plan: plan.frame <= 1, 60)
    plans = life.live(300)
    assert max(plan.frame for plan in plans) <= 4
    assert changes(plans) <= 2 * 300 / (RETRY + TRIAL) + 8


def test_a_drafter_that_becomes_good_again() -> None:
    life = Life(Adaptive(), rtt=30 * MS, alpha=0.0)
    life.live(200)
    life.alpha = 0.9
    life.live(4 * (RETRY + TRIAL))
    plans = life.live(100)
    assert all(plan.frame for plan in plans)
    assert plans[-1].window > 4


def test_a_verifier_that_becomes_busy() -> None:
    """Passes of 300 ms: there is more time to guess ahead, and a frame may take longer to fill."""
    life = Life(Adaptive(), rtt=15 * MS, target=30 * MS, alpha=0.9, step=6 * MS)
    assert life.live(60)[-1].frame == 1
    life.target = 300 * MS
    life.until(lambda plan: plan.frame > 1, 20)
    life.live(40)
    plans = life.live(200)
    assert all(plan.frame > 1 for plan in plans)
    assert switches(plans) == 0


def test_a_busy_cloud_is_sent_sure_guesses_only() -> None:
    link = LinkEstimator(srtt=15 * MS, rttvar=4 * MS, min_rtt=15 * MS)
    link.target, link.queue = 30 * MS, 0.0
    policy = Adaptive(gated=False)
    assert policy.plan(seen(link=link)).chance == 0
    link.load = 0.5
    assert policy.plan(seen(link=link)).chance == 0.5
    link.load = 1.0
    plan = policy.plan(seen(link=link, acceptance=0.97))
    assert plan.frame  # or it would not hear of the load again
    assert plan.chance == 0.9
    link.load = 0.8
    assert not policy.plan(seen(link=link, acceptance=0.4)).frame


def test_how_sure_a_drafter_must_be_depends_on_the_rule() -> None:
    plan = Plan(1, 4, 0.1, chance=0.7)
    assert _floor(Sampling(), plan) == pytest.approx(0.7)
    assert _floor(Sampling(temperature=1.0), plan) == pytest.approx(0.5)
    assert _floor(Sampling(temperature=1.0), Plan(1, 4, 0.1, chance=0.3)) == 0.1
