"""When the draft frames of one session left, so that an ack gives a round-trip sample."""

from __future__ import annotations

from collections import deque

from outrider.protocol.link import LinkEstimator
from outrider.protocol.messages import Ack
from outrider.protocol.packing import TIME_UNIT

REMEMBERED = 128
_SATURATED = 0xFFFF * TIME_UNIT


class SentFrames:
    """The frames sent on one connection, counted as the cloud counts those that it receives."""

    def __init__(self) -> None:
        self._count = 0
        self._times: deque[tuple[int, float]] = deque(maxlen=REMEMBERED)

    def clear(self) -> None:
        """Another connection, or another open: both ends count from here."""
        self._count = 0
        self._times.clear()

    def add(self, now: float) -> None:
        """A frame leaves."""
        self._count += 1
        self._times.append((self._count, now))

    def acknowledged(
        self, ack: Ack, now: float, link: LinkEstimator, *, usual: bool = True
    ) -> None:
        """A round-trip sample from the frame that the ack names; saturated times give none.

        ``usual``: the pass was one like others, so that its times count too.
        """
        if usual:
            link.served(ack.queue, ack.target, ack.load)
        while self._times:
            frame, sent = self._times.popleft()
            if frame & 0xFF == ack.frame:
                if ack.since < _SATURATED:
                    link.round_trip(now - sent, ack.since)
                return
