"""Who may come in: every HTTP request is answered here, before any WebSocket is opened."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from websockets.asyncio.server import ServerConnection
from websockets.http11 import Request, Response

from outrider.runtime.net.address import HEALTH_PATH, STREAM_PATH, SUBPROTOCOL, Address
from outrider.runtime.net.keys import Key, KeyFile
from outrider.runtime.net.link import MAX_FRAME
from outrider.runtime.net.metered import MeteredConnection

_log = logging.getLogger("outrider.net.server")

RETRY_AFTER = "1"
MAX_ARRIVING = 128
"""Connections that may be without an answer to their first request; the oldest then goes."""

LEAST_SHARE = 4
"""Connections that any key may hold, whatever the number of all."""

SAID_EVERY = 10.0
"""Seconds between two lines about refused connections: nobody shall fill a disk by knocking."""

Page = Callable[[], tuple[str, str]]
"""Gives (content type, text) of a page."""


class MakeRoom(Protocol):
    """Asked when there is no place for one more link, by the name of its key."""

    def __call__(self, key_name: str | None) -> bool:
        """End an idle link (of that key, unless None); False if there is none."""


@dataclass(slots=True, kw_only=True)
class DoorRules:
    """Whom to let in. ``pages`` are further paths, open to whoever has a key.

    ``loading`` and ``draining`` tell how the service is; ``stream`` false: there are pages alone.
    """

    keys: KeyFile | None = None
    max_connections: int = 64
    loading: Callable[[], bool] = lambda: False
    draining: Callable[[], bool] = lambda: False
    make_room: MakeRoom = lambda key_name: False  # noqa: ARG005
    pages: Mapping[str, Page] = field(default_factory=dict)
    stream: bool = True
    max_frame: int = MAX_FRAME


class DoorConnection(MeteredConnection, ServerConnection):
    """A connection that knows whose key it showed and tells when it is over."""

    key: Key | None = None
    on_lost: Callable[[], None] | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.on_lost is not None:
            self.on_lost()


class TooManyArrivingError(ConnectionError):
    """So many connections are being set up that one more is not looked at."""


class Door:
    """Decides about each request, and counts who is inside."""

    def __init__(self, rules: DoorRules, patience: float) -> None:
        """``patience``: seconds after which a connection that asked nothing is gone anyway."""
        self.rules = rules
        self.inside: set[DoorConnection] = set()
        self.refused: Counter[str] = Counter()
        self._bytes = [0, 0]  # in and out, of links that are over
        self._arriving: WeakKeyDictionary[DoorConnection, float] = WeakKeyDictionary()
        self._patience = patience
        self._said_at = float("-inf")
        self._unsaid = 0

    # --- before a request -------------------------------------------------------------------

    def arrive(self, *args: Any, **more: Any) -> DoorConnection:
        """Make the connection for a socket that was accepted, its TLS still to be set up.

        Whoever is slow to ask makes room for the next: an honest edge takes moments.

        Raises:
            TooManyArrivingError: the oldest have not even set up TLS.
        """
        now = asyncio.get_running_loop().time()
        for old, since in list(self._arriving.items()):
            if now - since > self._patience:
                del self._arriving[old]
        if len(self._arriving) >= MAX_ARRIVING:
            self._drop_oldest()
        connection = DoorConnection(*args, **more)
        self._arriving[connection] = now
        connection.on_lost = partial(self._went, connection)
        return connection

    def _went(self, connection: DoorConnection) -> None:
        self._arriving.pop(connection, None)

    def _drop_oldest(self) -> None:
        self.refused["arriving"] += 1
        for connection in list(self._arriving):
            transport = getattr(connection, "transport", None)
            if transport is not None:
                del self._arriving[connection]
                transport.abort()
                return
        raise TooManyArrivingError

    # --- the request ------------------------------------------------------------------------

    def admit(self, connection: ServerConnection, request: Request) -> Response | None:
        """Answer in plain HTTP, or give None to open the WebSocket."""
        assert isinstance(connection, DoorConnection)
        self._arriving.pop(connection, None)
        rules, path = self.rules, request.path.partition("?")[0]
        known = {HEALTH_PATH, *rules.pages} | ({STREAM_PATH} if rules.stream else set())
        if path not in known:
            return _refuse(connection, HTTPStatus.NOT_FOUND, "not-found", f"no such path: {path}")
        if request.method != "GET":
            return _refuse(
                connection, HTTPStatus.METHOD_NOT_ALLOWED, "method", "only GET is allowed here"
            )
        if path == HEALTH_PATH:
            return self._health(connection)
        # The key comes first: who has none learns nothing about the state of the server.
        if (refusal := self._check_key(connection, request)) is not None:
            return refusal
        if path == STREAM_PATH:
            return self._check_room(connection, request)
        kind, text = rules.pages[path]()
        return _respond(connection, HTTPStatus.OK, kind, text)

    def _health(self, connection: DoorConnection) -> Response:
        if self.rules.loading():
            return _answer(connection, HTTPStatus.SERVICE_UNAVAILABLE, {"status": "loading"})
        if self.rules.draining():
            return _answer(connection, HTTPStatus.SERVICE_UNAVAILABLE, {"status": "draining"})
        return _answer(connection, HTTPStatus.OK, {"status": "ok"})

    def _check_key(self, connection: DoorConnection, request: Request) -> Response | None:
        keys = self.rules.keys
        if keys is None:
            return None
        headers = request.headers.get_all("Authorization")
        key = keys.bearer(headers[0]) if len(headers) == 1 else None
        if key is not None and not key.expired():
            connection.key = key
            return None
        self.refused["key"] += 1
        self._say(connection, "no valid key" if key is None else f"the key {key.name} has expired")
        if key is not None:
            said = "this key has expired"
        else:
            said = "this key is not valid" if headers else "a key is needed"
        response = _refuse(connection, HTTPStatus.UNAUTHORIZED, "key", said)
        response.headers["WWW-Authenticate"] = "Bearer"
        return response

    def _say(self, connection: DoorConnection, why: str) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._said_at < SAID_EVERY:
            self._unsaid += 1
            return
        more = f" ({self._unsaid} more since the last such line)" if self._unsaid else ""
        _log.warning("a connection from %s was refused: %s%s", place_of(connection), why, more)
        self._said_at, self._unsaid = now, 0

    def _check_room(self, connection: DoorConnection, request: Request) -> Response | None:
        offered = [
            name.strip()
            for header in request.headers.get_all("Sec-WebSocket-Protocol")
            for name in header.split(",")
        ]
        if "Upgrade" in request.headers and SUBPROTOCOL not in offered:
            text = f"this server speaks {SUBPROTOCOL}, the client {', '.join(offered) or 'nothing'}"
            return _refuse(connection, HTTPStatus.BAD_REQUEST, "version", text)
        if self.rules.loading():
            return self._busy(connection, "the model is still loading")
        if self.rules.draining():
            return self._busy(connection, "the server is shutting down")
        if (full := self._full(connection)) is not None:
            return self._busy(connection, full)
        # The place is taken now, not when the handler starts: otherwise a burst gets past.
        self.inside.add(connection)
        connection.on_lost = partial(self._left, connection)
        # The limit may not have been known when the socket was accepted.
        connection.protocol.max_message_size = self.rules.max_frame
        return None

    def _left(self, connection: DoorConnection) -> None:
        self.inside.discard(connection)
        self._bytes[0] += connection.wire_in
        self._bytes[1] += connection.wire_out

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes of all links so far: in, out."""
        into = self._bytes[0] + sum(c.wire_in for c in self.inside)
        return into, self._bytes[1] + sum(c.wire_out for c in self.inside)

    def _full(self, connection: DoorConnection) -> str | None:
        """Why there is no place, after idle links were asked to go."""
        rules, key = self.rules, connection.key
        if rules.keys is not None and key is not None:
            names = len(rules.keys.quotas)
            share = max(LEAST_SHARE, rules.max_connections // 2) if names > 1 else None
            held = sum(1 for c in self.inside if c.key is not None and c.key.name == key.name)
            if share is not None and held >= share and not rules.make_room(key.name):
                return f"this key holds {held} of {rules.max_connections} connections"
        if len(self.inside) >= rules.max_connections and not rules.make_room(None):
            return f"all {rules.max_connections} connections are taken"
        return None

    def _busy(self, connection: ServerConnection, text: str) -> Response:
        self.refused["busy"] += 1
        response = _refuse(connection, HTTPStatus.SERVICE_UNAVAILABLE, "busy", text)
        response.headers["Retry-After"] = RETRY_AFTER
        return response

    # --- later ------------------------------------------------------------------------------

    def replace_keys(self, keys: KeyFile) -> int:
        """From now on these keys; links of others, and of expired ones, are dropped. How many."""
        self.rules.keys = keys
        return self.sweep()

    def sweep(self) -> int:
        """Drop the links whose key is no longer accepted."""
        keys = self.rules.keys
        if keys is None:
            return 0
        gone = [c for c in self.inside if c.key is None or not keys.accepts(c.key)]
        for connection in gone:
            self.inside.discard(connection)
            connection.transport.abort()
        return len(gone)


def place_of(connection: ServerConnection) -> str:
    """The address of the other end, for messages."""
    address = connection.remote_address
    if isinstance(address, tuple) and len(address) >= 2:
        return Address(str(address[0]), int(address[1])).place
    return "unknown"


def _respond(connection: ServerConnection, status: HTTPStatus, kind: str, text: str) -> Response:
    response = connection.respond(status, text)
    del response.headers["Content-Type"]
    response.headers["Content-Type"] = kind
    return response


def _answer(connection: ServerConnection, status: HTTPStatus, body: dict[str, object]) -> Response:
    return _respond(connection, status, "application/json", json.dumps(body) + "\n")


def _refuse(connection: ServerConnection, status: HTTPStatus, code: str, text: str) -> Response:
    return _answer(connection, status, {"error": {"code": code, "message": text}})
