"""Bytes of a link by kind, WebSocket framing included."""

from __future__ import annotations

from collections import Counter

from outrider.protocol.codec import COLD, COLD_TYPES, VERDICT
from outrider.protocol.messages import Open, Opened, Part
from outrider.protocol.packing import frame_size

PROMPT = {COLD_TYPES.index(kind) for kind in (Open, Opened, Part)}
"""Messages that carry prompts; long messages, which travel in parts, are those too."""


def kind_of(data: bytes) -> str:
    """What an encoded message counts as: ``frames``, ``verdicts``, ``prompt`` or ``control``."""
    first = data[0]
    if first & COLD:
        return "prompt" if first & 0x3F in PROMPT else "control"
    return "verdicts" if first & VERDICT else "frames"


class Traffic:
    """Counts what an edge sends (``up``) and receives (``down``). Pings are not its business."""

    def __init__(self) -> None:
        self.up: Counter[str] = Counter(control=0, prompt=0, frames=0)
        self.down: Counter[str] = Counter(control=0, prompt=0, verdicts=0)
        self.messages_up = self.messages_down = 0

    def sent(self, data: bytes) -> int:
        """A message left; its bytes on the wire."""
        size = frame_size(len(data), masked=True)
        self.up[kind_of(data)] += size
        self.messages_up += 1
        return size

    def received(self, data: bytes) -> int:
        """A message came; its bytes on the wire."""
        size = frame_size(len(data), masked=False)
        self.messages_down += 1
        if data:
            self.down[kind_of(data)] += size
        return size

    def figures(self) -> dict[str, dict[str, int]]:
        """For JSON: bytes by direction and kind."""
        return {"up": dict(self.up), "down": dict(self.down)}
