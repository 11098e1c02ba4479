"""Shares in a gateway: weights at the replica, caps at the edge, and the text as ever."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from outrider.cloud_server.cluster.shares import SHARES, LiveShares
from outrider.cloud_server.cluster.status import facts
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.pacing import FRAME_BYTES

GREEDY = Sampling()


def busy(town, *, edges: int = 4, **more):
    """Answers under way at one replica, one gateway; ticks come with the steps."""
    world = town(3, replicas=1, gateways=1, **more)
    for i in range(edges):
        world.ask(world.edge(GREEDY), [1 + i, 2, 3])
    for _ in range(400):
        world.step()
        world.houses[0].gateway.tick(world.now)
    return world


@pytest.mark.parametrize("seed", range(12))
def test_whoever_dies_under_shares(town, seed: int) -> None:
    world = town(seed, shares=SHARES[seed % 2], band=(150.0, 2000.0)[seed // 2 % 2])
    for i in range(4):
        world.ask(world.edge(Sampling(temperature=float(i % 2), seed=5)), [1 + i, 2, 3 + i])
    for _ in range(10):
        for _ in range(world.dice.randrange(5, 60)):
            world.step()
            world.houses[0].gateway.tick(world.now)
        world.strike()
    world.run()
    world.right()


def test_equal_shares_weigh_all_the_same_and_split_the_band(town) -> None:
    world = busy(town, shares="equal", band=400.0)
    relays = [r for r in world.houses[0].gateway.relays.values() if r.at_work and r.wanted]
    sessions = list(world.verifiers["r0"].table.sessions.values())
    assert len(relays) > 1
    assert {s.weight for s in sessions} == {1.0}
    for relay in relays:
        assert relay.session.cap == pytest.approx(400.0 / len(relays), rel=0.2)
    told = {e.session.pacer.cap for e in world.edges} & {r.session.cap for r in relays}
    assert told  # by a verdict since


def test_optimised_shares_follow_what_is_asked_for(town) -> None:
    world = busy(town, shares="optimised", band=400.0)
    relays = [r for r in world.houses[0].gateway.relays.values() if r.at_work and r.wanted]
    assert len(relays) > 1
    told = {r.onward.key: r for r in relays}
    wire = world.houses[0].wires["r0"]
    wire.pull(world.now)
    while wire.up:  # a weight may be under way
        wire.connection.receive(wire.up.popleft(), world.now)
    for session in world.verifiers["r0"].table.sessions.values():
        if (relay := told.get(session.key)) is not None:
            assert session.weight == pytest.approx(relay.weight)
    by_work = sorted(relays, key=lambda r: r.work)
    assert by_work[0].weight <= by_work[-1].weight * 1.06  # small changes are not told
    caps = sum(r.session.cap for r in relays)
    assert caps <= 400.0 * 1.3  # a code is within 4.5%, and a fifth is not told


def test_without_a_band_nobody_is_capped(town) -> None:
    world = busy(town, shares="optimised")
    assert all(math.isinf(edge.session.pacer.cap) for edge in world.edges)


def test_the_link_to_a_replica_is_the_band_where_it_was_the_limit(town) -> None:
    world = busy(town, shares="equal", edges=2)
    gateway = world.houses[0].gateway
    gateway.replicas["r0"].machine.link.uploaded(500, 1.0, backlogged=True)
    world.now += 2.0
    gateway.tick(world.now)
    relays = [r for r in gateway.relays.values() if r.at_work and r.wanted]
    assert relays
    assert sum(r.session.cap for r in relays) == pytest.approx(500.0, rel=0.05)


def test_whose_answer_is_over_keeps_no_cap_and_the_others_get_more(town) -> None:
    world = busy(town, shares="equal", band=400.0)
    gateway = world.houses[0].gateway
    working = [e for e in world.edges if e.ended is None]
    assert len(working) > 1
    first = working[0]
    first.machine.cancel(first.session)
    for _ in range(60):
        world.step()
        gateway.tick(world.now)
    ended = gateway.table.sessions[first.session.key]
    assert math.isinf(ended.cap)


def test_the_status_tells_shares(town) -> None:
    world = busy(town, shares="equal", band=400.0)
    placed = facts(world.houses[0].gateway, 1.0)["placement"]
    assert placed
    for place in placed:
        assert place["weight"] == 1.0
        assert place["draft_bytes_per_second"] == pytest.approx(400.0 / len(placed), rel=0.2)
    uncapped = facts(busy(town).houses[0].gateway, 1.0)["placement"]
    assert {place["draft_bytes_per_second"] for place in uncapped} == {None}


class Guesser:
    """A relay whose edge makes a guess every ``quick`` seconds, and sends eight as a cap lets it.

    ``seen``: what it was seen to take for one so far.
    """

    def __init__(self, quick: float, seen: float, replica: SimpleNamespace) -> None:
        self.quick, self.replica = quick, replica
        self.session = SimpleNamespace(node_gap=seen, riding=True, cap=math.inf)
        self.at_work = self.wanted = True
        self.work, self.asks, self.onward = 9.0, 9.0, None

    def go_on(self) -> None:
        gap = max(self.quick, (FRAME_BYTES + 8 * 2.5) / self.session.cap / 8)
        for _ in range(8):
            self.session.node_gap += (gap - self.session.node_gap) / 8


@pytest.mark.parametrize(
    ("edges", "caps"),
    [
        ([(0.02, 0.02), (0.02, 0.5)], [125.0, 125.0]),  # one had a pause
        ([(0.02, 0.02), (0.5, 0.5)], [234.0, 16.0]),  # one is slow
        ([(0.02, 0.02), (0.02, 0.02), (0.02, 0.5)], [83.0, 83.0, 83.0]),
    ],
)
def test_a_small_cap_is_no_proof_of_a_slow_edge(
    edges: list[tuple[float, float]], caps: list[float]
) -> None:
    link = SimpleNamespace(goodput_up=None)
    replica = SimpleNamespace(name="r0", machine=SimpleNamespace(link=link))
    relays = [Guesser(quick, seen, replica) for quick, seen in edges]
    shares = LiveShares("optimised", 2.5, band=250.0)
    for second in range(20):
        shares.look(relays, float(second))  # type: ignore[arg-type]
        for relay in relays:
            relay.go_on()
    assert [r.session.cap for r in relays] == pytest.approx(caps, rel=0.2)
