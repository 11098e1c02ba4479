"""What waits to be sent on one connection, pulled one WebSocket message at a time.

Late binding: a driver pulls only when the link can take more, so the order is decided at the last
moment. Hot frames come from the machines themselves; here wait the cold messages: short ones
(*control*) and long ones (*bulk*), which leave in parts so that hot frames can pass between.
"""

from __future__ import annotations

from collections import Counter, deque

from outrider.protocol.codec import Codec
from outrider.protocol.errors import DecodeError
from outrider.protocol.messages import Message, Part

PART_BYTES = 16_384
"""Largest piece of a long message; a slow link asks for smaller ones."""

CONTROL_BYTES = 1024
"""A cold message up to this size is sent whole and before any bulk."""


class Outbox:
    """Cold messages of one connection in order, and whose hot frames must wait for them."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._control: deque[tuple[int | None, bytes]] = deque()
        self._bulk: deque[tuple[int | None, bytes]] = deque()
        self._offset = 0
        self._waiting: Counter[int | None] = Counter()
        self._in_bulk: Counter[int | None] = Counter()

    def put(self, message: Message, handle: int | None = None) -> None:
        """Queue a message. One session's cold messages keep their order, long or short."""
        data = self._codec.encode(message)
        self._waiting[handle] += 1
        if len(data) <= CONTROL_BYTES and not self._in_bulk[handle]:
            self._control.append((handle, data))
        else:
            self._in_bulk[handle] += 1
            self._bulk.append((handle, data))

    def blocks(self, handle: int) -> bool:
        """A message of this session is still here: its hot frames must not overtake it."""
        return self._waiting[handle] > 0

    def next_control(self) -> bytes | None:
        """The next short message, if any."""
        if not self._control:
            return None
        handle, data = self._control.popleft()
        self._waiting[handle] -= 1
        return data

    def next_bulk(self, part_bytes: int = PART_BYTES) -> bytes | None:
        """The next long message or the next part of it, if any."""
        if not self._bulk:
            return None
        handle, data = self._bulk[0]
        if self._offset == 0 and len(data) <= part_bytes:
            piece = data
            self._offset = len(data)
        else:
            end = min(len(data), self._offset + part_bytes)
            piece = self._codec.encode(Part(last=end == len(data), data=data[self._offset : end]))
            self._offset = end
        if self._offset == len(data):
            self._bulk.popleft()
            self._offset = 0
            self._waiting[handle] -= 1
            self._in_bulk[handle] -= 1
        return piece

    def __bool__(self) -> bool:
        return bool(self._control or self._bulk)

    def close(self, goodbye: Message) -> None:
        """This message is the last: short ones that wait leave before it, long ones never."""
        self._bulk.clear()
        self._in_bulk.clear()
        self.put(goodbye)


class Assembler:
    """Puts parts together again, within the connection's limit on a message."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._held = bytearray()

    def receive(self, data: bytes) -> Message | None:
        """The message that ``data`` is or completes; None for a part with more to come.

        Raises:
            DecodeError: malformed bytes, or parts that add up to more than the limit.
        """
        message = self._codec.decode(data)
        if not isinstance(message, Part):
            return message
        if len(self._held) + len(message.data) > self._codec.max_message:
            raise DecodeError(
                f"parts of more than {self._codec.max_message} bytes in all", code="size"
            )
        self._held += message.data
        if not message.last:
            return None
        whole, self._held = bytes(self._held), bytearray()
        message = self._codec.decode(whole)
        if isinstance(message, Part):
            raise DecodeError("a part inside a part")
        return message
