"""What a gateway does: sessions to replicas, and on to others when a replica is lost.

Sans-I/O: a driver tells what came on which connection and from which replica, and is told through
two callbacks who has something to send. A gateway holds token histories only (its table's
sessions); what a replica holds is a cache.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from outrider.cloud_server.cluster.relay import Relay
from outrider.cloud_server.cluster.replica import Replica, Serves, replica
from outrider.protocol.cloud import CloudConnection
from outrider.protocol.errors import SessionError
from outrider.protocol.events import AnswerEnded, AnswerRefused, Committed, LinkFailed, LinkReady
from outrider.protocol.messages import GRAMMAR, TREES, Limits

if TYPE_CHECKING:
    from outrider.protocol.messages import Welcome
    from outrider.protocol.session import CloudSession
    from outrider.protocol.table import SessionTable

PATIENCE = 30.0
"""Seconds that an answer waits for a replica: as long as one may take to start again."""

BUSY = frozenset({"busy", "full", "closing"})
"""Refusals that another replica may not share."""

SHUN = 1.0
"""Seconds for which a replica that is busy is asked for nothing, unless it says how long."""

_log = logging.getLogger("outrider.cluster")


class Chooser(Protocol):
    """Where a session goes."""

    def choose(self, relay: Relay, among: list[Replica], now: float) -> Replica:
        """One of the replicas, for an answer that is about to be worked on."""

    def moves(
        self, relays: list[Relay], among: list[Replica], now: float
    ) -> list[tuple[Relay, Replica]]:
        """Answers under way that are better off elsewhere, the cost of moving counted."""


class Sharer(Protocol):
    """What sessions get of the replica where they are."""

    def look(self, relays: Iterable[Relay], now: float) -> None:
        """Weigh and cap the answers that are worked on."""


class Gateway:
    """Sessions of edges over replicas. ``entropy`` names the sessions at the replicas.

    ``stir(replica)``: its machine may have something to send; ``tell(connection)``: so may this.
    ``expected``: what replicas must serve; None: what the first one does. ``known``: one has been
    found, so that edges can be told what is served; ``lost`` and ``moved`` count.
    """

    def __init__(
        self,
        table: SessionTable,
        chooser: Chooser,
        sharer: Sharer,
        entropy: Callable[[int], bytes],
        *,
        stir: Callable[[Replica], None],
        tell: Callable[[CloudConnection], None],
        expected: Serves | None = None,
    ) -> None:
        self.table = table
        table.ended = lambda _session: None  # the replica says, which has the rules of the end
        self.chooser, self.sharer = chooser, sharer
        self.expected = expected
        self.replicas: dict[str, Replica] = {}
        self.relays: dict[bytes, Relay] = {}
        self.lost = self.moved = 0
        self.known = False
        self._entropy = entropy
        self._stir, self._tell = stir, tell

    # --- replicas ---------------------------------------------------------------------------

    def add(self, name: str) -> Replica:
        """A replica that may be used as soon as its link is up."""
        found = self.replicas.get(name)
        if found is None:
            found = replica(name, self.table.config.vocabulary, self._entropy)
            self.replicas[name] = found
        return found

    def drain(self, name: str, now: float) -> None:
        """Give it nothing new, and let what is there go on elsewhere."""
        leaving = self.replicas[name]
        if not leaving.draining:
            leaving.draining = True
            self._abandon(leaving, now)

    def remove(self, name: str, now: float) -> None:
        """It is no part of the cluster any more."""
        gone = self.replicas.pop(name)
        gone.draining = True
        self._abandon(gone, now)

    def heard(self, source: Replica, now: float) -> None:
        """A replica's machine may have events."""
        touched: set[CloudConnection] = set()
        for event in source.machine.events():
            if isinstance(event, LinkReady):
                self._welcomed(source, now)
            elif isinstance(event, LinkFailed):
                self.down(source, now)
            elif isinstance(event, Committed | AnswerEnded | AnswerRefused):
                relay = source.relays.get(event.session)
                if relay is None:
                    continue
                refusal = relay.take(event)
                if refusal is not None:
                    self._refused(relay, refusal, now)
                if isinstance(relay.session.link, CloudConnection):
                    touched.add(relay.session.link)
        for connection in touched:
            self._tell(connection)
        self._stir(source)

    def down(self, source: Replica, now: float) -> None:
        """Its link is lost: all that was there goes on elsewhere, at the exact token."""
        self.lost += bool(source.relays)
        self._abandon(source, now)

    def _welcomed(self, source: Replica, now: float) -> None:
        welcome = source.machine.welcome
        assert welcome is not None  # the machine says that it is ready
        serves = Serves.of(welcome)
        if self.expected is None:
            self.expected = serves
        was, source.alien = source.alien, self.expected.differs(serves)
        if source.alien is not None:
            if source.alien != was:
                _log.error("replica %s is not used: %s", source.name, source.alien)
            return
        if not self.known:
            self._learn(welcome)
        source.shunned = 0.0
        for relay in self._waiting():
            self._place(relay, now)

    def _learn(self, welcome: Welcome) -> None:
        """What edges are told of the target is what its first replica says."""
        config, told = self.table.config, welcome.limits
        config.model, config.n_ctx, config.eos = welcome.model, welcome.n_ctx, welcome.eos
        config.trees = TREES in welcome.features
        if GRAMMAR in welcome.features:
            config.constrain = lambda _form: None  # the replica says what is wrong with it
        config.limits = Limits(
            max_message=told.max_message,
            max_prompt=told.max_prompt,
            max_tokens=told.max_tokens,
            max_nodes_per_frame=told.max_nodes_per_frame,
            max_nodes_in_flight=told.max_nodes_in_flight,
            max_sessions=config.limits.max_sessions,
            detached_seconds=config.limits.detached_seconds,
        )
        self.table.pass_times = welcome.pass_times
        self.known = True

    def _abandon(self, source: Replica, now: float) -> None:
        there = list(source.relays.values())
        for relay in there:
            relay.leave()
            if relay.wanted:
                self._place(relay, now)
        self._stir(source)

    # --- edges ------------------------------------------------------------------------------

    def look(self, sessions: Iterable[CloudSession], now: float) -> None:
        """Something came for these sessions, or they lost their edge."""
        for session in sessions:
            relay = self.relays.get(session.key)
            if relay is None or relay.session is not session:
                if relay is not None:
                    relay.leave()
                relay = self.relays[session.key] = Relay(session)
            if not relay.wanted:
                relay.rest()
            elif relay.at_work:
                relay.push()
            elif relay.waiting is None or relay.begun != session.begun:
                relay.begun = session.begun
                self._begin(relay, now)
            if relay.replica is not None:
                self._stir(relay.replica)

    def tick(self, now: float) -> None:
        """What time alone changes: sessions that expire, answers that wait, better places."""
        self.table.expire(now)
        alive = self.table.sessions
        for key, relay in list(self.relays.items()):
            if alive.get(key) is not relay.session:
                relay.leave()
                del self.relays[key]
            elif not relay.wanted and relay.at_work:
                relay.rest()  # its edge has gone, perhaps to another gateway
        for relay in self._waiting():
            self._place(relay, now)
        self._rearrange(now)
        self.sharer.look(self.relays.values(), now)
        for source in self.replicas.values():
            self._stir(source)

    def _rearrange(self, now: float) -> None:
        among = self._usable(now)
        working = [r for r in self.relays.values() if r.at_work and r.wanted]
        if len(among) > 1 and working:
            for relay, better in self.chooser.moves(working, among, now):
                self.moved += 1
                relay.place(better, now)

    # --- placing ----------------------------------------------------------------------------

    def _usable(self, now: float) -> list[Replica]:
        return [
            r for r in self.replicas.values() if r.ready and not r.draining and r.shunned <= now
        ]

    def _waiting(self) -> list[Relay]:
        return [r for r in self.relays.values() if r.waiting is not None]

    def _begin(self, relay: Relay, now: float) -> None:
        """An answer was opened here, by an edge that may not have been welcomed yet."""
        if not relay.session.collaborates:
            self._place(relay, now)
            return
        relay.why = SessionError(
            "a gateway passes no models on: collaborative decoding needs a cloud of its own",
            code="unsupported",
        )
        self._give_up(relay)

    def _place(self, relay: Relay, now: float) -> None:
        """Find a replica for the answer; there may be none now, and none in time."""
        if not relay.wanted:
            relay.waiting = None
            return
        among = self._usable(now)
        if among:
            relay.place(self.chooser.choose(relay, among, now), now)
            assert relay.replica is not None
            self._stir(relay.replica)
            return
        if relay.waiting is None:
            relay.waiting = now
        ready = [r for r in self.replicas.values() if r.ready and not r.draining]
        busy = bool(ready) and relay.why is not None
        # An answer that was begun waits for a place, as nobody else can go on with it.
        fresh = len(relay.session.ids) == relay.session.prompt_len
        if now - relay.waiting >= PATIENCE or (busy and fresh):
            self._give_up(relay)

    def _refused(self, relay: Relay, refusal: SessionError, now: float) -> None:
        """A replica would not take the answer: another may."""
        source = relay.replica
        if source is not None and refusal.code in BUSY:
            source.shunned = now + (refusal.retry_after or SHUN)
            relay.leave()
            relay.why = refusal
            self._place(relay, now)
        else:
            relay.why = refusal
            self._give_up(relay)

    def _give_up(self, relay: Relay) -> None:
        error = relay.why or SessionError(
            "no replica of the verifier is running. Try again later.",
            code="no_replica",
            retry_after=5.0,
        )
        relay.rest()
        link = relay.session.link
        if isinstance(link, CloudConnection):
            link.refuse(relay.session, error)
            self._tell(link)
