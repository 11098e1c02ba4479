"""An open link: byte counts, late binding, and every way to end."""

from __future__ import annotations

import asyncio
import base64
import socket
import struct
from collections.abc import Awaitable, Callable

import pytest

from outrider.protocol.errors import LinkError, RemoteProtocolError
from outrider.protocol.packing import frame_size
from outrider.runtime.net.client import connect
from outrider.runtime.net.errors import LinkClosedError
from outrider.runtime.net.link import Link, Tuning
from outrider.runtime.net.server import serve
from outrider.runtime.net.tls import certificate_fingerprint, client_context, server_context

QUIET = Tuning(ping_interval=None)
UPGRADE = (
    "GET /v1/stream HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: outrider.v1\r\n"
    f"Sec-WebSocket-Key: {base64.b64encode(bytes(16)).decode()}\r\n\r\n"
)


async def echo(link: Link) -> None:
    while True:
        await link.send(await link.recv())


async def hold(link: Link) -> None:
    await link.wait_closed()


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


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536])
def test_both_ends_count_every_byte(size: int) -> None:
    async def scene(near: Link, far: Link) -> None:
        await near.send(bytes(size))
        assert await far.recv() == bytes(size)
        assert near.bytes_out == far.bytes_in == frame_size(size, masked=True)
        await far.send(bytes(size))
        assert await near.recv() == bytes(size)
        assert far.bytes_out == near.bytes_in == frame_size(size, masked=False)

    with_links(scene)


def test_pings_and_the_goodbye_are_counted() -> None:
    async def scene(near: Link, far: Link) -> None:
        assert near.ping_rtt is None
        assert 0 < await near.ping() < 5
        assert near.ping_rtt is not None
        assert near.bytes_out == far.bytes_in == 2 + 4 + 4
        assert near.bytes_in == far.bytes_out == 2 + 4
        await near.close(1000, "done")
        await far.wait_closed()
        assert near.bytes_out == far.bytes_in == 10 + 2 + 4 + 2 + 4
        assert near.bytes_in == far.bytes_out == 6 + 2 + 2 + 4

    with_links(scene)


def test_the_counts_are_the_bytes_on_the_wire() -> None:
    """What the server counts is what a raw socket sees: messages, a ping and a goodbye."""

    async def main() -> None:
        counted: list[tuple[int, int]] = []

        async def handler(link: Link) -> None:
            try:
                await echo(link)
            finally:
                counted.append((link.bytes_in, link.bytes_out))

        async with await serve(handler, tuning=QUIET) as server:
            reader, writer = await raw_client(server.port)
            sent = masked(2, bytes(8)) + masked(9, b"ping") + masked(2, bytes(200))
            for _ in range(350):
                sent += masked(2, bytes(200))
            writer.write(sent)
            received = await reader.readexactly(2 + 8 + 2 + 4 + 351 * (4 + 200))
            goodbye = masked(8, struct.pack("!H", 1000))
            writer.write(goodbye)
            sent += goodbye
            received += await reader.read()
            writer.close()
        assert counted == [(len(sent), len(received))]

    asyncio.run(main())


@pytest.mark.parametrize("secure", [False, True])
def test_a_sender_is_held_back_by_a_slow_link(secure: bool, make_certificate) -> None:
    """When nobody reads, little is taken: what is not sent yet can still be thought over."""
    made = make_certificate()
    block = bytes(1000)

    async def main() -> None:
        sent = 0
        stop = asyncio.Event()

        async def handler(link: Link) -> None:
            nonlocal sent
            try:
                while True:
                    await link.send(block)
                    sent += len(block)
            finally:
                stop.set()

        context = server_context(made.certfile, made.keyfile) if secure else None
        async with await serve(handler, context=context, tuning=QUIET) as server:
            plain = socket.socket()
            # A small window at the receiver is what a slow link looks like to the sender.
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            plain.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(plain, ("127.0.0.1", server.port))
            pinned = client_context(certificate_fingerprint(made.certfile)) if secure else None
            reader, writer = await asyncio.open_connection(
                sock=plain, ssl=pinned, limit=1024, server_hostname="x" if secure else None
            )
            writer.write(UPGRADE.encode())
            await reader.readuntil(b"\r\n\r\n")
            # TLS at the receiver would take in 256 KiB by itself: stop what is below it.
            below = writer.transport._ssl_protocol._transport if secure else writer.transport
            below.pause_reading()
            await asyncio.sleep(0.3)
            first = sent
            await asyncio.sleep(0.2)
            assert sent == first
            writer.transport.abort()
            await asyncio.wait_for(stop.wait(), 5)
        # The receiver's own small buffers are in it as well; without late binding it is megabytes.
        assert first < 60_000

    asyncio.run(main())


def test_a_peer_that_takes_nothing_is_dropped() -> None:
    async def main() -> None:
        caught: asyncio.Future[LinkError] = asyncio.get_running_loop().create_future()

        async def handler(link: Link) -> None:
            try:
                while True:
                    await link.send(bytes(100_000))
            except LinkError as error:
                caught.set_result(error)
                raise

        tuning = Tuning(ping_interval=None, send_timeout=0.3)
        async with await serve(handler, tuning=tuning) as server:
            _, writer = await raw_client(server.port)
            writer.transport.pause_reading()
            error = await asyncio.wait_for(caught, 10)
            writer.transport.abort()
        assert "took nothing for 0.3 s" in str(error)

    asyncio.run(main())


def test_a_message_that_is_too_large() -> None:
    """Both ends say so: the one that refused it, and the one that sent it."""

    async def scene(near: Link, far: Link) -> None:
        async def refuse() -> None:
            with pytest.raises(RemoteProtocolError, match="more than the 1000 bytes") as caught:
                await far.recv()
            assert caught.value.code == "too-large"

        async def send() -> None:
            await near.send(bytes(1001))
            with pytest.raises(LinkClosedError, match="refused a message as too large") as caught:
                await near.recv()
            assert caught.value.code == 1009
            assert not caught.value.clean

        await asyncio.gather(refuse(), send())

    with_links(scene, max_frame=1000)


def test_text_is_refused() -> None:
    async def main() -> None:
        async with await serve(echo, tuning=QUIET) as server:
            reader, writer = await raw_client(server.port)
            writer.write(masked(1, b"hello"))
            answer = await reader.readexactly(4)
            assert answer[0] == 0x88
            assert struct.unpack("!H", answer[2:])[0] == 1002
            writer.close()

    asyncio.run(main())


def test_bytes_that_are_no_frame(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with await serve(echo, tuning=QUIET) as server:
            reader, writer = await raw_client(server.port)
            writer.write(b"\xff" * 64)
            answer = await reader.readexactly(4)
            assert struct.unpack("!H", answer[2:])[0] == 1002
            writer.close()

    asyncio.run(main())
    assert "broke the WebSocket protocol" in caplog.text


def test_a_half_open_close() -> None:
    """The peer's side ends without a goodbye: a loss, told at once."""

    async def main() -> None:
        lost: asyncio.Future[LinkClosedError] = asyncio.get_running_loop().create_future()

        async def handler(link: Link) -> None:
            with pytest.raises(LinkClosedError, match="was lost") as caught:
                await link.recv()
            lost.set_result(caught.value)

        async with await serve(handler, tuning=QUIET) as server:
            _, writer = await raw_client(server.port)
            writer.write_eof()
            error = await asyncio.wait_for(lost, 5)
            assert error.code is None
            assert not error.clean
            writer.close()

    asyncio.run(main())


def test_a_reset() -> None:
    async def scene(near: Link, far: Link) -> None:
        near.abort()
        with pytest.raises(LinkError, match="was lost"):
            await far.recv()
        with pytest.raises(LinkError):
            await far.send(b"late")
        with pytest.raises(LinkError):
            await near.ping()

    with_links(scene)


@pytest.mark.parametrize(
    ("code", "reason", "says", "clean"),
    [
        (1000, "", "closed the connection", True),
        (1001, "going to bed", "is shutting down: going to bed", True),
        (1011, "out of memory", "with code 1011: out of memory", False),
        (4000, "ü" * 200, "with code 4000: ü", False),
    ],
)
def test_a_goodbye(code: int, reason: str, says: str, clean: bool) -> None:
    async def scene(near: Link, far: Link) -> None:
        async def leave() -> None:
            await far.close(code, reason)
            await far.close()

        async def stay() -> None:
            with pytest.raises(LinkClosedError, match=says) as caught:
                await near.recv()
            assert caught.value.code == code
            assert caught.value.clean is clean

        await asyncio.gather(leave(), stay())
        with pytest.raises(LinkClosedError, match="was closed here"):
            await far.recv()

    with_links(scene)


def test_a_peer_that_answers_no_ping() -> None:
    async def main() -> None:
        lost: asyncio.Future[LinkError] = asyncio.get_running_loop().create_future()

        async def handler(link: Link) -> None:
            with pytest.raises(LinkClosedError, match="no longer answers") as caught:
                await link.recv()
            lost.set_result(caught.value)

        tuning = Tuning(ping_interval=0.1, ping_timeout=0.1, close_timeout=0.1)
        async with await serve(handler, tuning=tuning) as server:
            _, writer = await raw_client(server.port)
            await asyncio.wait_for(lost, 5)
            writer.close()

    asyncio.run(main())


def test_a_cancelled_receive_loses_nothing() -> None:
    async def scene(near: Link, far: Link) -> None:
        for number in range(20):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(near.recv(), 0.005)
            await far.send(bytes([number]))
            assert await near.recv() == bytes([number])

    with_links(scene)


def test_the_peer_is_named() -> None:
    async def scene(near: Link, far: Link) -> None:
        assert str(far.peer).startswith("127.0.0.1:")
        assert near.peer.address in repr(near)
        assert near.unsent == 0

    with_links(scene)
