"""The placement problem made of live figures, and its policies at work in a gateway.

The devices of a gateway reach every replica through it: of the way only the part behind the
gateway tells replicas apart, but what that is worth depends on the part before it. A round of a
session lasts as long as the wait at the replica, a pass there with all that is in it, and what the
session loses to the way: all of it where the cloud waits for guesses. Where the cloud goes on by
itself meanwhile, no more than the passes that the guesses would have saved. The problem is filled
so that it says the same.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np

from outrider.cloud_server.cluster.relay import Relay
from outrider.cloud_server.cluster.replica import Replica
from outrider.cloud_server.placement.association import DEFAULT, POLICIES, policy
from outrider.cloud_server.placement.problem import Problem
from outrider.protocol.errors import SettingError

UNKNOWN_PASS = 0.05
"""Seconds of a pass of a replica that has said nothing of it."""

BATCH = 8.0
"""Tokens of the pass by which it is judged what a token more costs a replica."""

LIGHT = 20.0
"""Tokens that are taken to cost as much as the pass they are in, until both are known."""

FASTEST = 1e5
"""Tokens a second beyond which a replica is taken not to notice them."""

HEADER_BITS = 640.0
"""A frame is mostly packet: 80 bytes."""

FULL = 10.0
"""Seconds that an answer is taken to wait where no row or no memory is free."""

TIGHT = 64 << 20
"""Bytes of free memory under which a replica is taken to be full."""

INTERVAL = 5.0
"""Seconds between two looks for better places, and between two moves of one session."""

BETTER = 0.2
"""By what share a session's round must get shorter before it is moved."""

PAYS = 2.0
"""How many times what it costs a move must save over the rest of the answer."""

MOST_MOVES = 4
"""Sessions moved at one look: what they change has to be seen first."""

LEARNED = (".onnx", ".pt")
"""How the names of exported actors and of checkpoints end."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one replica. ``way``: round trip from here, ``wait``: in its queue, beyond the pass that
    is always under way, ``fixed``: of a pass, whatever is in it, all in seconds; ``speed``: tokens
    a second that a pass takes in besides; ``others``: answers that other gateways have there.
    """

    way: float
    wait: float
    fixed: float
    speed: float
    others: int

    @classmethod
    def of(cls, replica: Replica) -> Figures:
        """As measured; what is not known yet is taken to be usual."""
        link, page = replica.machine.link, replica.page
        passes = link.passes
        if passes.known:
            each = (passes.of(BATCH) - passes.of(1)) / (BATCH - 1)
            fixed = max(0.0, passes.of(1) - each)
        else:
            lately = page.get("lately") or {}
            fixed = max(1e-6, link.target or lately.get("pass_s") or UNKNOWN_PASS)
            each = fixed / LIGHT
        speed = 1.0 / max(each, 1 / FASTEST)
        others = max(0, int(page.get("running") or 0) - replica.working)
        wait = 0.0
        if replica.working + others:  # where nobody is, what was measured is long past
            wait = max(0.0, (link.queue or 0.0) - fixed - each * BATCH)
        memory, slots = page.get("memory_available_bytes"), page.get("slots")
        no_row = slots is not None and replica.working + others >= slots
        if no_row or (memory is not None and memory < TIGHT):
            wait += FULL
        return cls(max(replica.way or link.srtt or 0.0, 1e-4), wait, fixed, speed, others)

    def round(self, tokens: float, *, shared: bool) -> float:
        """Seconds of a round in which so many tokens are judged, the way left aside.

        ``shared``: somebody else is there, so that a pass is under way when guesses come: half of
        one is waited for.
        """
        passes = self.fixed * (1.5 if shared else 1.0)
        return self.wait + passes + tokens / self.speed

    def lost(self, relay: Relay) -> float:
        """Seconds of a round that this session loses to the way."""
        trip = relay.rtt + self.way
        if relay.session.objective == "cost" or relay.session.ratio:
            return trip
        return min(trip, (relay.asks - 1.0) * self.fixed)


def problem(relays: list[Relay], figures: list[Figures], load: list[float]) -> Problem:
    """One device a relay, one server a replica; ``load``: tokens of others that stand before."""
    m, e = len(relays), len(figures)
    ways = np.array([f.way for f in figures])
    speed = np.array([f.speed for f in figures])
    waits = np.array(
        [f.round(n, shared=m > 1 or n > 0) for f, n in zip(figures, load, strict=True)]
    )
    waits += np.array([[f.lost(relay) for f in figures] for relay in relays]).mean(axis=0)
    # So wide a band that a share of it changes nothing: the rate is the gain's alone.
    rate = HEADER_BITS / ways
    noise = 1e-12
    return Problem(
        gain=np.broadcast_to(rate * math.log(2) * noise, (m, e)).copy(),
        power=np.ones(m),
        band=np.full(e, 1e4 * float(rate.max())),
        bits=np.full(m, HEADER_BITS),
        draft=np.array([max(1e-3, r.session.node_gap or 0.0) for r in relays]),
        work=np.array([r.asks for r in relays]),
        speed=speed,
        queue=waits,
        battery=np.ones(m),
        noise=noise,
        thrift=0.0,
    )


class LivePlacer:
    """A policy by name, with hysteresis. ``seed`` is that of policies that draw lots."""

    def __init__(self, name: str = DEFAULT, seed: int = 0) -> None:
        """
        Raises:
            SettingError: there is no such policy, or it is a learned one in a file.
        """
        if name.endswith(LEARNED):
            # Its inputs are scaled for the simulator's units: tokens and round trips of a
            # cluster would all be clipped to the same few numbers.
            raise SettingError(
                f"placement {name!r} is a file: a learned policy fits the simulator alone "
                f"(outrider sim uara --policy); a cluster takes one of {', '.join(POLICIES)}"
            )
        self.name = name
        self._associate = policy(name)
        self._rng = np.random.default_rng(seed)
        self._looked = -math.inf

    def choose(self, relay: Relay, among: list[Replica], now: float) -> Replica:  # noqa: ARG002
        """Where the policy puts one more session, those that are there already being its load."""
        figures = [Figures.of(r) for r in among]
        load = [
            sum(o.asks for o in r.relays.values() if o.at_work and o is not relay) + f.others
            for r, f in zip(among, figures, strict=True)
        ]
        server = self._associate(problem([relay], figures, load), self._rng)
        return among[int(server[0])]

    def moves(
        self, relays: list[Relay], among: list[Replica], now: float
    ) -> list[tuple[Relay, Replica]]:
        """What the policy would do with all of them anew, as far as it pays to change things."""
        if now - self._looked < INTERVAL:
            return []
        self._looked = now
        here = [r for r in relays if r.replica in among]
        if not here:
            return []
        figures = [Figures.of(r) for r in among]
        wanted = self._associate(
            problem(here, figures, [float(f.others) for f in figures]), self._rng
        )
        tokens = Counter({r.name: f.others for r, f in zip(among, figures, strict=True)})
        users = {r.name: r.working + f.others for r, f in zip(among, figures, strict=True)}
        for relay in here:
            assert relay.replica is not None
            tokens[relay.replica.name] += round(relay.asks)
        moved: list[tuple[Relay, Replica]] = []
        by_name = dict(zip((r.name for r in among), figures, strict=True))
        for relay, j in zip(here, wanted, strict=True):
            old, new = relay.replica, among[int(j)]
            if old is None or old is new or now - relay.since < INTERVAL:
                continue
            work = round(relay.asks)
            there, then = by_name[old.name], by_name[new.name]
            before = there.lost(relay) + there.round(tokens[old.name], shared=users[old.name] > 1)
            after = then.lost(relay) + then.round(
                tokens[new.name] + work, shared=users[new.name] > 0
            )
            if after < (1 - BETTER) * before and _saves(relay, before - after, then):
                tokens[old.name] -= work
                tokens[new.name] += work
                users[old.name] -= 1
                users[new.name] += 1
                moved.append((relay, new))
            if len(moved) == MOST_MOVES:
                break
        return moved


def _saves(relay: Relay, gain: float, there: Figures) -> bool:
    """Over the rest of the answer the move saves more than reading the text again costs."""
    session = relay.session
    asked = session.request
    left = (asked.max_tokens if asked else 0) - (len(session.ids) - session.prompt_len)
    rounds = left / max(1.0, relay.asks)
    return gain * rounds > PAYS * (len(session.ids) / there.speed + there.way)
