"""What pings find out about links whose figures are known."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from outrider.protocol.errors import LinkError
from outrider.runtime.net import client, probe, server
from outrider.runtime.net.link import Link, Tuning
from outrider.runtime.net.probe import PING_BYTES, Budget, Measured
from outrider.simulator import profiles
from outrider.simulator.links import OVERHEAD, Direction
from outrider.simulator.links import Link as Shape
from outrider.simulator.proxy import Proxy

QUICK = Budget(pings=8, interval=0.02)
NEAR = Shape(name="near", up=Direction(), down=Direction())


async def idle(link: Link) -> None:
    """A cloud that is busy with something else: its pongs come all the same."""
    await link.wait_closed()


def through(shape: Shape, work: Callable[[Link, Proxy], Awaitable[None]]) -> None:
    """Run ``work`` with a link of that shape."""

    async def main() -> None:
        async with (
            asyncio.timeout(20),
            await server.serve(idle) as far,
            Proxy(shape, ("127.0.0.1", far.port)) as proxy,
        ):
            quiet = Tuning(ping_interval=None, close_timeout=0.2)
            async with await client.connect(f"127.0.0.1:{proxy.port}", tuning=quiet) as link:
                await work(link, proxy)

    asyncio.run(main())


def test_a_fast_link() -> None:
    async def work(link: Link, proxy: Proxy) -> None:
        found = await probe.measure(link, QUICK)
        assert len(found.trips) == 8
        assert 0 < found.lowest <= found.median <= found.p95
        assert found.lowest < 0.02
        assert found.goodput is not None
        assert found.goodput > 20_000
        assert found.unanswered == 0
        assert found.sent <= Budget().train_bytes + 8 * 16

    through(NEAR, work)


def test_round_trips_of_a_profile() -> None:
    async def work(link: Link, proxy: Proxy) -> None:
        found = await probe.measure(link, Budget(pings=12, interval=0.02, train_bytes=0))
        rtt = profiles.profile("lte").rtt
        assert 0.6 * rtt < found.lowest <= found.median
        assert found.median == pytest.approx(rtt, rel=0.5)
        assert found.jitter > 0
        assert (found.goodput, found.at_least) == (None, True)

    through(profiles.link("lte"), work)


@pytest.mark.parametrize("slow", ["up", "down"])
def test_the_slower_direction_counts(slow: str) -> None:
    rate = 6000.0
    ways = {"up": Direction(), "down": Direction(), slow: Direction(rate=rate, queue=1500)}

    async def work(link: Link, proxy: Proxy) -> None:
        found = await probe.measure(link, QUICK)
        assert not found.at_least
        assert found.goodput is not None
        # Each ping is a packet with its headers, unless some leave together.
        least = rate * PING_BYTES / (PING_BYTES + OVERHEAD)
        assert 0.8 * least < found.goodput < 1.2 * rate
        assert found.sent < 4000

    through(Shape(name="slow", **ways), work)


def test_the_seconds_are_bounded() -> None:
    far = Direction(delay=0.3, rate=1500.0, queue=1500)

    async def work(link: Link, proxy: Proxy) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        found = await probe.measure(link, Budget(pings=6, interval=0.02, seconds=1.5))
        assert loop.time() - began < 3
        assert found.trips

    through(Shape(name="far", up=far, down=Direction()), work)


def test_nobody_answers() -> None:
    async def work(link: Link, proxy: Proxy) -> None:
        proxy.half_open()
        with pytest.raises(LinkError, match="answered no ping within 0.4 s"):
            await probe.measure(link, Budget(pings=3, interval=0.02, seconds=0.4))

    through(NEAR, work)


def test_a_link_that_is_lost_meanwhile() -> None:
    async def work(link: Link, proxy: Proxy) -> None:
        asyncio.get_running_loop().call_later(0.1, proxy.drop)
        with pytest.raises(LinkError):
            await probe.measure(link, Budget(pings=20, interval=0.02))

    through(NEAR, work)


def test_figures() -> None:
    found = Measured(
        trips=(0.01, 0.03, 0.02, 0.01), unanswered=0, goodput=None, at_least=True, sent=0
    )
    assert (found.lowest, found.median, found.p95) == (0.01, 0.015, 0.03)
    assert found.jitter == pytest.approx((0.02 + 0.01 + 0.01) / 3)
    one = Measured(trips=(0.01,), unanswered=0, goodput=None, at_least=True, sent=0)
    assert (one.p95, one.jitter) == (0.01, 0.0)
