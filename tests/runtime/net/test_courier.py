"""When an outage begins and ends: the courier with both real machines, a clock and a link of the
test's own. Nothing sleeps: the loop's time jumps to its next timer. Real links are in
edge_client's tests.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable

import pytest

from outrider.protocol.cloud import CloudConnection
from outrider.protocol.edge_session import EdgeSession
from outrider.protocol.errors import LinkError, OutriderError
from outrider.runtime.net import courier as module
from outrider.runtime.net.courier import Courier, Persistence
from outrider.simulator.pair import ConnectionPair

PERSISTENCE = Persistence(first=0.1, longest=5.0, give_up=30.0)


class Clock(selectors.SelectSelector):
    """A selector that never waits: it moves the time on instead."""

    now = 0.0

    def select(self, timeout=None):
        assert timeout is not None, "nothing will ever happen"
        self.now += max(0.0, timeout)
        return super().select(0)


class Wire:
    """A scripted stand-in for a link, with the real cloud's machine at its other end."""

    peer, clear = "the cloud", True
    bytes_in = bytes_out = unsent = 0

    def __init__(self, pair: ConnectionPair) -> None:
        self._pair = pair
        self._inbox: asyncio.Queue[bytes | None] = asyncio.Queue()
        pair.connection = CloudConnection(pair.table, "", pair.now)

    def post(self, message: bytes) -> None:
        self._pair.connection.receive(message, self._pair.now)
        self.deliver()

    async def send(self, message: bytes) -> None:
        self.post(message)

    def deliver(self) -> None:
        while (message := self._pair.connection.next_message(self._pair.now)) is not None:
            self._inbox.put_nowait(message)

    async def receive(self, take: Callable[[bytes], bool]) -> None:
        while (message := await self._inbox.get()) is not None:
            take(message)
        raise LinkError("the link is gone")

    async def ping(self) -> float:
        return 0.0

    def lose(self) -> None:
        self._pair.connection.connection_lost(self._pair.now)
        self._inbox.put_nowait(None)

    def abort(self) -> None:
        """Nothing is left to free."""

    async def close(self) -> None:
        """As above."""


class Scene:
    """A courier on a link that breaks when told to; ``errors`` is what it gave up with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pair = ConnectionPair()
        self.errors: list[OutriderError] = []
        self.deaf = False
        self.wire: Wire | None = None
        self.courier = Courier(
            self.pair.machine,
            "ws://127.0.0.1:1",
            key=None,
            context=None,
            persistence=PERSISTENCE,
            heard=lambda: None,
            interrupted=lambda _: None,
            failed=self.errors.append,
        )
        monkeypatch.setattr(module, "connect", self._connect)

    async def _connect(self, *_: object, **__: object) -> Wire:
        if self.deaf:
            raise LinkError("nobody listens")
        self.wire = Wire(self.pair)
        return self.wire

    async def lose(self, seconds: float = 1.0) -> None:
        """The link breaks; and the time that it takes to make another."""
        assert self.wire is not None
        self.wire.lose()
        await asyncio.sleep(seconds)

    async def opened(self) -> EdgeSession:
        """An answer under way that the cloud knows of."""
        self.courier.needed.set()
        session = self.pair.open(5, 6, 7)
        self.courier.wake()
        await asyncio.sleep(0.1)
        return session

    async def commits(self, session: EdgeSession, tokens: int) -> None:
        for _ in range(tokens):
            self.pair.verify(session, lambda ids: len(ids) % 20 + 1)
        assert self.wire is not None
        self.wire.deliver()
        await asyncio.sleep(0.1)


@pytest.fixture
def play(monkeypatch):
    """Runs a story with a courier at work in time that only the story's own waits make pass."""

    def run(story: Callable[[Scene], Awaitable[None]]) -> Scene:
        clock = Clock()
        loop = asyncio.SelectorEventLoop(clock)
        loop.time = lambda: clock.now  # type: ignore[method-assign]
        scene = Scene(monkeypatch)

        async def main() -> None:
            serving = asyncio.create_task(scene.courier.run(await scene.courier.connect()))
            await asyncio.sleep(1.0)
            await story(scene)
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

        try:
            loop.run_until_complete(main())
        finally:
            loop.close()
        return scene

    return run


@pytest.mark.parametrize("apart", [1.0, 31.0, 3600.0])
@pytest.mark.parametrize("closed", ["none", "between", "at once"])
def test_tokens_end_an_outage_whatever_sessions_come_and_go(play, apart, closed) -> None:
    """The second loss is another outage, though fewer ids are open now than at the first one."""

    async def story(scene: Scene) -> None:
        first = await scene.opened()
        await scene.commits(first, 40)
        second = await scene.opened() if closed == "at once" else None
        await scene.lose()
        if second is None and closed == "between":
            second = await scene.opened()
        if second is not None:
            scene.pair.machine.close(first)  # an answer is under way all the time
            scene.courier.wake()
        await scene.commits(second or first, 2)
        await asyncio.sleep(apart)
        await scene.lose()
        assert scene.courier.reconnects == 2

    assert play(story).errors == []


def test_an_idle_link_has_no_outage(play) -> None:
    """Lost in an answer that is then left, without a token; lost again an hour later."""

    async def story(scene: Scene) -> None:
        session = await scene.opened()
        await scene.lose()
        scene.pair.machine.close(session)
        scene.courier.rest()
        await asyncio.sleep(3600.0)
        await scene.lose()
        assert scene.courier.reconnects == 1  # nobody needs it
        await scene.opened()  # and now somebody does
        await asyncio.sleep(1.0)
        assert scene.courier.reconnects == 2
        await asyncio.sleep(3600.0)
        scene.courier.rest()
        await scene.opened()
        await scene.lose()
        assert scene.courier.reconnects == 3

    assert play(story).errors == []


def test_a_peer_that_carries_nothing_is_given_up(play) -> None:
    """It welcomes each time and drops the link: that is one outage, whoever opens sessions."""

    async def story(scene: Scene) -> None:
        await scene.opened()
        for _ in range(8):
            await scene.lose(5.0)
            scene.pair.open(1, 2, 3, 4, 5, 6, 7, 8)  # more ids, but none of them the cloud's
        await asyncio.sleep(60.0)

    found = play(story)
    assert [str(error) for error in found.errors] == ["the link is gone (tried again for 30 s)"]


def test_a_cloud_that_stays_away_is_given_up_in_time(play) -> None:
    """And a new question begins again."""

    async def story(scene: Scene) -> None:
        await scene.opened()
        scene.deaf = True
        await scene.lose(29.0)
        assert scene.errors == []
        await asyncio.sleep(15.0)
        assert [str(e) for e in scene.errors] == ["nobody listens (tried again for 30 s)"]
        scene.deaf = False
        session = await scene.opened()
        await asyncio.sleep(1.0)
        await scene.commits(session, 1)
        assert session.ids[3:] == [4]

    assert len(play(story).errors) == 1
