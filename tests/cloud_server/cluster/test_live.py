"""What a gateway makes of live figures: rounds by replica, and where a session is better off."""

from __future__ import annotations

import pytest

from outrider.cloud_server.cluster.live import FULL, Figures, LivePlacer, problem
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.link import PassCurve

NEAR = Figures(way=0.004, wait=0.0, fixed=0.060, speed=1000.0, others=0)
FAR = Figures(way=0.180, wait=0.0, fixed=0.015, speed=1000.0, others=0)


@pytest.fixture
def one(town):
    """The relay of a session that is at work, and its gateway."""
    world = town(1, gateways=1)
    world.ask(world.edge(Sampling()), [1, 2, 3])
    gateway = world.houses[0].gateway
    while not any(r.at_work for r in gateway.relays.values()):
        world.step()
    (relay,) = gateway.relays.values()
    relay.session.riding = False
    return relay, gateway


def guessing(relay, count: int, objective: str = "balanced") -> None:
    relay.session.riding, relay.session.objective = True, objective
    relay.session.window.chain = lambda _limit: [0] * count


def test_a_pass_is_a_fixed_part_and_tokens(one) -> None:
    _, gateway = one
    replica = gateway.replicas["r0"]
    replica.machine.link.passes = PassCurve(((1, 0.016), (8, 0.023), (16, 0.031)))
    replica.page, replica.way = {"running": replica.working + 2}, 0.002
    found = Figures.of(replica)
    assert (found.way, found.others) == (0.002, 2)
    assert found.fixed == pytest.approx(0.015)
    assert found.speed == pytest.approx(1000.0)


def test_a_wait_counts_beyond_a_pass_and_while_somebody_is_there(one) -> None:
    _, gateway = one
    replica = gateway.replicas["r0"]
    replica.machine.link.passes = PassCurve(((1, 0.016), (8, 0.023)))
    replica.machine.link.queue = 0.1
    replica.page = {"running": replica.working + 1}
    assert Figures.of(replica).wait == pytest.approx(0.1 - 0.023)
    replica.relays.clear()
    replica.page = {"running": 0}
    assert Figures.of(replica).wait == 0.0
    replica.page = {"running": 4, "slots": 4}
    assert Figures.of(replica).wait >= FULL


@pytest.mark.parametrize(
    ("count", "objective", "rtt", "lost"),
    [
        (0, "balanced", 0.0, 0.0),
        (3, "balanced", 0.0, 3 * 0.015),
        (3, "balanced", 0.05, 3 * 0.015),
        (20, "balanced", 0.0, 0.180),
        (20, "balanced", 0.02, 0.200),
        (3, "cost", 0.02, 0.200),
        (0, "cost", 0.02, 0.200),
    ],
)
def test_what_is_lost_to_the_way(one, count: int, objective: str, rtt: float, lost: float) -> None:
    relay, _ = one
    guessing(relay, count, objective)
    relay.rtt = rtt
    assert FAR.lost(relay) == pytest.approx(lost)


def test_whoever_need_not_wait_goes_where_passes_are_short(one) -> None:
    relay, _ = one
    placer = LivePlacer("greedy")

    def best() -> int:
        return int(placer._associate(problem([relay], [NEAR, FAR], [0.0, 0.0]), placer._rng)[0])

    assert best() == 1
    guessing(relay, 4, "cost")
    assert best() == 0
    assert NEAR.round(5.0, shared=False) == pytest.approx(0.060 + 0.005)
    assert FAR.round(5.0, shared=True) == pytest.approx(0.015 + 0.0075 + 0.005)


def test_whoever_finds_a_slow_replica_busy_goes_to_a_quicker_one_that_is_farther(one) -> None:
    """Half a pass of 60 ms is more than what the way to the middle one takes more."""
    relay, _ = one
    guessing(relay, 4, "cost")
    middle = Figures(way=0.060, wait=0.0, fixed=0.015, speed=1000.0, others=0)
    placer = LivePlacer("greedy")
    for load, where in (([0.0, 0.0], 0), ([5.0, 0.0], 1), ([0.0, 5.0], 0), ([5.0, 5.0], 1)):
        chosen = placer._associate(problem([relay], [NEAR, middle], load), placer._rng)
        assert int(chosen[0]) == where
