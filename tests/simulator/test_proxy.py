"""The real proxy over real sockets. Other work on the machine only ever makes things later."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import socket
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from outrider.runtime.net import client, server
from outrider.runtime.net.errors import LinkClosedError
from outrider.runtime.net.link import Link as NetLink
from outrider.runtime.net.link import Tuning
from outrider.simulator import profiles, proxy, shaping
from outrider.simulator.links import Direction, Link
from outrider.simulator.proxy import Proxy

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
NEAR = Link(name="near", up=Direction(), down=Direction())


def way(**settings: float) -> Link:
    """A link with the same settings both ways, and no packet headers."""
    direction = Direction(overhead=0, **settings)  # type: ignore[arg-type]
    return Link(name="invented", up=direction, down=direction)


@dataclass
class Far:
    """A server behind a proxy, and both ends of what was connected to it."""

    proxy: Proxy
    arrived: asyncio.Queue[Streams] = field(default_factory=asyncio.Queue)

    async def open(self) -> tuple[Streams, Streams]:
        """Connect through the proxy; gives both ends."""
        near = await asyncio.open_connection("127.0.0.1", self.proxy.port)
        return near, await self.arrived.get()


def with_proxy(
    link: Link,
    scene: Callable[[Far], Awaitable[None]],
    *,
    max_connections: int = 64,
    max_held: int = proxy.MAX_HELD,
) -> None:
    """Run a scene with a proxy to a server that does nothing by itself."""

    async def main() -> None:
        bounds = {"max_connections": max_connections, "max_held": max_held}
        async with far_end(link, bounds) as far, asyncio.timeout(25):
            await scene(far)

    asyncio.run(main())


@asynccontextmanager
async def far_end(link: Link, bounds: dict[str, int]) -> AsyncIterator[Far]:
    far: Far

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far.arrived.put_nowait((reader, writer))

    upstream = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = upstream.sockets[0].getsockname()[1]
    async with Proxy(link, ("127.0.0.1", port), **bounds) as proxy:  # type: ignore[arg-type]
        far = Far(proxy)
        try:
            yield far
        finally:
            upstream.close()


async def round_trip(near: Streams, far: Streams, size: int = 20) -> float:
    """Seconds for a message there and one back."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    near[1].write(bytes(size))
    await far[0].readexactly(size)
    far[1].write(bytes(size))
    await near[0].readexactly(size)
    return loop.time() - began


class TestTiming:
    @pytest.mark.parametrize(("name", "trips"), [("lan", 60), ("lte", 25)])
    def test_round_trips(self, name: str, trips: int) -> None:
        async def scene(far: Far) -> None:
            near, away = await far.open()
            times = [await round_trip(near, away) for _ in range(trips)]
            expected = profiles.profile(name).rtt
            # Jitter is above 2 * delay; timers may be early by half a millisecond each way.
            least = expected - 4 * profiles.link(name).up.jitter
            assert min(times) > least - 2 * shaping.SLACK - 0.0002
            # Two sockets more than without it, and a thread that has to be woken.
            assert min(times) < expected * 1.1 + 0.001
            assert statistics.median(times) < expected * 1.25 + 0.02

        with_proxy(profiles.link(name), scene)

    def test_loopback_only_forwards(self) -> None:
        async def scene(far: Far) -> None:
            near, away = await far.open()
            assert min([await round_trip(near, away) for _ in range(30)]) < 0.001

        with_proxy(profiles.link("loopback"), scene)

    def test_goodput_of_narrow(self) -> None:
        async def scene(far: Far) -> None:
            near, away = await far.open()
            loop = asyncio.get_running_loop()
            near[1].write(bytes(20_000))
            # Between two moments far from the beginning and the end.
            await away[0].readexactly(2852)
            began = loop.time()
            await away[0].readexactly(5704)
            rate = 5704 / (loop.time() - began)
            assert rate == pytest.approx(24_000 / 8, rel=0.1)
            assert far.proxy.counters.bytes_up < 20_000

        with_proxy(profiles.link("narrow"), scene)

    def test_connections_share_the_rate(self) -> None:
        async def scene(far: Far) -> None:
            loop = asyncio.get_running_loop()
            pairs = [await far.open() for _ in range(3)]
            began = loop.time()
            for near, _ in pairs:
                near[1].write(bytes(20_000))
            await asyncio.gather(*(away[0].readexactly(20_000) for _, away in pairs))
            assert 0.5 < loop.time() - began < 1.2

        with_proxy(way(rate=100_000.0), scene)

    def test_connecting_costs_a_round_trip(self) -> None:
        async def scene(far: Far) -> None:
            began = asyncio.get_running_loop().time()
            near, away = await far.open()
            await round_trip(near, away)
            assert 0.39 < asyncio.get_running_loop().time() - began < 1

        with_proxy(way(delay=0.1), scene)


class TestTrouble:
    def test_the_link_changes_in_mid_answer(self) -> None:
        async def scene(far: Far) -> None:
            near, away = await far.open()
            assert min([await round_trip(near, away) for _ in range(5)]) < 0.02
            far.proxy.change(profiles.link("geo"))
            assert await round_trip(near, away) > 0.59
            far.proxy.change(NEAR)
            assert min([await round_trip(near, away) for _ in range(5)]) < 0.02

        with_proxy(profiles.link("lan"), scene)

    def test_a_queue_drains_at_the_new_rate(self) -> None:
        async def scene(far: Far) -> None:
            near, away = await far.open()
            near[1].write(bytes(30_000))
            await away[0].readexactly(1000)
            far.proxy.change(NEAR)
            loop = asyncio.get_running_loop()
            began = loop.time()
            await away[0].readexactly(29_000)
            # Two packets may have had their time already; the other 18 would take 9 s.
            assert loop.time() - began < 4

        with_proxy(way(rate=3000.0, queue=1500), scene)

    def test_a_stall_ends(self) -> None:
        async def scene(far: Far) -> None:
            near, away = await far.open()
            far.proxy.stall(0.3)
            assert await round_trip(near, away) > 0.28
            assert min([await round_trip(near, away) for _ in range(5)]) < 0.02

        with_proxy(NEAR, scene)

    def test_a_loss_is_a_stall(self) -> None:
        async def scene(far: Far) -> None:
            near, away = await far.open()
            assert await round_trip(near, away) > 0.38

        with_proxy(way(loss=0.999999, stall=0.2), scene)

    def test_drop_resets_both_ends_and_lets_new_ones_in(self) -> None:
        async def scene(far: Far) -> None:
            near, away = await far.open()
            far.proxy.drop()
            for reader, _ in (near, away):
                with pytest.raises(ConnectionResetError):
                    await reader.read()
            assert far.proxy.counters.connections == 0
            await round_trip(*await far.open())

        with_proxy(NEAR, scene)

    def test_half_open_tells_nobody(self) -> None:
        async def scene(far: Far) -> None:
            near, away = await far.open()
            far.proxy.half_open()
            near[1].write(b"lost")
            near[1].close()  # not even this gets through
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await away[0].read(1)
            away[1].write(bytes(1 << 20))
            async with asyncio.timeout(2):
                await away[1].drain()  # swallowed
            await round_trip(*await far.open())
            away[1].close()
            while far.proxy.counters.connections > 1:
                await asyncio.sleep(0.01)

        with_proxy(NEAR, scene)

    def test_an_upstream_that_is_not_there(self) -> None:
        async def main() -> None:
            with socket.socket() as sock:
                sock.bind(("127.0.0.1", 0))
                nowhere = sock.getsockname()
                async with Proxy(NEAR, nowhere) as proxy:
                    reader, _ = await asyncio.open_connection("127.0.0.1", proxy.port)
                    with pytest.raises(ConnectionResetError):
                        await reader.read()
                    assert proxy.counters.refused == 1
                    assert proxy.counters.connections == 0

        asyncio.run(main())


class TestBytes:
    @pytest.mark.parametrize("link", [NEAR, way(rate=3e6, delay=0.02, jitter=0.01, loss=0.01)])
    def test_they_arrive_unaltered_both_ways(self, link: Link) -> None:
        data = random.Random(1).randbytes(700_000)

        async def send(writer: asyncio.StreamWriter) -> None:
            for start in range(0, len(data), 50_000):
                writer.write(data[start : start + 50_000])
                await writer.drain()
            writer.write_eof()

        async def scene(far: Far) -> None:
            near, away = await far.open()
            got = await asyncio.gather(
                near[0].read(-1), away[0].read(-1), send(near[1]), send(away[1])
            )
            want = hashlib.sha256(data).digest()
            assert [hashlib.sha256(each or b"").digest() for each in got[:2]] == [want, want]
            counters = far.proxy.counters
            assert (counters.bytes_up, counters.bytes_down) == (len(data), len(data))
            while counters.connections:  # both have said that they end
                await asyncio.sleep(0.01)

        with_proxy(link, scene)

    def test_one_way_may_end_before_the_other(self) -> None:
        async def scene(far: Far) -> None:
            near, away = await far.open()
            near[1].write(b"question")
            near[1].write_eof()
            assert await away[0].read(-1) == b"question"
            away[1].write(b"answer")
            away[1].close()
            assert await near[0].read(-1) == b"answer"

        with_proxy(way(delay=0.01), scene)

    def test_a_reset_is_passed_on(self) -> None:
        async def scene(far: Far) -> None:
            near, away = await far.open()
            near[1].get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0"
            )
            near[1].transport.abort()
            with pytest.raises(ConnectionResetError):
                await away[0].read()

        with_proxy(way(delay=0.01), scene)


class TestBounds:
    def test_a_slow_link_holds_its_sender_back(self) -> None:
        async def scene(far: Far) -> None:
            near, _ = await far.open()
            near[1].transport.set_write_buffer_limits(0)
            sock = near[1].get_extra_info("socket")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, 4096)
            taken = 0

            async def send() -> None:
                nonlocal taken
                while True:
                    near[1].write(bytes(1000))
                    await near[1].drain()
                    taken += 1000

            with pytest.raises(TimeoutError):
                await asyncio.wait_for(send(), 0.5)
            # The queue, what the sender's kernel may hold unsent, and a receive buffer.
            assert 6000 < taken < 6000 + 4096 + 2 * shaping.RECEIVE_BUFFER

        with_proxy(way(rate=1000.0, queue=6000), scene)

    @pytest.mark.parametrize("slow", [{"delay": 60.0}, {}])
    def test_what_is_on_its_way_is_bounded(self, slow: dict[str, float]) -> None:
        """Be it in a delay line, or for a receiver that does not read."""

        async def scene(far: Far) -> None:
            near, away = await far.open()
            away[1].transport.pause_reading()  # type: ignore[attr-defined]
            far.proxy.change(way(**slow))
            connection = next(iter(far.proxy._road.connections))
            near[1].write(bytes(20_000_000))
            await asyncio.sleep(0.5)
            assert connection.edge.sends is not None
            assert 0 < connection.edge.sends._held <= 200_000 + shaping.CHUNK
            near[1].transport.abort()

        with_proxy(NEAR, scene, max_held=200_000)

    def test_connections_are_bounded(self) -> None:
        async def scene(far: Far) -> None:
            await far.open()
            reader, _ = await asyncio.open_connection("127.0.0.1", far.proxy.port)
            with pytest.raises(ConnectionResetError):
                await reader.read()
            assert far.proxy.counters.refused == 1
            far.proxy.half_open()  # what only swallows makes room
            await round_trip(*await far.open())
            assert far.proxy.counters.connections == 1

        with_proxy(NEAR, scene, max_connections=1)


class TestWebSocket:
    def test_a_link_works_through_it_and_sees_it_drop(self) -> None:
        async def echo(link: NetLink) -> None:
            while True:
                await link.send(await link.recv())

        async def main() -> None:
            quiet = Tuning(ping_interval=None)
            async with (
                await server.serve(echo, tuning=quiet) as cloud,
                Proxy(way(delay=0.01), ("127.0.0.1", cloud.port)) as proxy,
                asyncio.timeout(20),
            ):
                link = await client.connect(f"ws://127.0.0.1:{proxy.port}", tuning=quiet)
                for size in (1, 1000, 100_000):
                    await link.send(bytes(size))
                    assert len(await link.recv()) == size
                assert await link.ping() > 0.018
                assert proxy.counters.bytes_up > link.bytes_out
                proxy.drop()
                with pytest.raises(LinkClosedError):
                    await link.recv()

        asyncio.run(main())


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts descriptors in /proc")
def test_connections_leave_nothing_behind() -> None:
    async def scene(far: Far) -> None:
        await round_trip(*await far.open())
        before = 0
        for _ in range(20):
            near, away = await far.open()
            near[1].write(b"x")
            near[1].close()
            assert await away[0].read(-1) == b"x"
            away[1].close()
            while far.proxy.counters.connections > 1:
                await asyncio.sleep(0.005)
            before = before or len(os.listdir("/proc/self/fd"))
        assert len(os.listdir("/proc/self/fd")) <= before + 2

    with_proxy(NEAR, scene)
