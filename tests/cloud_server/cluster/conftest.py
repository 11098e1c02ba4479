"""Edges, gateways and replicas in one process: machines and engines are real, the target is
scripted, the bytes between them move one message at a time as a seed wants, and anybody may die."""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass, field

import pytest

from outrider.cloud_server.cluster.gateway import Gateway
from outrider.cloud_server.cluster.live import LivePlacer
from outrider.cloud_server.cluster.replica import Replica
from outrider.cloud_server.cluster.shares import LiveShares, ShareName
from outrider.cloud_server.engine import CloudEngine, Forward
from outrider.cloud_server.planner import EngineSettings
from outrider.cloud_server.replay import plain
from outrider.cloud_server.targets.scripted import ScriptedTarget
from outrider.protocol.cloud import CloudConnection
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.edge import EdgeMachine
from outrider.protocol.edge_session import EdgeSession, Phase
from outrider.protocol.events import AnswerEnded, AnswerRefused, Committed, Event
from outrider.protocol.logprobs import TokenLogprob
from outrider.protocol.packing import id_bits
from outrider.protocol.request import Request
from outrider.protocol.table import SessionTable
from outrider.simulator.pair import config, letters

SIZE = 26
SLOTS = 3
CONTEXT = 200


def letter(token: int) -> bytes:
    return bytes([ord("a") + token])


def target(slots: int = SLOTS) -> ScriptedTarget:
    """Every replica's; a ``plain`` one says what is right."""
    return ScriptedTarget(vocabulary=SIZE, n_ctx=CONTEXT, slots=slots, seed=3, order=2, peak=3.0)


def ended(out: list[int]) -> bool:
    return out[-1] == 0


def endless(out: list[int]) -> bool:
    return False


class Wire:
    """Bytes under way between a dialling machine and the connection that it dialled."""

    def __init__(self, machine: EdgeMachine, connection: CloudConnection) -> None:
        self.machine, self.connection = machine, connection
        self.up: deque[bytes] = deque()
        self.down: deque[bytes] = deque()

    def pull(self, now: float) -> None:
        while (data := self.machine.next_message(now)) is not None:
            self.up.append(data)
        while (data := self.connection.next_message(now)) is not None:
            self.down.append(data)


class Verifier:
    """A replica: a table, an engine, a target, and perhaps a pass under way."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.table = SessionTable(config(letters(SIZE)))
        self.table.config.n_ctx = CONTEXT
        self.target = target()
        settings = EngineSettings(lookup=2)
        self.engine = CloudEngine(self.table, self.target.info, frozenset({0}), letter, settings)
        self.work: Forward | None = None

    def step(self, now: float) -> None:
        """Begin a pass, or end the one under way."""
        if self.work is None:
            work = self.engine.next(now)
            self.work = work if isinstance(work, Forward) else None
        else:
            work, self.work = self.work, None
            self.engine.done(work, work.run(self.target), now)


class House:
    """A gateway process: its wires to replicas are its own."""

    def __init__(self, name: str, town: Town) -> None:
        self.name = name
        cloud = config(letters(SIZE))
        cloud.n_ctx, cloud.collaborates = 1, False
        self.wires: dict[str, Wire] = {}
        self.gateway = Gateway(
            SessionTable(cloud),
            LivePlacer(town.policy, seed=town.dice.randrange(99)),
            LiveShares(town.shares, id_bits(SIZE) / 8, town.band),
            town.dice.randbytes,
            stir=lambda _replica: None,
            tell=lambda _connection: None,
        )

    def dial(self, verifier: Verifier, now: float) -> None:
        replica = self.gateway.add(verifier.name)
        replica.machine.connect(now)
        self.wires[verifier.name] = Wire(
            replica.machine, CloudConnection(verifier.table, self.name, now)
        )

    def replica(self, name: str) -> Replica:
        return self.gateway.replicas[name]


@dataclass
class Edge:
    """One edge with one session, whose guesses are right now and then."""

    machine: EdgeMachine
    session: EdgeSession
    sampling: Sampling
    house: House | None = None
    wire: Wire | None = None
    ends: bool = False
    prompt: list[int] = field(default_factory=list)
    text: list[int] = field(default_factory=list)
    ended: AnswerEnded | None = None
    refused: list[AnswerRefused] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)

    def take(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Committed):
                assert self.ended is None
                self.text.extend(event.tokens)
                self.logprobs.extend(event.logprobs)
            elif isinstance(event, AnswerEnded):
                assert self.ended is None, "an answer ended twice"
                self.ended = event
            elif isinstance(event, AnswerRefused):
                self.refused.append(event)


class Town:
    """``settle`` moves everything until nothing happens; ``step`` does one thing at random."""

    def __init__(
        self,
        seed: int,
        *,
        replicas: int = 3,
        gateways: int = 2,
        policy: str = "tma-moves",
        shares: ShareName = "equal",
        band: float = math.inf,
    ) -> None:
        self.dice = random.Random(seed)
        self.policy, self.shares, self.band = policy, shares, band
        self.now = 0.0
        self.made = 0
        self.verifiers = {f"r{i}": Verifier(f"r{i}") for i in range(replicas)}
        self.houses = [House(f"g{i}", self) for i in range(gateways)]
        self.edges: list[Edge] = []
        for house in self.houses:
            for verifier in self.verifiers.values():
                house.dial(verifier, 0.0)
        while not all(h.gateway.known for h in self.houses):
            self.step()

    # --- what is right ---------------------------------------------------------------------

    def right(self, tokens: int = 40) -> None:
        """Every edge has what the target alone says."""
        for edge in self.edges:
            assert not edge.refused, edge.refused[0].message
            assert edge.ended is not None
            stop = ended if edge.ends else endless
            said = plain(target(1), edge.prompt, edge.sampling, tokens, stop)
            assert edge.text == said
            assert edge.session.ids == [*edge.prompt, *said]
            assert edge.ended.tokens == len(said)

    def ends_with_the_context(self) -> list[int]:
        """A prompt whose greedy answer ends with an end token that is the last id that fits."""
        for size in range(CONTEXT - 1, CONTEXT - 40, -1):
            for first in range(1, SIZE):
                said = plain(target(1), [first] * size, Sampling(), 40, ended)
                if ended(said) and size + len(said) == CONTEXT:
                    return [first] * size
        raise AssertionError("there is none")

    # --- asking -----------------------------------------------------------------------------

    def edge(self, sampling: Sampling) -> Edge:
        machine = EdgeMachine(letters(SIZE), "edge", self.dice.randbytes)
        edge = Edge(machine, machine.session(), sampling)
        self.edges.append(edge)
        self.connect(edge)
        return edge

    def ask(
        self,
        edge: Edge,
        ids: list[int],
        tokens: int = 40,
        base: int = 0,
        logprobs: int | None = None,
        *,
        ends: bool = False,
    ) -> None:
        edge.ends = ends
        edge.text, edge.ended, edge.logprobs = [], None, []
        edge.prompt = [*edge.session.ids[:base], *ids]
        request = Request(
            ids=tuple(ids),
            base=base,
            max_tokens=tokens,
            sampling=edge.sampling,
            logprobs=logprobs,
            ignore_eos=not ends,
        )
        edge.machine.open(edge.session, request)

    def connect(self, edge: Edge) -> None:
        edge.house = self.dice.choice(self.houses)
        edge.machine.connect(self.now)
        edge.wire = Wire(edge.machine, CloudConnection(edge.house.gateway.table, "", self.now))

    # --- trouble ----------------------------------------------------------------------------

    def kill_replica(self, name: str) -> None:
        """It dies with all that it knew, and starts again at once, empty."""
        fresh = self.verifiers[name] = Verifier(name)
        for house in self.houses:
            replica = house.replica(name)
            replica.machine.connection_lost(self.now)
            house.gateway.down(replica, self.now)
            house.dial(fresh, self.now)

    def kill_gateway(self, index: int) -> None:
        """It dies with its histories; another one takes its place, and its edges dial again."""
        dead = self.houses[index]
        for wire in dead.wires.values():
            wire.connection.connection_lost(self.now)
        self.made += 1
        fresh = self.houses[index] = House(f"{dead.name}.{self.made}", self)
        for verifier in self.verifiers.values():
            fresh.dial(verifier, self.now)
        lost = [e for e in self.edges if e.house is dead]
        for edge in lost:
            edge.machine.connection_lost(self.now)
            edge.house = edge.wire = None
        while not fresh.gateway.known:  # it lets nobody in before
            self.step()
        for edge in lost:
            self.connect(edge)

    def drop(self, edge: Edge) -> None:
        """The edge's link breaks, and is made again, to any gateway."""
        assert edge.wire is not None
        assert edge.house is not None
        there = edge.wire.connection.sessions
        edge.machine.connection_lost(self.now)
        edge.wire.connection.connection_lost(self.now)
        edge.house.gateway.look(there, self.now)
        self.connect(edge)

    def strike(self) -> None:
        """A replica or a gateway dies, or an edge's link breaks."""
        trouble = self.dice.randrange(3)
        if trouble == 0:
            self.kill_replica(self.dice.choice(sorted(self.verifiers)))
        elif trouble == 1:
            self.kill_gateway(self.dice.randrange(len(self.houses)))
        else:
            self.drop(self.dice.choice(self.edges))

    def drain(self, name: str) -> None:
        for house in self.houses:
            house.gateway.drain(name, self.now)

    # --- time -------------------------------------------------------------------------------

    def step(self) -> bool:
        """One message, pass or guess; False if there was nothing to do."""
        self.now += 0.01
        moves = self._moves()
        if not moves:
            return False
        self.dice.choice(moves)()
        return True

    def _moves(self) -> list:
        moves: list = []
        for house in self.houses:
            for name, wire in house.wires.items():
                wire.pull(self.now)
                if wire.up:
                    moves.append(lambda w=wire: w.connection.receive(w.up.popleft(), self.now))
                if wire.down:
                    moves.append(lambda h=house, n=name, w=wire: self._from_replica(h, n, w))
        for edge in self.edges:
            wire = edge.wire
            if wire is None:
                continue
            wire.pull(self.now)
            if wire.up:
                moves.append(lambda e=edge: self._from_edge(e))
            if wire.down:
                moves.append(lambda e=edge: self._to_edge(e))
            if edge.session.may_guess and edge.ended is None and len(edge.session.window.ahead) < 6:
                moves.append(lambda e=edge: self.guess(e))
        moves.extend(lambda v=v: v.step(self.now) for v in self.verifiers.values())
        return moves

    def _from_replica(self, house: House, name: str, wire: Wire) -> None:
        wire.machine.receive(wire.down.popleft(), self.now)
        house.gateway.heard(house.replica(name), self.now)

    def _from_edge(self, edge: Edge) -> None:
        edge.wire.connection.receive(edge.wire.up.popleft(), self.now)
        edge.house.gateway.look(edge.wire.connection.sessions, self.now)

    def _to_edge(self, edge: Edge) -> None:
        edge.machine.receive(edge.wire.down.popleft(), self.now)
        edge.take(edge.machine.events())
        assert edge.machine.failure is None, edge.machine.failure

    def guess(self, edge: Edge) -> None:
        """More guesses, or none any more; a withdrawal now and then."""
        session, chance = edge.session, self.dice.random()
        if session.phase is Phase.IDLE or session.ratio:
            return
        if chance < 0.1:
            session.stop_riding()
        elif chance < 0.15:
            session.withdraw()
        else:
            text = [*session.ids, *session.window.ahead]
            right = target().row(text).argmax()
            session.guess([int(right) if chance < 0.8 else self.dice.randrange(SIZE)])

    def run(self, until: int = 20_000) -> None:
        """Until every answer has ended."""
        for _ in range(until):
            if all(e.ended is not None or e.refused for e in self.edges):
                return
            self.step()
            if self.dice.random() < 0.02:
                for house in self.houses:
                    house.gateway.tick(self.now)
        raise AssertionError("answers are stuck")


@pytest.fixture
def town():
    """Makes a :class:`Town`."""
    return Town
