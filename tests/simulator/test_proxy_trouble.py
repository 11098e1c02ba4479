"""Many connections and all kinds of trouble at once: what arrives is always what was sent."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable
from typing import Any

import pytest

from outrider.simulator import profiles
from outrider.simulator.proxy import Proxy

DATA = random.Random(9).randbytes(200_000)
SECONDS = 1.5


class Town:
    """Users who send and read back through one proxy, while somebody breaks it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.wrong: list[Any] = []
        self.whole = 0
        self.cut = 0

    async def run(self) -> Proxy:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: self.wrong.append(context))
        self.end = loop.time() + SECONDS
        upstream = await asyncio.start_server(self.echo, "127.0.0.1", 0)
        to = upstream.sockets[0].getsockname()
        async with upstream, Proxy(profiles.link("lan"), to, max_connections=6) as proxy:
            await asyncio.gather(*(self.user(proxy) for _ in range(8)), self.trouble(proxy))
            proxy.drop()
            await asyncio.sleep(0.1)
        return proxy

    async def echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(self.rng.choice((10, 1000, 65_536))):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        writer.close()

    async def user(self, proxy: Proxy) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < self.end:
            size = self.rng.choice((0, 1, 500, 20_000, len(DATA)))
            try:
                async with asyncio.timeout(1):
                    got = await self.talk(proxy.port, DATA[:size])
            except (OSError, TimeoutError):
                self.cut += 1
                await asyncio.sleep(0.02)
                continue
            self.whole += got == size

    async def talk(self, port: int, data: bytes) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        async def send() -> None:
            writer.write(data)
            await writer.drain()
            if self.rng.random() < 0.1:
                writer.transport.abort()
            else:
                writer.write_eof()

        sending = asyncio.create_task(send())
        try:
            got = 0
            while part := await reader.read(65_536):
                if part != data[got : got + len(part)]:
                    self.wrong.append("what came back is not what was sent")
                got += len(part)
            await sending
            return got
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            writer.transport.abort()

    async def trouble(self, proxy: Proxy) -> None:
        near = ("loopback", "lan", "wifi", "5g", "starlink", "lte")
        while asyncio.get_running_loop().time() < self.end:
            await asyncio.sleep(self.rng.random() * 0.2)
            what = self.rng.random()
            if what < 0.5:
                proxy.change(profiles.link(self.rng.choice(near)))
            elif what < 0.7:
                proxy.stall(self.rng.random() * 0.1)
            elif what < 0.85:
                proxy.drop()
            else:
                proxy.half_open()


@pytest.mark.parametrize("seed", [1, 2])
def test_trouble_of_all_kinds_at_once(seed: int) -> None:
    town = Town(seed)
    proxy = asyncio.run(town.run())
    assert town.wrong == []
    assert town.whole > 0
    assert town.cut > 0
    assert proxy.counters.connections == 0


async def wait_for(what: Callable[[], object]) -> None:
    while not what():
        await asyncio.sleep(0.01)


async def reset_behind_what_was_not_taken(wrong: list[Any]) -> None:
    """An edge sends more than the cloud takes and resets; then the cloud takes it."""
    asyncio.get_running_loop().set_exception_handler(lambda _loop, told: wrong.append(told))
    arrived: asyncio.Queue[asyncio.StreamReader] = asyncio.Queue()
    upstream = await asyncio.start_server(
        lambda reader, _writer: arrived.put_nowait(reader), "127.0.0.1", 0
    )
    to = upstream.sockets[0].getsockname()
    async with upstream, Proxy(profiles.link("loopback"), to) as proxy, asyncio.timeout(30):
        _, near = await asyncio.open_connection("127.0.0.1", proxy.port)
        away = await arrived.get()
        away._transport.pause_reading()  # type: ignore[attr-defined]
        near.write(bytes(2_000_000))
        (connection,) = proxy._road.connections
        await wait_for(lambda: connection.edge.sends and connection.edge.sends._blocked)
        await wait_for(lambda: not near.transport.get_write_buffer_size())
        sock = near.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        near.transport.abort()
        await wait_for(lambda: connection.edge.transport is None)
        away._transport.resume_reading()  # type: ignore[attr-defined]
        with pytest.raises(ConnectionResetError):
            await away.read()
        await wait_for(lambda: proxy.counters.connections == 0)


def test_a_reset_in_the_middle_of_a_write() -> None:
    """It is due while the transport writes what was due before; which must not end twice."""
    wrong: list[Any] = []
    asyncio.run(reset_behind_what_was_not_taken(wrong))
    assert wrong == []


async def delays() -> list[int]:
    """Of the two sockets of a proxy: whether small writes leave at once."""
    upstream = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    to = upstream.sockets[0].getsockname()
    async with upstream, Proxy(profiles.link("loopback"), to) as proxy, asyncio.timeout(30):
        await asyncio.open_connection("127.0.0.1", proxy.port)
        await wait_for(lambda: proxy._road.connections)
        (connection,) = proxy._road.connections
        await wait_for(lambda: connection.cloud.transport)
        return [
            side.transport.get_extra_info("socket").getsockopt(
                socket.IPPROTO_TCP, socket.TCP_NODELAY
            )
            for side in (connection.edge, connection.cloud)
            if side.transport is not None
        ]


def test_small_messages_do_not_wait_for_each_other() -> None:
    """With Nagle's algorithm the second of two would wait 40 ms for the first one's receipt."""
    assert all(asyncio.run(delays()))
