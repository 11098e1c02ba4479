"""Named classes of device and link, and what a drafter of a size is expected to do on them.

The devices' figures are published ones (memory, and peak bandwidth of the memory); what follows
from them is an estimate and labelled so wherever it is shown.
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider.protocol.errors import SettingError

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Device:
    """``memory``: bytes in the smallest common model. ``bandwidth``: peak, bytes a second.

    ``reached``: the share of it that reading weights for one token gets. ``step``: seconds of a
    draft step that do not depend on the model's size.
    """

    name: str
    memory: int
    bandwidth: float
    reached: float = 0.5
    step: float = 0.001

    def draft_seconds(self, file_bytes: int) -> float:
        """Seconds of one draft step: every weight is read once a token."""
        return file_bytes / (self.bandwidth * self.reached) + self.step


DEVICES = {
    device.name: device
    for device in (
        Device("pi4", 4096 * MIB, 12.8e9, reached=0.35, step=0.002),
        Device("pi5", 4096 * MIB, 17.1e9),
        Device("jetson-orin-nano", 8192 * MIB, 68e9),
        Device("jetson-agx", 32768 * MIB, 204.8e9),
        Device("laptop", 16384 * MIB, 60e9),
    )
}

LINKS = {"lan": 0.002, "wifi": 0.008, "5g": 0.030, "lte": 0.060}
"""Round trips in seconds, as in the link profiles."""

PASS = 0.030
"""Seconds of a pass of the target that estimates assume."""

MEMORY_SHARE = 0.5
"""The share of a device's memory that a drafter may take: other programs want the rest."""


def device(name: str) -> Device:
    """A device by name.

    Raises:
        SettingError: there is none of that name.
    """
    found = DEVICES.get(name)
    if found is None:
        raise SettingError(f"device {name!r} is not one of {', '.join(DEVICES)}")
    return found


def expected_rate(acceptance: float, step: float, rtt: float, passes: float = PASS) -> float:
    """Tokens a second of the best of not drafting and lockstep at 1 to 16 (DESIGN's formula).

    E(g) / (g t + R + T) with E(g) = (1 - a^(g+1)) / (1 - a). Streaming does better; this bounds it
    from below.
    """
    a = min(acceptance, 0.999)
    best = 1.0 / passes
    for g in range(1, 17):
        tokens = (1.0 - a ** (g + 1)) / (1.0 - a)
        best = max(best, tokens / (g * step + rtt + passes))
    return best
