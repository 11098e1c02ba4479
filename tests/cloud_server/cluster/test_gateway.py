"""A gateway over replicas that die, over gateways that die: the text stays the target's own."""

from __future__ import annotations

import pytest

from outrider.cloud_server.cluster.gateway import PATIENCE
from outrider.cloud_server.placement.association import POLICIES
from outrider.protocol.decoding.sampling import Collaboration, Combination, Sampling
from outrider.protocol.queue import AnswerQueue, Capacity

GREEDY, WARM = Sampling(), Sampling(temperature=1.0, seed=7)


def asked(world, count: int, *, ends: bool = False) -> None:
    """Half of the edges ask at temperature 0, half at 1 under the coupled rule. ``ends``: an answer
    may end with an end token."""
    for i in range(count):
        world.ask(world.edge(WARM if i % 2 else GREEDY), [1 + i, 2, 3 + i], ends=ends)


@pytest.mark.parametrize("policy", POLICIES)
def test_answers_through_a_gateway(town, policy: str) -> None:
    world = town(1, policy=policy)
    asked(world, 4, ends=True)
    world.run()
    world.right()


@pytest.mark.parametrize("seed", range(16))
def test_whoever_dies(town, seed: int) -> None:
    world = town(seed)
    asked(world, 4)
    for _ in range(12):
        for _ in range(world.dice.randrange(5, 60)):
            world.step()
        world.strike()
    world.run()
    world.right()


def some(world, steps: int) -> None:
    for _ in range(steps):
        world.step()


def until(world, done) -> None:
    for _ in range(2000):
        if done():
            return
        world.step()
    raise AssertionError("it never came to that")


def test_a_conversation_goes_on_after_its_replica_died(town) -> None:
    world = town(3)
    asked(world, 2)
    world.run()
    for edge in world.edges:
        world.ask(edge, [9, 8, 7], base=len(edge.session.ids) - 2)
    some(world, 40)
    for name in sorted(world.verifiers):
        world.kill_replica(name)
        some(world, 20)
    world.run()
    world.right()


@pytest.mark.parametrize("seed", range(4))
def test_a_replica_is_drained(town, seed: int) -> None:
    """What is there goes on elsewhere, and nothing new comes."""
    world = town(seed)
    asked(world, 5)
    some(world, 150)
    world.drain("r0")
    for house in world.houses:
        assert not house.replica("r0").relays
        assert house.replica("r0").state == "draining"
    some(world, 100)
    asked(world, 2)
    world.run()
    world.right()
    assert all(not house.replica("r0").relays for house in world.houses)


def test_a_cancelled_answer_leaves_its_replica(town) -> None:
    world = town(2, gateways=1)
    asked(world, 1)
    (edge,) = world.edges
    until(world, lambda: len(edge.text) > 3)
    (relay,) = world.houses[0].gateway.relays.values()
    assert relay.at_work
    edge.machine.cancel(edge.session)
    some(world, 200)
    assert not relay.at_work
    assert not any(s.running for v in world.verifiers.values() for s in v.table.sessions.values())


def test_an_edge_that_is_gone_costs_no_passes(town) -> None:
    """Until it comes back its answer rests, and then goes on."""
    world = town(4, gateways=1)
    asked(world, 1)
    (edge,) = world.edges
    until(world, lambda: len(edge.text) > 3)
    there = edge.wire.connection.sessions
    edge.machine.connection_lost(world.now)
    edge.wire.connection.connection_lost(world.now)
    edge.wire = None
    world.houses[0].gateway.look(there, world.now)
    some(world, 200)
    assert not any(s.running for v in world.verifiers.values() for s in v.table.sessions.values())
    world.connect(edge)
    world.run()
    world.right()


def test_log_probabilities_are_told_once_each(town) -> None:
    told = []
    for deaths in (0, 6):
        world = town(5)
        edge = world.edge(WARM)
        world.ask(edge, [1, 2, 3], logprobs=2)
        for _ in range(deaths):
            some(world, 40)
            world.kill_replica(world.dice.choice(sorted(world.verifiers)))
        world.run()
        world.right()
        assert len(edge.logprobs) == len(edge.text)
        told.append(edge.logprobs)
    assert told[0] == told[1]


def test_a_replica_that_serves_something_else_is_not_used(town) -> None:
    world = town(1, gateways=1)
    (house,) = world.houses
    world.verifiers["r1"].table.config.model = "another"
    house.dial(world.verifiers["r1"], world.now)
    some(world, 60)
    replica = house.replica("r1")
    assert (replica.ready, replica.state) == (False, "refused")
    assert replica.alien == "its model is 'another'; this cluster serves 'test'"
    asked(world, 4)
    world.run()
    world.right()
    assert not replica.relays


def test_no_replica_in_time(town) -> None:
    """An answer waits for one, and is refused by name when none has come."""
    world = town(1, gateways=1)
    (house,) = world.houses
    for name in sorted(world.verifiers):
        replica = house.replica(name)
        replica.machine.connection_lost(world.now)
        house.gateway.down(replica, world.now)
        del house.wires[name]
    asked(world, 1)
    (edge,) = world.edges
    some(world, 100)
    house.gateway.tick(world.now)
    assert not edge.refused
    world.now += PATIENCE
    house.gateway.tick(world.now)
    some(world, 100)
    assert [refused.code for refused in edge.refused] == ["no_replica"]
    assert edge.refused[0].retry_after


def test_full_replicas(town) -> None:
    """One that is busy is left alone for a while; if all are, the edge is told when to come back.
    An answer that was begun waits instead."""
    world = town(1, gateways=1, replicas=2)
    for verifier in world.verifiers.values():
        capacity = Capacity(answers=1, ids=200, waiting=0, n_ctx=200)
        verifier.table.queue = AnswerQueue(capacity)
    asked(world, 2)
    until(world, lambda: all(edge.text for edge in world.edges))
    assert sorted(r.working for r in world.houses[0].gateway.replicas.values()) == [1, 1]
    asked(world, 1)
    late = world.edges[-1]
    until(world, lambda: late.refused)
    assert [refused.code for refused in world.edges.pop().refused] == ["busy"]
    world.kill_replica("r0")
    world.verifiers["r0"].table.queue = AnswerQueue(capacity)
    world.run()
    world.right()


def test_collaborative_decoding_is_refused(town) -> None:
    world = town(1, gateways=1)
    mixed = Collaboration(kind=Combination.ENSEMBLE, weight=0.5)
    edge = world.edge(Sampling(temperature=1.0, seed=1, collaborate=mixed))
    world.ask(edge, [1, 2, 3])
    until(world, lambda: edge.refused)
    assert edge.refused[0].code == "unsupported"


@pytest.mark.parametrize("seed", range(6))
def test_given_back_when_its_end_token_filled_the_context(town, seed: int) -> None:
    """Whoever says how it ended must know the end tokens: the replica, never the gateway."""
    world = town(seed)
    world.ask(world.edge(GREEDY), world.ends_with_the_context(), ends=True)
    (edge,) = world.edges
    until(world, lambda: edge.session.ids[-1:] == [0])
    assert edge.ended is None
    for name in sorted(world.verifiers):
        world.kill_replica(name)
    world.kill_gateway(world.houses.index(edge.house))
    world.run()
    world.right()
    assert edge.ended.reason == "stop"
