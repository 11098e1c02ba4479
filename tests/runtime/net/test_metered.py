"""Messages that come straight from the socket, and short frames by the short way."""

from __future__ import annotations

import asyncio
import base64
import struct
from collections.abc import Awaitable, Callable

import pytest

from outrider.runtime.net.client import connect
from outrider.runtime.net.errors import LinkClosedError
from outrider.runtime.net.link import Link, Tuning
from outrider.runtime.net.server import serve

QUIET = Tuning(ping_interval=None)
UPGRADE = (
    "GET /v1/stream HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: outrider.v1\r\n"
    f"Sec-WebSocket-Key: {base64.b64encode(bytes(16)).decode()}\r\n\r\n"
)


def with_links(
    scene: Callable[[Link, Link], Awaitable[None]], tuning: Tuning = QUIET, **options: int
) -> None:
    """Run a scene with both ends of one connection: the client's, then the server's."""

    async def main() -> None:
        far: asyncio.Future[Link] = asyncio.get_running_loop().create_future()

        async def handler(link: Link) -> None:
            far.set_result(link)
            await link.wait_closed()

        async with await serve(handler, tuning=tuning, **options) as server:
            near = await connect(server.url, tuning=tuning)
            async with asyncio.timeout(20):
                await scene(near, await far)
            near.abort()

    asyncio.run(main())


async def raw_client(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a WebSocket by hand, to see and to send every byte."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(UPGRADE.encode())
    assert b"101 Switching" in await reader.readuntil(b"\r\n\r\n")
    return reader, writer


def masked(opcode: int, payload: bytes) -> bytes:
    """A client's frame, with a mask of zeros."""
    size = len(payload)
    if size < 126:
        head = bytes([0x80 | opcode, 0x80 | size])
    else:
        head = struct.pack("!BBH", 0x80 | opcode, 0x80 | 126, size)
    return head + bytes(4) + payload


@pytest.mark.parametrize("size", [0, 1, 7, 125, 126, 70_000])
def test_posted_messages_are_taken_from_the_socket(size: int) -> None:
    """Both ways of a message, short and long, next to each other: in order and counted."""

    async def scene(near: Link, far: Link) -> None:
        for one, other in ((near, far), (far, near)):
            sent = [bytes([number]) * size for number in range(50)]
            taken: list[bytes] = []

            def take(message: bytes, taken: list[bytes] = taken) -> bool:
                taken.append(message)
                return len(taken) < 50

            receiving = asyncio.create_task(other.receive(take))
            for number, message in enumerate(sent):
                if number % 3 and one.clear:
                    one.post(message)
                else:
                    await one.send(message)
                if number % 7 == 0:
                    await one.ping()
            await receiving
            assert taken == sent
            assert one.bytes_out == other.bytes_in

    with_links(scene)


@pytest.mark.parametrize("piece", [1, 2, 3, 5, 8, 13, 1000])
def test_frames_that_come_in_pieces(piece: int) -> None:
    """Whatever TCP makes of them, whole and fragmented messages and pings come out as sent."""

    async def main() -> None:
        taken: asyncio.Queue[bytes] = asyncio.Queue()
        counted: list[int] = []

        async def handler(link: Link) -> None:
            def take(message: bytes) -> bool:
                taken.put_nowait(message)
                return message != b"end"

            await link.receive(take)
            counted.append(link.bytes_in)

        def fragment(opcode: int, payload: bytes, fin: bool) -> bytes:
            frame = masked(opcode, payload)
            return bytes([frame[0] if fin else frame[0] & 0x7F]) + frame[1:]

        wanted, stream = [], b""
        for number in range(12):
            short, long = bytes([number]) * number, bytes([number]) * 300
            stream += masked(2, short) + masked(9, b"?") + masked(2, long)
            stream += fragment(2, b"be", False) + masked(9, b"!") + fragment(0, b"gun", True)
            wanted += [short, long, b"begun"]
        stream += masked(2, b"end")
        async with await serve(handler, tuning=QUIET) as server:
            _, writer = await raw_client(server.port)
            for start in range(0, len(stream), piece):
                writer.write(stream[start : start + piece])
                await asyncio.sleep(0)
            async with asyncio.timeout(10):
                found = [await taken.get() for _ in range(len(wanted) + 1)]
            writer.close()
        assert found == [*wanted, b"end"]
        assert counted == [len(stream)]

    asyncio.run(main())


def test_a_message_in_the_midst_of_another_is_refused() -> None:
    """Also where it is short and alone: it is the library's to say."""

    async def main() -> None:
        async def handler(link: Link) -> None:
            await link.receive(lambda _: True)

        async with await serve(handler, tuning=QUIET) as server:
            reader, writer = await raw_client(server.port)
            begun = masked(2, b"be")
            writer.write(bytes([begun[0] & 0x7F]) + begun[1:])
            await asyncio.sleep(0.05)
            writer.write(masked(2, b"gun"))
            answer = await reader.readexactly(4)
            assert struct.unpack("!H", answer[2:])[0] == 1002
            writer.close()

    asyncio.run(main())


def test_receiving_ends_when_enough_was_taken_or_the_link_is_lost() -> None:
    async def scene(near: Link, far: Link) -> None:
        taken: list[bytes] = []

        def take(message: bytes) -> bool:
            taken.append(message)
            return message != b"last"

        for message in (b"first", b"last", b"later"):
            await near.send(message)
        await far.receive(take)
        assert taken == [b"first", b"last"]
        receiving = asyncio.create_task(near.receive(lambda _: True))
        await asyncio.sleep(0.01)
        far.abort()
        with pytest.raises(LinkClosedError, match="was lost"):
            await receiving
        assert not near.clear

    with_links(scene)


@pytest.mark.parametrize("from_client", [True, False])
def test_messages_that_are_due_at_once_leave_in_one_go(
    monkeypatch: pytest.MonkeyPatch, *, from_client: bool
) -> None:
    sent = [b"a" * 14, b"", b"b" * 125, b"c" * 126, b"d", b"e" * 9]

    async def scene(near: Link, far: Link) -> None:
        one, other = (near, far) if from_client else (far, near)
        writes: list[int] = []
        transport = one._connection.transport
        write = transport.write
        monkeypatch.setattr(
            transport, "write", lambda data: (writes.append(len(data)), write(data))
        )
        before = one.bytes_out, other.bytes_in
        one.post(*sent)
        assert [await other.recv() for _ in sent] == sent
        assert len(writes) == 3  # the short ones before the long one, that, and those after it
        assert one.bytes_out - before[0] == sum(writes) == other.bytes_in - before[1]

    with_links(scene)
