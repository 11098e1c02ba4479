"""A modelled connection: a link's two pipes in virtual time, and how it ends."""

from __future__ import annotations

import random
from collections.abc import Callable

from outrider.simulator.agenda import Agenda
from outrider.simulator.links import Direction, Link, Pipe

FRAMING_UP, FRAMING_DOWN = 6, 2
"""WebSocket bytes around a short message; those from a client are masked."""

EVERYTHING = 1 << 40
"""More bytes than any queue takes: a pipe takes them when it is empty."""


class Way:
    """One direction. Messages keep their order whatever the jitter."""

    def __init__(
        self, agenda: Agenda, direction: Direction, framing: int, rng: random.Random
    ) -> None:
        self._agenda = agenda
        self._pipe = Pipe(direction, rng)
        self._framing = framing
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
        """Put a message on the way; it is delivered later, or never if the way swallows."""
        size, now = len(data) + self._framing, self._agenda.now
        self.bytes_sent += size
        arrival = self._pipe.deliver_at(size, now)
        self.free_at = self._pipe.offer(EVERYTHING, now)
        if not self.swallows:
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

    def __init__(self, agenda: Agenda, link: Link, rng: random.Random) -> None:
        luck = rng.getrandbits(32)
        self.up = Way(agenda, link.up, FRAMING_UP, random.Random(f"up {luck}"))
        self.down = Way(agenda, link.down, FRAMING_DOWN, random.Random(f"down {luck}"))
        self.edge_lost: Callable[[], None] = lambda: None
        self.cloud_lost: Callable[[], None] = lambda: None

    def swallow(self) -> None:
        """From now on nothing gets through, and nobody is told."""
        self.up.swallows = self.down.swallows = True
