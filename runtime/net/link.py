"""One open WebSocket, whichever end this is: binary messages, exact byte counts, late binding."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from websockets.asyncio.connection import Connection
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame
from websockets.protocol import SERVER, Event

from outrider.protocol.errors import RemoteProtocolError
from outrider.protocol.packing import frame_size
from outrider.runtime.net.errors import LinkClosedError, from_closed

MAX_FRAME = 1 << 20
WRITE_LIMIT = 4096
_CLOSE_REASON_LIMIT = 123  # the rest of a control frame's 125 bytes after the code


@dataclass(frozen=True, slots=True)
class Tuning:
    """Times in seconds and sizes in bytes that both ends take. None switches a time off.

    ``write_limit``: how many unsent bytes may wait on this machine before a sender is held back.
    ``send_timeout``: how long a peer may take nothing before it is dropped.
    """

    ping_interval: float | None = 20.0
    ping_timeout: float | None = 20.0
    close_timeout: float | None = 5.0
    send_timeout: float | None = 20.0
    write_limit: int = WRITE_LIMIT
    max_queue: int = 16

    def arguments(self) -> dict[str, Any]:
        """The part of it that ``websockets`` looks after."""
        return {
            "ping_interval": self.ping_interval,
            "ping_timeout": self.ping_timeout,
            "close_timeout": self.close_timeout,
            "write_limit": self.write_limit,
            "max_queue": self.max_queue,
        }


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end. ``key_name``: whose key it showed; None where none is asked."""

    address: str
    key_name: str | None = None

    def __str__(self) -> str:
        return f"{self.address} ({self.key_name})" if self.key_name else self.address


class MeteredConnection(Connection):
    """Counts every byte of every frame, control frames included; not the HTTP handshake."""

    wire_in = 0
    wire_out = 0
    _greeted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        _bind_late(transport, self.write_limit_high or WRITE_LIMIT)

    def process_event(self, event: Event) -> None:
        if isinstance(event, Frame):
            self.wire_in += frame_size(len(event.data), masked=self.protocol.side is SERVER)
        super().process_event(event)

    def send_data(self) -> None:
        for data in self.protocol.writes:
            if self._greeted:
                self.wire_out += len(data)
            # The first thing that either end writes is its half of the HTTP handshake.
            self._greeted = True
        super().send_data()


def _bind_late(transport: asyncio.BaseTransport, limit: int) -> None:
    """Keep what waits below the WebSocket short too: in TLS and in the kernel.

    A frame of guesses grows old while it queues. Left alone, TLS holds up to 64 KiB and the kernel
    several megabytes that were never sent: on a slow link, whole seconds of them.
    """
    ssl_protocol = getattr(transport, "_ssl_protocol", None)
    below = getattr(ssl_protocol, "_transport", None)
    if isinstance(below, asyncio.WriteTransport):
        below.set_write_buffer_limits(limit)
    sock = transport.get_extra_info("socket")
    if sock is None:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Bytes that the network has taken but not confirmed do not count: throughput is unharmed.
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, limit)


class Link:
    """An open connection. Every failure is an ``OutriderError``; a loss is a ``LinkError``.

    One task may receive while others send. Cancelling ``recv`` loses nothing.
    """

    def __init__(
        self, connection: MeteredConnection, peer: Peer, *, max_frame: int, tuning: Tuning
    ) -> None:
        self._connection = connection
        self._max_frame = max_frame
        self._send_timeout = tuning.send_timeout
        self.peer = peer

    def __repr__(self) -> str:
        return f"Link({self.peer}, in={self.bytes_in}, out={self.bytes_out})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def bytes_in(self) -> int:
        """Bytes received in frames since the connection opened, framing included."""
        return self._connection.wire_in

    @property
    def bytes_out(self) -> int:
        """Bytes sent in frames since the connection opened, framing included."""
        return self._connection.wire_out

    @property
    def unsent(self) -> int:
        """Bytes that this process still holds because the link has not taken them."""
        return self._connection.transport.get_write_buffer_size()

    @property
    def ping_rtt(self) -> float | None:
        """Seconds that the last answered ping took; None before the first one."""
        return self._connection.latency or None

    async def recv(self) -> bytes:
        """Give the next message. Raises ``LinkClosedError`` once the connection has ended.

        Receive all the time: behind a few unread messages, pings and goodbyes go unseen too.
        """
        try:
            message = await self._connection.recv()
        except ConnectionClosed as error:
            raise self._closed(error) from error
        if isinstance(message, str):
            raise RemoteProtocolError(f"{self.peer} sent text; only binary messages are allowed")
        return message

    async def send(self, message: bytes) -> None:
        """Send one message; return when so few bytes wait that the next one would leave at once.

        A peer that takes nothing for ``send_timeout`` is dropped, for its messages would pile up.
        """
        try:
            async with asyncio.timeout(self._send_timeout):
                await self._connection.send(message)
        except ConnectionClosed as error:
            raise self._closed(error) from error
        except TimeoutError as error:
            self.abort()
            raise LinkClosedError(
                f"{self.peer} took nothing for {self._send_timeout:g} s: the connection was dropped"
            ) from error

    async def ping(self, payload: bytes | None = None) -> float:
        """Measure one round trip, in seconds. A payload has 125 bytes at most, and is not shared
        with another ping under way."""
        try:
            return await (await self._connection.ping(payload))
        except ConnectionClosed as error:
            raise self._closed(error) from error

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Say goodbye and wait for the answer, up to the close timeout. Safe to call again."""
        short = reason.encode()[:_CLOSE_REASON_LIMIT].decode("utf-8", "ignore")
        await self._connection.close(code, short)

    def abort(self) -> None:
        """Drop the connection at once, without a word to the peer."""
        self._connection.transport.abort()

    async def wait_closed(self) -> None:
        """Wait until the connection has ended, for whatever reason."""
        await self._connection.wait_closed()

    def _closed(self, error: ConnectionClosed) -> Exception:
        return from_closed(error, str(self.peer), self._max_frame)
