"""The cloud's side: listen, let in who may come in, hand each connection to a handler."""

from __future__ import annotations

import asyncio
import errno
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Self, cast

from websockets.asyncio.server import Server as _WebsocketServer
from websockets.asyncio.server import ServerConnection
from websockets.asyncio.server import serve as _websocket_serve
from websockets.typing import Subprotocol

from outrider.protocol.errors import LinkError, RemoteProtocolError, SettingError
from outrider.runtime.net.address import SUBPROTOCOL, Address, is_loopback
from outrider.runtime.net.door import Door, DoorConnection, DoorRules, MakeRoom, Page, place_of
from outrider.runtime.net.keys import KeyFile
from outrider.runtime.net.link import MAX_FRAME, Link, Peer, Tuning

_log = logging.getLogger("outrider.net.server")
Handler = Callable[[Link], Awaitable[None]]


class Server:
    """A listening server. Close it, or use it as an asynchronous context manager."""

    def __init__(self, inner: _WebsocketServer, door: Door, address: Address) -> None:
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

    @property
    def refused(self) -> Mapping[str, int]:
        """How many requests were refused, by reason: ``key``, ``busy``, ``arriving``."""
        return self._door.refused

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes received and sent on all links so far, framing included."""
        return self._door.traffic

    def limit(self, max_frame: int) -> None:
        """From now on links may carry messages of so many bytes."""
        self._door.rules.max_frame = max_frame

    def replace_keys(self, keys: KeyFile) -> int:
        """Accept these keys from now on; gives how many links of others were dropped."""
        return self._door.replace_keys(keys)

    def sweep(self) -> int:
        """Drop the links whose key has expired; gives how many."""
        return self._door.sweep()

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
    loading: Callable[[], bool] = lambda: False,
    draining: Callable[[], bool] = lambda: False,
    make_room: MakeRoom = lambda key_name: False,  # noqa: ARG005
    pages: Mapping[str, Page] | None = None,
    stream: bool = True,
    open_timeout: float = 10.0,
    tuning: Tuning | None = None,
) -> Server:
    """Listen, and run ``handler`` for every link that is let in; the link closes when it returns.

    On this machine's own addresses neither keys nor TLS are needed; anywhere else both are.
    ``/health`` answers 200, or 503 while ``loading()`` or ``draining()`` is true. Port 0 takes a
    free one. The rest is told in :class:`DoorRules`.
    """
    _check_closed_by_default(host, keys, context)
    if not 0 <= port < 1 << 16:
        raise SettingError(f"port {port}: it must be 0 to 65535")
    tuning = tuning or Tuning()
    rules = DoorRules(
        keys=keys,
        max_connections=max_connections,
        loading=loading,
        draining=draining,
        make_room=make_room,
        pages=pages or {},
        stream=stream,
        max_frame=max_frame,
    )
    door = Door(rules, patience=2 * open_timeout)
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
            create_connection=cast("type[DoorConnection]", door.arrive),
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
    assert isinstance(connection, DoorConnection)
    peer = Peer(place_of(connection), connection.key.name if connection.key else None)
    link = Link(connection, peer, max_frame=max_frame, tuning=tuning)
    try:
        await handler(link)
    except LinkError as error:
        _log.debug("%s", error)
    except RemoteProtocolError as error:
        _log.warning("%s", error)
        await link.close(1002, error.code)
