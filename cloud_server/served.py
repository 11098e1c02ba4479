"""One connection and its link: who sends on it, and when."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

from outrider.protocol.cloud import CloudConnection
from outrider.protocol.errors import LinkError
from outrider.runtime.net.link import Link

TOGETHER = 1200
"""Bytes of messages that leave in one go where they are due at once, as the verdicts of all
sessions in a pass are: about what fits into one packet."""


@dataclass(slots=True, eq=False)
class Served:
    """Sends what the connection has to say: at once where the link takes it, else bit by bit."""

    link: Link
    connection: CloudConnection
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    sending: bool = False
    _first: float | None = None

    @property
    def rtt(self) -> float | None:
        """Seconds of the last ping that was answered."""
        return self.link.ping_rtt or self._first

    async def ping(self) -> None:
        """The first one at once: the link's own come every 20 seconds."""
        with contextlib.suppress(LinkError):
            self._first = await self.link.ping()

    def post(self) -> None:
        """Send what is due as far as the link takes it at once; the rest is the writer's.

        The quick way: no task has to wake up.
        """
        while self.link.clear and not self.sending:
            messages = self._due()
            if not messages:
                return
            self.link.post(*messages)
        self.wake.set()

    def _due(self) -> list[bytes]:
        messages: list[bytes] = []
        while sum(map(len, messages)) < TOGETHER:
            message = self.connection.next_message(_now())
            if message is None:
                break
            messages.append(message)
        return messages

    async def write(self) -> None:
        """Pull messages while the link takes them; what to say is decided at the last moment."""
        connection, wake = self.connection, self.wake
        while True:
            wake.clear()
            self.sending = True
            while (message := connection.next_message(_now())) is not None:
                await self.link.send(message)
            self.sending = False
            if connection.wants_close:
                await self.link.close()
                return
            deadline = connection.next_timeout()
            if deadline is None:
                await wake.wait()
                continue
            try:
                async with asyncio.timeout(max(0.0, deadline - _now())):
                    await wake.wait()
            except TimeoutError:
                connection.handle_timeout(_now())


def _now() -> float:
    return asyncio.get_running_loop().time()
