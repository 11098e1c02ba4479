"""Which session's ids lie in which slot of the target's cache.

KV is a cache, never session state: a slot remembers the ids it was fed, and the next pass keeps the
longest common prefix, whatever happened to the session meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.protocol.session import CloudSession
from outrider.runtime.lm.base import common_prefix


@dataclass(slots=True)
class Slot:
    """One sequence of the target's cache: ``ids`` were fed to it, last for ``session``."""

    index: int
    session: CloudSession | None = None
    ids: Sequence[int] = field(default_factory=list)
    used: float = 0.0


class SlotTable:
    """Gives sessions slots; the longest unused one of a session without work is taken first."""

    def __init__(self, slots: int) -> None:
        self._slots = [Slot(i) for i in range(slots)]

    def obtain(self, session: CloudSession, now: float) -> Slot | None:
        """The session's slot, or one that can be taken for it; None while all are working."""
        own = next((s for s in self._slots if s.session is session), None)
        slot = own or min(
            (s for s in self._slots if s.session is None or not s.session.active),
            key=lambda s: s.used,
            default=None,
        )
        if slot is not None:
            slot.session, slot.used = session, now
        return slot

    def spoil(self, index: int) -> None:
        """A pass failed: what the slot holds is unknown."""
        self._slots[index].ids = []

    def cached(self, slot: Slot, ids: list[int]) -> int:
        """How many leading ids of ``ids`` need not be evaluated again."""
        return common_prefix(slot.ids, ids)
