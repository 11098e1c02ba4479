"""One link to one replica, kept for as long as it is on the roster."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable

from outrider.cloud_server.cluster.replica import Replica
from outrider.protocol.errors import LinkError, OutriderError
from outrider.runtime.net.courier import Courier, Persistence
from outrider.runtime.net.pages import read_page

PERSISTENCE = Persistence(first=0.02, longest=0.5, give_up=float("inf"), silence=2.0)
"""A replica is dialled for as long as it is wanted, and missed soon: others can go on."""

AGAIN = 0.5
"""Seconds until a replica that refused the link is asked again."""

LOOK_SECONDS, SOON = 1.0, 0.02
"""Seconds between two looks at how far a replica is and what it has free; while there is no link.
"""

FADING = 1.1
"""By how much the shortest ping grows from look to look."""

_log = logging.getLogger("outrider.cluster")


class Dial:
    """``heard()``: the replica's machine may have events; ``lost()``: its link is gone.

    Beside the stream the replica's ``/status`` is read now and then: what it has free is no matter
    of one answer, and nobody waits for it.
    """

    def __init__(
        self,
        replica: Replica,
        url: str,
        *,
        key: str | None,
        context: ssl.SSLContext | None,
        heard: Callable[[], None],
        lost: Callable[[], None],
    ) -> None:
        self.replica, self.url = replica, url
        self._key, self._context, self._lost = key, context, lost
        self._said = ""
        self._courier = Courier(
            replica.machine,
            url,
            key=key,
            context=context,
            persistence=PERSISTENCE,
            heard=heard,
            interrupted=self._gone,
            failed=self._gone,
        )
        self._tasks = [
            asyncio.create_task(self._keep(), name=f"link to {replica.name}"),
            asyncio.create_task(self._look(), name=f"look at {replica.name}"),
        ]

    def post(self) -> None:
        """The replica's machine may have something to send."""
        self._courier.post()

    async def hang_up(self) -> None:
        """The replica is not wanted any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._courier.close()
        self.replica.machine.connection_lost(asyncio.get_running_loop().time())

    async def _keep(self) -> None:
        courier = self._courier
        courier.needed.set()
        try:
            link = await courier.connect()
        except OutriderError as error:
            self._gone(error)
            await courier.run(error if isinstance(error, LinkError) else LinkError(str(error)))
        else:
            await courier.run(link)

    def _gone(self, error: OutriderError) -> None:
        if str(error) != self._said:
            self._said = str(error)
            _log.warning("replica %s: %s", self.replica.name, error)
        # It is wanted for as long as it is on the roster.
        asyncio.get_running_loop().call_later(AGAIN, self._courier.needed.set)
        self._lost()

    async def _look(self) -> None:
        """How far it is, and what it has free."""
        while True:
            way = await self._courier.ping()
            if way is not None:
                known = self.replica.way
                # A ping that waited says little: the shortest counts, but not for ever.
                self.replica.way = way if known is None else min(way, known * FADING)
                await self._read_page()
            await asyncio.sleep(LOOK_SECONDS if way is not None else SOON)

    async def _read_page(self) -> None:
        try:
            self.replica.page = await asyncio.to_thread(
                read_page,
                self.url,
                "/status",
                key=self._key,
                context=self._context,
                timeout=LOOK_SECONDS,
            )
        except OutriderError as error:
            _log.debug("page of replica %s: %s", self.replica.name, error)
