"""Connections over a shaped road: bytes wait in a queue until their pipe lets them out."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from outrider.simulator.links import PACKET, Flow, Pipe

SLACK = 0.0005
"""What is due within so many seconds is due now: half of what a timer may be late."""

GRAIN = 0.001
"""Seconds of sending that are forwarded in one piece, where that is more than a packet."""

CHUNK = 65_536
"""The most bytes read at once."""

RECEIVE_BUFFER = 8192
SEGMENT = 1448


@dataclass(slots=True)
class Counters:
    """Bytes delivered each way; connections open now, accepted and refused since the start."""

    bytes_up: int = 0
    bytes_down: int = 0
    connections: int = 0
    accepted: int = 0
    refused: int = 0


@dataclass(slots=True, kw_only=True)
class Road:
    """What all connections share: both pipes, where they lead, and the bounds.

    ``held_until``: nothing is delivered before, on the clock of the event loop. ``max_held``:
    bytes in one direction of one connection, queue and delay line together.
    """

    up: Pipe
    down: Pipe
    to: tuple[str, int]
    max_connections: int
    max_held: int
    held_until: float = 0.0
    counters: Counters = field(default_factory=Counters)
    connections: set[Connection] = field(default_factory=set)

    def admit(self, connection: Connection) -> bool:
        """Take a connection in, if there is room; those that only swallow make room."""
        if len(self.connections) >= self.max_connections:
            for each in [each for each in self.connections if each.dead][:1]:
                each.abort()
                self.connections.discard(each)
        if len(self.connections) >= self.max_connections:
            self.counters.refused += 1
            return False
        self.connections.add(connection)
        self.counters.accepted += 1
        self.counters.connections = len(self.connections)
        return True

    def forget(self, connection: Connection) -> None:
        """A connection has ended on both sides."""
        self.connections.discard(connection)
        self.counters.connections = len(self.connections)


class Connection:
    """One edge's connection and the one made for it upstream."""

    def __init__(self, road: Road) -> None:
        self.road = road
        self.dead = False
        self.closing = False
        self.edge = _Side(self)
        self.cloud = _Side(self)
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """The edge has connected."""
        if self.road.admit(self):
            self._task = asyncio.get_running_loop().create_task(self._connect())
        else:
            self.edge.abort()

    async def _connect(self) -> None:
        road, loop = self.road, asyncio.get_running_loop()
        # On a real link the edge would not be connected before a round trip; here its kernel is,
        # at once, so its first bytes wait that long.
        back = road.up.deliver_at(0, loop.time(), Flow())
        await asyncio.sleep(max(back, road.held_until) - loop.time())
        back = road.down.deliver_at(0, loop.time(), Flow())
        await asyncio.sleep(max(back, road.held_until) - loop.time())
        sock = small_socket(road.to[0])
        try:
            await loop.sock_connect(sock, road.to)
            await loop.create_connection(lambda: self.cloud, sock=sock)
        except BaseException as error:
            sock.close()
            if not isinstance(error, OSError):
                raise  # cancelled: the edge has gone
            road.counters.refused += 1
            self.abort()
            return
        if self.edge.transport is None:
            self.cloud.abort()
            return
        self.edge.sends = _Way(road, road.up, self.edge, self.cloud, self._count_up)
        self.cloud.sends = _Way(road, road.down, self.cloud, self.edge, self._count_down)
        self.edge.receives, self.cloud.receives = self.cloud.sends, self.edge.sends
        self.wake()

    def _count_up(self, size: int) -> None:
        self.road.counters.bytes_up += size

    def _count_down(self, size: int) -> None:
        self.road.counters.bytes_down += size

    def wake(self) -> None:
        """Look again at what may be read and what is due."""
        if self.dead:
            self.deaden()
            return
        for way in (self.edge.sends, self.cloud.sends):
            if way is not None:
                way.wake()

    def deaden(self) -> None:
        """From now on swallow everything.

        A side that has said that it sends no more can go unnoticed, as on a real link: it is kept
        until another connection needs the room.
        """
        self.dead = True
        for way in (self.edge.sends, self.cloud.sends):
            if way is not None:
                way.clear()
        for side in (self.edge, self.cloud):
            side.read_on()

    def abort(self) -> None:
        """Reset both sides."""
        self.closing = True
        if self._task is not None:
            self._task.cancel()
        self.edge.abort()
        self.cloud.abort()
        self.check()

    def check(self) -> None:
        """Clear up when both sides have gone, or nothing is left to say on either."""
        ways = (self.edge.sends, self.cloud.sends)
        if all(way is not None and way.ended for way in ways):
            self.closing = True
            self.edge.close()
            self.cloud.close()
        if self.edge.transport is None and self.cloud.transport is None:
            for way in ways:
                if way is not None:
                    way.clear()
            self.road.forget(self)


class _Side(asyncio.BufferedProtocol):
    """One socket: what it sends goes into one way, what it receives comes out of the other."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._buffer = memoryview(bytearray(CHUNK))
        self.transport: asyncio.Transport | None = None
        self.sends: _Way | None = None
        self.receives: _Way | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.pause_reading()
        transport.set_write_buffer_limits(CHUNK)
        if self is self.connection.edge:
            self.connection.begin()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._buffer[: self.sends.take] if self.sends else self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self.sends is not None and not self.connection.dead:
            self.sends.push(bytes(self._buffer[:nbytes]))

    def eof_received(self) -> bool:
        if self.sends is not None and not self.connection.dead:
            self.sends.push(b"")
            return True
        return False

    def pause_writing(self) -> None:
        if self.receives is not None:
            self.receives.block(True)

    def resume_writing(self) -> None:
        if self.receives is not None:
            self.receives.block(False)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.transport = None
        if self.sends is None:
            self.connection.abort()  # before the other side was there
        elif not self.connection.dead and not self.connection.closing:
            self.sends.push(None)
        self.connection.check()

    def read_on(self) -> None:
        """Read, if it was not to be read from."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def stop_reading(self) -> None:
        """Leave what comes in the kernel, until that is full as well."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def close(self) -> None:
        """Close when all is written."""
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Reset, so that the other end learns of it at once."""
        if self.transport is not None:
            sock = self.transport.get_extra_info("socket")
            with suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()


class _Way:
    """One direction of one connection: a queue that is emptied as its pipe tells.

    In it are bytes, ``b""`` for the end of what a socket sends, and None for a lost connection.
    """

    def __init__(
        self, road: Road, pipe: Pipe, source: _Side, sink: _Side, count: Callable[[int], None]
    ) -> None:
        self._road, self._pipe = road, pipe
        self._source, self._sink = source, sink
        self._count = count
        self._loop = asyncio.get_running_loop()
        self._flow = Flow()
        self._items: deque[tuple[float, bytes | None]] = deque()
        self._held = 0
        self._blocked = False
        self._timer: asyncio.TimerHandle | None = None
        self._gate_timer: asyncio.TimerHandle | None = None
        self._finished = False
        self.ended = False

    @property
    def take(self) -> int:
        """The most bytes to read now; at least 1."""
        direction = self._pipe.direction
        packet = PACKET - direction.overhead
        rate = direction.mean_rate
        most = CHUNK if rate is None else max(packet, min(CHUNK, int(rate * GRAIN)))
        return max(1, min(most, max(packet, self._pipe.room(self._loop.time()))))

    def push(self, data: bytes | None) -> None:
        """Put something on the way; it is written when it is due."""
        if self._finished:
            return
        now = self._loop.time()
        self._items.append((self._pipe.deliver_at(len(data or b""), now, self._flow), data))
        self._held += len(data or b"")
        if data:
            self._gate(now)
        else:
            self._finished = data is None
        if len(self._items) == 1:
            self._run()

    def wake(self) -> None:
        """Something outside has changed."""
        self._gate(self._loop.time())
        self._run()

    def block(self, blocked: bool) -> None:
        """Whether the socket at the far end takes no more.

        What that leads to comes with the loop's next round: the transport tells it in the middle of
        its own writing, and one that is reset there reports its end twice (CPython 3.11).
        """
        self._blocked = blocked
        self._loop.call_soon(self._run)

    def clear(self) -> None:
        """Forget what is on the way."""
        self._items.clear()
        self._held = 0
        for timer in (self._timer, self._gate_timer):
            if timer is not None:
                timer.cancel()

    def _gate(self, now: float) -> None:
        """Read from the source, or not, or again later."""
        if self._gate_timer is not None:
            self._gate_timer.cancel()
            self._gate_timer = None
        if self._held >= self._road.max_held:
            self._source.stop_reading()  # what leaves asks again
            return
        packet = PACKET - self._pipe.direction.overhead
        when = self._pipe.offer(packet, now)
        if when <= now + SLACK:
            self._source.read_on()
            return
        self._source.stop_reading()
        self._gate_timer = self._loop.call_at(when - SLACK, self.wake)

    def _run(self) -> None:
        """Write what is due, and come back for the rest."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._blocked or not self._items:
            return
        due: list[bytes] = []
        limit = self._loop.time() + SLACK
        full = self._held >= self._road.max_held
        while self._items and max(self._items[0][0], self._road.held_until) <= limit:
            data = self._items.popleft()[1]
            if not data:
                self._write(due)
                self._end(data)
                return
            due.append(data)
        self._write(due)
        if self._items and not self._blocked:
            when = max(self._items[0][0], self._road.held_until)
            self._timer = self._loop.call_at(when - SLACK, self._run)
        if full:
            self._gate(self._loop.time())

    def _write(self, due: list[bytes]) -> None:
        data = b"".join(due)
        self._held -= len(data)
        due.clear()
        if data and self._sink.transport is not None:
            self._count(len(data))
            self._sink.transport.write(data)

    def _end(self, what: bytes | None) -> None:
        self.ended = True
        transport = self._sink.transport
        if what is None:
            self._sink.abort()
        elif transport is not None and not transport.is_closing():
            try:
                transport.write_eof()
            except OSError:  # reset by its peer, unnoticed while it was not read from
                self._sink.abort()
        if self._items:
            self._run()
        self._source.connection.check()


def small_socket(host: str) -> socket.socket:
    """A socket whose kernel takes little in advance: what waits is to wait where it is counted."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol by its name: asyncio turns Nagle's delay off only where it reads TCP there.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
    # Loopback has segments of 64 KiB: a window smaller than one opens in fits and starts.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT)
    return sock
