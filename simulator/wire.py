"""A modelled connection: two ordered pipes with delay, jitter and a rate, and how it ends."""

from __future__ import annotations

import random
from collections.abc import Callable

from outrider.simulator.agenda import Agenda
from outrider.simulator.settings import LinkSettings

FRAMING = 6
"""WebSocket bytes around a short message from a client; its cost, not its content."""


class Pipe:
    """One direction. Messages keep their order whatever the jitter."""

    def __init__(self, agenda: Agenda, link: LinkSettings, rate: float, rng: random.Random) -> None:
        self._agenda = agenda
        self._link = link
        self._rate = rate
        self._rng = rng
        self._last = 0.0
        self._held = 0.0
        self.free_at = 0.0
        self.swallows = False
        self.deliver: Callable[[bytes], None] = lambda _data: None
        self.bytes_sent = 0

    @property
    def free(self) -> bool:
        """The next message would leave at once."""
        return self.free_at <= self._agenda.now

    def send(self, data: bytes) -> None:
        """Put a message on the pipe; it is delivered later, or never if the pipe swallows."""
        size = len(data) + FRAMING
        self.bytes_sent += size
        self.free_at = max(self.free_at, self._agenda.now) + size / self._rate
        if self.swallows:
            return
        arrival = self.free_at + self._link.delay + self._rng.random() * self._link.jitter
        self._last = max(self._last, arrival)
        self._agenda.at(self._last, lambda: self._arrive(data))

    def hold(self, until: float) -> None:
        """What is under way arrives not before ``until``."""
        self._held = until
        self._last = max(self._last, until)

    @property
    def empty_at(self) -> float:
        """When the last message under way will have arrived."""
        return max(self._last, self._held)

    def _arrive(self, data: bytes) -> None:
        if self.swallows:
            return
        if self._agenda.now < self._held:
            self._agenda.at(self._held, lambda: self._arrive(data))
            return
        self.deliver(data)


class Wire:
    """One connection between an edge and the cloud, as both drivers see it."""

    def __init__(self, agenda: Agenda, link: LinkSettings, rng: random.Random) -> None:
        self.up = Pipe(agenda, link, link.up, rng)
        self.down = Pipe(agenda, link, link.down, rng)
        self.edge_lost: Callable[[], None] = lambda: None
        self.cloud_lost: Callable[[], None] = lambda: None

    def swallow(self) -> None:
        """From now on nothing gets through, and nobody is told."""
        self.up.swallows = self.down.swallows = True
