"""One open WebSocket, whichever end this is: binary messages, exact byte counts, late binding."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from websockets.exceptions import ConnectionClosed
from websockets.protocol import OPEN

from outrider.protocol.errors import RemoteProtocolError
from outrider.runtime.net.address import is_loopback
from outrider.runtime.net.errors import LinkClosedError, from_closed
from outrider.runtime.net.metered import WRITE_LIMIT, MeteredConnection

MAX_FRAME = 1 << 20
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


class Link:
    """An open connection. Every failure is an ``OutriderError``; a loss is a ``LinkError``.

    One task may receive while others send. Cancelling ``recv`` or ``receive`` loses nothing.
    """

    def __init__(
        self, connection: MeteredConnection, peer: Peer, *, max_frame: int, tuning: Tuning
    ) -> None:
        self._connection = connection
        self._max_frame = max_frame
        self._send_timeout = tuning.send_timeout
        self.peer = peer
        address = connection.remote_address
        self.near = isinstance(address, tuple) and is_loopback(address[0])
        """The peer is on this machine."""

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

    async def receive(self, take: Callable[[bytes], bool]) -> None:
        """Give every message to ``take`` until that returns False. Raises as :meth:`recv`.

        Where it can, it calls from the socket's own callback: a message that somebody waits for
        does not wait for a task to wake up. So ``take`` must not raise.
        """
        enough: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def give(message: bytes) -> None:
            if not enough.done() and not take(message):
                enough.set_result(None)

        async def queued() -> None:
            while not enough.done():
                give(await self.recv())
                await asyncio.sleep(0)  # messages that wait in a row must not starve the others

        queue = asyncio.ensure_future(queued())
        self._connection.take = give
        try:
            await asyncio.wait({queue, enough}, return_when=asyncio.FIRST_COMPLETED)
            if queue.done():
                queue.result()
        finally:
            self._connection.take = None
            queue.cancel()
            await asyncio.gather(queue, return_exceptions=True)

    @property
    def clear(self) -> bool:
        """Nothing waits on this machine: a message would leave at once (:meth:`post`)."""
        connection = self._connection
        return connection.protocol.state is OPEN and not self.unsent

    def post(self, *messages: bytes) -> None:
        """Send messages without waiting, on a link that is :attr:`clear`: short ones together."""
        self._connection.post(*messages)

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
