"""A gateway as a running service: edges on one side, one link to each replica on the other."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from outrider.cloud_server.cluster.dial import Dial
from outrider.cloud_server.cluster.gateway import Chooser, Gateway, Sharer
from outrider.cloud_server.cluster.replica import Replica, Serves
from outrider.cloud_server.cluster.status import facts
from outrider.cloud_server.prompts import render
from outrider.cloud_server.served import Served
from outrider.protocol.cloud import CloudConnection
from outrider.protocol.errors import LinkError
from outrider.protocol.messages import LEAST_MESSAGE, Limits
from outrider.protocol.objective import Objective
from outrider.protocol.table import CloudConfig, SessionTable
from outrider.runtime.net.keys import KeyFile
from outrider.runtime.net.link import Link
from outrider.runtime.net.server import Server, serve
from outrider.runtime.text.fingerprint import describe
from outrider.runtime.text.template import takes_tools
from outrider.runtime.text.tokenizer import Tokenizer

AGENT = "outrider-gateway"

_log = logging.getLogger("outrider.cluster")

TICK = 0.25
"""Seconds between two looks at what time alone changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Where to listen and what to allow. ``max_sessions``: of edges, those between two answers
    included. ``replica_key`` and ``replica_tls``: how replicas are dialled. Times in seconds."""

    host: str = "127.0.0.1"
    port: int = 8471
    keys: KeyFile | None = None
    tls: ssl.SSLContext | None = None
    max_sessions: int = 512
    idle_seconds: float = 600.0
    detached_seconds: float = 120.0
    drain_seconds: float = 30.0
    objective: Objective = "latency"
    replica_key: str | None = None
    replica_tls: ssl.SSLContext | None = None


class GatewayService:
    """Listens, and lets edges in once a replica is there. The roster may change at any time."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        settings: GatewaySettings,
        chooser: Chooser,
        sharer: Sharer,
        expected: Serves | None = None,
    ) -> None:
        self.settings = settings
        self._tokenizer = tokenizer
        self._dials: dict[str, Dial] = {}
        self._served: dict[CloudConnection, Served] = {}
        self._server: Server | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._started = 0.0
        table = SessionTable(self._config(), quotas=settings.keys.quotas if settings.keys else {})
        self.gateway = Gateway(
            table, chooser, sharer, os.urandom, stir=self._stir, tell=self._tell, expected=expected
        )

    # --- life -------------------------------------------------------------------------------

    async def start(self) -> Server:
        """Listen: 503 until a replica has been found.

        Raises:
            SettingError: the address is in use, or open to the world without key and certificate.
        """
        settings = self.settings
        self._started = _now()
        self._server = await serve(
            self._handle,
            settings.host,
            settings.port,
            keys=settings.keys,
            context=settings.tls,
            max_connections=2 * settings.max_sessions,
            max_frame=self.gateway.table.config.limits.max_message,
            loading=lambda: not self.gateway.known,
            draining=lambda: self.gateway.table.closing,
            make_room=self._make_room,
            pages={"/status": self._status_page},
        )
        self._ticker = asyncio.create_task(self._tick(), name="ticker")
        return self._server

    async def stop(self, *, drain: bool = True) -> None:
        """Let the answers under way end (at most ``drain_seconds``), and say goodbye."""
        self.gateway.table.closing = True
        deadline = _now() + self.settings.drain_seconds * drain
        while _now() < deadline and any(r.wanted for r in self.gateway.relays.values()):
            await asyncio.sleep(0.02)
        for connection, served in self._served.items():
            connection.close("shutdown", "the gateway is shutting down", _now())
            served.wake.set()
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
        if self._server is not None:
            await self._server.close()
        await asyncio.gather(*(self._hang_up(name) for name in list(self._dials)))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            for relay in self.gateway.relays.values():
                link = relay.session.link
                if isinstance(link, CloudConnection) and link in self._served:
                    relay.rtt = self._served[link].rtt or relay.rtt
            self.gateway.tick(_now())
            if self._server is not None:
                self._server.sweep()  # links of keys that have expired

    def replace_keys(self, keys: KeyFile) -> None:
        """Accept these keys from now on; links of others are dropped."""
        if self._server is not None:
            self.gateway.table.quotas = keys.quotas
            dropped = self._server.replace_keys(keys)
            _log.warning("keys were read again: %d accepted, %d links dropped", len(keys), dropped)

    # --- replicas ---------------------------------------------------------------------------

    async def roster(
        self,
        replicas: Mapping[str, str],
        draining: frozenset[str] = frozenset(),
        others: tuple[str, ...] = (),
    ) -> None:
        """Replicas by name with their addresses, those that are to be left, other gateways.

        A replica that has started again has another address; one that is gone is named no more.
        """
        gateway = self.gateway
        gateway.table.config.elsewhere = others
        for name in list(self._dials):
            if self._dials[name].url != replicas.get(name):
                await self._hang_up(name)
        for name in [n for n in gateway.replicas if n not in replicas]:
            gateway.remove(name, _now())
        for name, url in replicas.items():
            replica = gateway.add(name)
            if name not in self._dials:
                self._dials[name] = self._dial(replica, url)
            if name in draining:
                gateway.drain(name, _now())
            else:
                replica.draining = False

    def _dial(self, replica: Replica, url: str) -> Dial:
        return Dial(
            replica,
            url,
            key=self.settings.replica_key,
            context=self.settings.replica_tls,
            heard=lambda: self.gateway.heard(replica, _now()),
            lost=lambda: self.gateway.down(replica, _now()),
        )

    async def _hang_up(self, name: str) -> None:
        dial = self._dials.pop(name)
        self.gateway.down(dial.replica, _now())
        await dial.hang_up()

    def _stir(self, replica: Replica) -> None:
        dial = self._dials.get(replica.name)
        if dial is not None and dial.replica is replica:
            dial.post()

    # --- edges ------------------------------------------------------------------------------

    async def _handle(self, link: Link) -> None:
        """Serve one connection until it is over."""
        connection = CloudConnection(self.gateway.table, link.peer.key_name or "", _now())
        served = self._served[connection] = Served(link, connection)
        writer = asyncio.create_task(served.write())
        ping = asyncio.create_task(served.ping())

        def take(message: bytes) -> bool:
            connection.receive(message, _now())
            self.gateway.look(connection.sessions, _now())
            if connection.has_cold_messages:
                served.wake.set()
            return not connection.wants_close

        try:
            await link.receive(take)
            await writer
        except LinkError:
            pass  # its sessions wait for the edge to come back
        finally:
            writer.cancel()
            ping.cancel()
            await asyncio.gather(writer, ping, return_exceptions=True)
            del self._served[connection]
            there = connection.sessions
            connection.connection_lost(_now())
            self.gateway.look(there, _now())

    def _tell(self, connection: CloudConnection) -> None:
        served = self._served.get(connection)
        if served is not None:
            served.post()

    def _make_room(self, key_name: str | None) -> bool:
        """Close the connection that has been idle longest, of that key if one is named."""
        idle = [
            (connection.idle_since, connection)
            for connection in self._served
            if connection.idle_since is not None and key_name in (None, connection.owner)
        ]
        if not idle:
            return False
        _, oldest = min(idle, key=lambda found: found[0])
        oldest.close("idle", "others need the place", _now())
        self._served[oldest].wake.set()
        return True

    def _config(self) -> CloudConfig:
        """What edges are told; of the target nothing is known before a replica is."""
        settings = self.settings
        return CloudConfig(
            vocabulary=describe(self._tokenizer),
            model="",
            n_ctx=1,
            eos=(),
            limits=Limits(
                max_message=16 * LEAST_MESSAGE,
                max_prompt=1,
                max_tokens=1,
                max_nodes_per_frame=64,
                max_nodes_in_flight=256,
                max_sessions=settings.max_sessions,
                detached_seconds=settings.detached_seconds,
            ),
            agent=AGENT,
            render=partial(render, self._tokenizer),
            tools=takes_tools(self._tokenizer.template),
            collaborates=False,
            objective=settings.objective,
            idle_seconds=settings.idle_seconds,
        )

    def _status_page(self) -> tuple[str, str]:
        said = facts(self.gateway, _now() - self._started)
        return "application/json", json.dumps(said) + "\n"


def _now() -> float:
    return asyncio.get_running_loop().time()
