"""The cloud's side: listen, let in who may come in, hand each connection to a handler."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus
from types import TracebackType
from typing import Self

from websockets.asyncio.server import Server as _WebsocketServer
from websockets.asyncio.server import ServerConnection
from websockets.asyncio.server import serve as _websocket_serve
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from outrider.protocol.errors import LinkError, RemoteProtocolError, SettingError
from outrider.runtime.net.address import (
    HEALTH_PATH,
    STREAM_PATH,
    SUBPROTOCOL,
    Address,
    is_loopback,
)
from outrider.runtime.net.keys import KeyFile
from outrider.runtime.net.link import MAX_FRAME, Link, MeteredConnection, Peer, Tuning

_log = logging.getLogger("outrider.net.server")
_RETRY_AFTER = "1"

Handler = Callable[[Link], Awaitable[None]]


class _ServerConnection(MeteredConnection, ServerConnection):
    key_name: str | None = None
    on_lost: Callable[[], None] | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.on_lost is not None:
            self.on_lost()


class _Door:
    """Decides about each HTTP request, before any WebSocket is opened."""

    def __init__(
        self, keys: KeyFile | None, max_connections: int, loading: Callable[[], bool] | None
    ) -> None:
        self._keys = keys
        self._max_connections = max_connections
        self._loading = loading
        self.inside: set[_ServerConnection] = set()

    def admit(self, connection: ServerConnection, request: Request) -> Response | None:
        """Answer in plain HTTP, or give None to open the WebSocket."""
        assert isinstance(connection, _ServerConnection)
        path = request.path.partition("?")[0]
        if path not in {HEALTH_PATH, STREAM_PATH}:
            return _refuse(connection, HTTPStatus.NOT_FOUND, "not-found", f"no such path: {path}")
        if request.method != "GET":
            return _refuse(
                connection, HTTPStatus.METHOD_NOT_ALLOWED, "method", "only GET is allowed here"
            )
        loading = self._loading is not None and self._loading()
        if path == HEALTH_PATH:
            status = HTTPStatus.SERVICE_UNAVAILABLE if loading else HTTPStatus.OK
            return _answer(connection, status, {"status": "loading" if loading else "ok"})
        # The key comes first: who has none learns nothing about the state of the server.
        return self._check_key(connection, request) or self._check_room(
            connection, request, loading
        )

    def _check_key(self, connection: _ServerConnection, request: Request) -> Response | None:
        if self._keys is None:
            return None
        headers = request.headers.get_all("Authorization")
        connection.key_name = self._keys.bearer(headers[0]) if len(headers) == 1 else None
        if connection.key_name is not None:
            return None
        _log.warning("a connection from %s was refused: no valid key", _place(connection))
        response = _refuse(
            connection,
            HTTPStatus.UNAUTHORIZED,
            "key",
            "this key is not valid" if headers else "a key is needed",
        )
        response.headers["WWW-Authenticate"] = "Bearer"
        return response

    def _check_room(
        self, connection: _ServerConnection, request: Request, loading: bool
    ) -> Response | None:
        offered = [
            name.strip()
            for header in request.headers.get_all("Sec-WebSocket-Protocol")
            for name in header.split(",")
        ]
        if "Upgrade" in request.headers and SUBPROTOCOL not in offered:
            text = f"this server speaks {SUBPROTOCOL}, the client {', '.join(offered) or 'nothing'}"
            return _refuse(connection, HTTPStatus.BAD_REQUEST, "version", text)
        if loading:
            return _busy(connection, "the model is still loading")
        if len(self.inside) >= self._max_connections:
            return _busy(connection, f"all {self._max_connections} connections are taken")
        # The place is taken now, not when the handler starts: otherwise a burst gets past.
        self.inside.add(connection)
        connection.on_lost = partial(self.inside.discard, connection)
        return None


def _answer(connection: ServerConnection, status: HTTPStatus, body: dict[str, object]) -> Response:
    response = connection.respond(status, json.dumps(body) + "\n")
    del response.headers["Content-Type"]
    response.headers["Content-Type"] = "application/json"
    return response


def _refuse(connection: ServerConnection, status: HTTPStatus, code: str, text: str) -> Response:
    return _answer(connection, status, {"error": {"code": code, "message": text}})


def _busy(connection: ServerConnection, text: str) -> Response:
    response = _refuse(connection, HTTPStatus.SERVICE_UNAVAILABLE, "busy", text)
    response.headers["Retry-After"] = _RETRY_AFTER
    return response


def _place(connection: ServerConnection) -> str:
    address = connection.remote_address
    if isinstance(address, tuple) and len(address) >= 2:
        return Address(str(address[0]), int(address[1])).place
    return "unknown"


class Server:
    """A listening server. Close it, or use it as an asynchronous context manager."""

    def __init__(self, inner: _WebsocketServer, door: _Door, address: Address) -> None:
        self._inner = inner
        self._door = door
        self.address = address

    @property
    def port(self) -> int:
        """The port it listens on: the one chosen by the system if 0 was asked for."""
        return self.address.port

    @property
    def url(self) -> str:
        """The address for clients on this machine or, with TLS, elsewhere."""
        return self.address.url

    @property
    def connections(self) -> int:
        """How many links are open."""
        return len(self._door.inside)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self, grace: float = 5.0, reason: str = "") -> None:
        """Accept no more, tell every peer (1001), wait for the handlers, then end them."""
        self._inner.close(code=1001, reason=reason)
        done = asyncio.ensure_future(self._inner.wait_closed())
        finished, _ = await asyncio.wait({done}, timeout=grace)
        if not finished:
            for connection in list(self._inner.all_connections):
                connection.transport.abort()
            for task in list(self._inner.handler_tasks):
                task.cancel()
        await done

    async def serve_forever(self) -> None:
        """Serve until cancelled or closed."""
        await self._inner.wait_closed()


async def serve(
    handler: Handler,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    keys: KeyFile | None = None,
    context: ssl.SSLContext | None = None,
    max_connections: int = 64,
    max_frame: int = MAX_FRAME,
    loading: Callable[[], bool] | None = None,
    open_timeout: float = 10.0,
    tuning: Tuning | None = None,
) -> Server:
    """Listen, and run ``handler`` for every link that is let in; the link closes when it returns.

    On this machine's own addresses neither keys nor TLS are needed; anywhere else both are.
    ``/health`` answers 200, or 503 while ``loading()`` is true. Port 0 takes a free one.
    """
    _check_closed_by_default(host, keys, context)
    if not 0 <= port < 1 << 16:
        raise SettingError(f"port {port}: it must be 0 to 65535")
    tuning = tuning or Tuning()
    door = _Door(keys, max_connections, loading)
    # "localhost" may be two addresses, and port 0 would then mean two different ports.
    bind = "127.0.0.1" if host.lower() == "localhost" else host
    try:
        inner = await _websocket_serve(
            partial(_run, handler, max_frame, tuning),
            bind,
            port,
            ssl=context,
            # Web pages name where they come from, drafters do not: no page may use a visitor's
            # browser to reach a server on loopback.
            origins=[None],
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            compression=None,
            server_header="outrider",
            process_request=door.admit,
            open_timeout=open_timeout,
            max_size=max_frame,
            logger=_log,
            create_connection=_ServerConnection,
            **tuning.arguments(),
        )
    except OSError as error:
        raise _cannot_listen(error, host, port) from error
    bound = inner.sockets[0].getsockname()[1]
    return Server(inner, door, Address(bind, bound, secure=context is not None))


def _check_closed_by_default(
    host: str, keys: KeyFile | None, context: ssl.SSLContext | None
) -> None:
    if is_loopback(host):
        return
    missing = [
        what
        for what, value in (("a key file", keys), ("a certificate with its key", context))
        if value is None
    ]
    if missing:
        raise SettingError(
            f"host {host!r} can be reached from other machines: that needs "
            f"{' and '.join(missing)}. Without them, only 127.0.0.1, ::1 and localhost are allowed"
        )


def _cannot_listen(error: OSError, host: str, port: int) -> SettingError:
    if error.errno == errno.EADDRINUSE:
        return SettingError(
            f"port {port} on {host} is in use: stop the program that has it, "
            "choose another port, or 0 for any free one"
        )
    if error.errno == errno.EACCES:
        return SettingError(f"port {port}: ports below 1024 need privileges, choose a higher one")
    return SettingError(f"cannot listen on {host} port {port}: {error.strerror or error}")


async def _run(
    handler: Handler, max_frame: int, tuning: Tuning, connection: ServerConnection
) -> None:
    assert isinstance(connection, _ServerConnection)
    peer = Peer(_place(connection), connection.key_name)
    link = Link(connection, peer, max_frame=max_frame, tuning=tuning)
    try:
        await handler(link)
    except LinkError as error:
        _log.debug("%s", error)
    except RemoteProtocolError as error:
        _log.warning("%s", error)
        await link.close(1002, error.code)
