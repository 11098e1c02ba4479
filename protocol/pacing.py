"""How fast an edge may send guesses: a cap in bytes a second, sent in verdicts, obeyed here.

The cap is an edge's share of a band that several share. A frame that has to wait is bound late as
any other: guesses made meanwhile join it, those that were settled meanwhile never leave. So under a
cap frames get fewer and longer by themselves; how far to guess at all is the policy's matter.
"""

from __future__ import annotations

import math

STEPS = 8
"""Codes an octave: a cap is within 4.5% of what was meant."""

FRAME_BYTES = 9
"""Of a frame that continues an epoch, its guesses left aside: WebSocket 6, its own fields 3."""

LEAST_CAP = 16.0
"""Bytes a second below which there is no cap: a frame of one guess would take seconds."""


def cap_code(cap: float) -> int:
    """A rate in bytes a second as one byte on a log scale from ``LEAST_CAP`` on; 0: no cap."""
    if math.isinf(cap):
        return 0
    return min(255, 1 + max(0, round(STEPS * math.log2(max(cap, LEAST_CAP) / LEAST_CAP))))


def cap_rate(code: int) -> float:
    """The bytes a second that a byte of :func:`cap_code` stands for."""
    return math.inf if code == 0 else LEAST_CAP * 2 ** ((code - 1) / STEPS)


class Pacer:
    """Says when the next frame may leave. ``cap``: bytes a second, infinite where there is none.

    After each frame the next one waits until the cap would have carried the first: in any time t at
    most ``cap * t`` bytes and one frame leave. ``held``: until when one waits (seconds), if one
    does.
    """

    def __init__(self) -> None:
        self.cap = math.inf
        self.held: float | None = None
        self._free_at = self._began = -math.inf
        self._size = 0

    def free(self, now: float) -> bool:
        """Whether a frame may leave now; if not, it is :attr:`held`."""
        self.held = self._free_at if now < self._free_at else None
        return self.held is None

    def sent(self, size: int, now: float) -> None:
        """A frame of ``size`` bytes left, framing included."""
        self._began, self._size = max(self._free_at, now), size
        self._free_at = self._began + size / self.cap

    def limit(self, cap: float) -> None:
        """From now on another cap. What waits already goes by the highest since the last frame.

        So caps that go up and down let no more leave than the higher one alone.
        """
        self.cap = cap
        self._free_at = min(self._free_at, self._began + self._size / cap)

    def lift(self) -> None:
        """Another connection: nothing is known of a cap there."""
        self.cap, self.held, self._size = math.inf, None, 0
        self._free_at = self._began = -math.inf
