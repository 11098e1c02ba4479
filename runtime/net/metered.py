"""A WebSocket connection that counts its bytes, and moves short messages without detours.

The library's own way for a frame costs little, but touches much memory: right after a model has
evicted all of it from the processor's caches, 0.05 ms each time it is received and again when it is
sent. So frames of up to 125 bytes, the kind that verify rounds are made of, are written here, and
read here where one comes whole and nothing else is under way. All else is the library's.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

from websockets.asyncio.connection import Connection
from websockets.frames import Frame, Opcode
from websockets.protocol import OPEN, SERVER, Event

from outrider.protocol.packing import frame_size

WRITE_LIMIT = 4096

_WHOLE_BINARY = 0x80 | Opcode.BINARY  # a frame's first byte; RFC 6455, section 5.2
_MASKED = 0x80  # in its second byte, beside the length
_SHORT = 125
_DATA = (Opcode.BINARY, Opcode.TEXT, Opcode.CONT)
_NEVER = 1 << 62


class MeteredConnection(Connection):
    """Counts every byte of every frame, control frames included; not the HTTP handshake.

    ``take`` gets a message straight from the socket, in the stead of ``recv()``: of those that came
    together one at most. The others queue, lest they starve other connections.
    """

    wire_in = 0
    wire_out = 0
    take: Callable[[bytes], None] | None = None
    _greeted = False
    _taken = False
    _behind: int | None = None  # bytes of a frame that is not complete; None: nothing came yet
    _fragmented = False  # a message is not complete

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        bind_late(transport, self.write_limit_high or WRITE_LIMIT)

    # --- in ---------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._taken = False
        if self._behind is None:
            # Nearly always just the handshake. Otherwise frames have begun who knows where in it,
            # and this connection goes without the short way.
            self._behind = 0 if _is_handshake(data) else _NEVER
        elif self._behind == 0 and self._short(data):
            return
        else:
            self._behind += len(data)
        super().data_received(data)

    def _short(self, data: bytes) -> bool:
        """Whether this was one whole short message, with nothing before it that is unfinished."""
        masked = self.protocol.side is SERVER
        size = len(data) - (6 if masked else 2)
        if (
            not 0 <= size <= _SHORT
            or data[0] != _WHOLE_BINARY
            or data[1] != (size | _MASKED if masked else size)
            or self.take is None
            or self.recv_messages.frames
            or self._fragmented
            or self.protocol.state is not OPEN
        ):
            return False
        self.wire_in += len(data)
        self.take(_masked(data[6:], data[2:6]) if masked else data[2:])
        return True

    def process_event(self, event: Event) -> None:
        if isinstance(event, Frame):
            size = frame_size(len(event.data), masked=self.protocol.side is SERVER)
            self.wire_in += size
            if self._behind is not None:
                self._behind -= size
            if event.opcode in _DATA:
                self._fragmented = not event.fin
            if self.take is not None and not self._taken and self._whole_and_next(event):
                self._taken = True
                self.take(bytes(event.data))
                return
        super().process_event(event)

    def _whole_and_next(self, frame: Frame) -> bool:
        """It is a message of its own, and none before it waits to be received."""
        return frame.opcode is Opcode.BINARY and frame.fin and not self.recv_messages.frames

    # --- out --------------------------------------------------------------------------------

    def post(self, *messages: bytes) -> None:
        """Write messages, short ones in one go. Only while the connection is open."""
        short = bytearray()
        for message in messages:
            if len(message) <= _SHORT:
                short += self._frame(message)
                continue
            self._write(short)
            short = bytearray()
            self.protocol.send_binary(message)
            self.send_data()
        self._write(short)

    def _frame(self, message: bytes) -> bytes:
        size = len(message)
        if self.protocol.side is SERVER:
            return bytes((_WHOLE_BINARY, size)) + message
        mask = os.urandom(4)
        return bytes((_WHOLE_BINARY, size | _MASKED)) + mask + _masked(message, mask)

    def _write(self, frames: bytearray) -> None:
        if frames:
            self.wire_out += len(frames)
            self.transport.write(bytes(frames))

    def send_data(self) -> None:
        for data in self.protocol.writes:
            if self._greeted:
                self.wire_out += len(data)
            # The first thing that either end writes is its half of the HTTP handshake.
            self._greeted = True
        super().send_data()


def _is_handshake(data: bytes) -> bool:
    """These are the HTTP headers that a connection begins with, and nothing else."""
    end = b"\r\n\r\n"
    return data[:4] in (b"GET ", b"HTTP") and data.find(end) == len(data) - len(end)


def _masked(data: bytes, mask: bytes) -> bytes:
    """RFC 6455, section 5.3, for up to 125 bytes; masking again unmasks."""
    size = len(data)
    key = (mask * 32)[:size]
    return (int.from_bytes(data, "big") ^ int.from_bytes(key, "big")).to_bytes(size, "big")


def bind_late(transport: asyncio.BaseTransport, limit: int) -> None:
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
