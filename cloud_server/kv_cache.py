"""Which session's ids lie in which slot of the target's cache.

KV is a cache, never session state: a slot remembers the ids it was fed, and the next pass keeps the
longest common prefix, whatever happened to the session meanwhile. A slot that nobody works in keeps
its ids until it is needed: the next turn finds them, and so does another session of the same key
whose text begins alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from outrider.protocol.session import CloudSession
from outrider.runtime.lm.base import common_prefix

WORTH = 32
"""A common beginning of fewer ids is sooner evaluated again than looked after."""


@dataclass(slots=True, eq=False)
class Slot:
    """One sequence of the target's cache: ``ids`` were fed to it, last for ``session``.

    ``owner`` names the key that they came under. ``source``: another slot whose beginning can be
    copied into this one before it is first fed for its session. ``fed``: of the answer with this
    number, of this session, so many ids lead ``ids``: while it goes on its text only grows.
    """

    index: int
    session: CloudSession | None = None
    ids: Sequence[int] = field(default_factory=list)
    used: float = 0.0
    owner: str = ""
    source: Slot | None = None
    fed: tuple[CloudSession, int, int] | None = None


class SlotTable:
    """Gives sessions slots; the longest unused one of a session without work is taken first."""

    def __init__(self, slots: int) -> None:
        self._slots = [Slot(i) for i in range(slots)]
        self._by_key: dict[bytes, Slot] = {}

    def obtain(self, session: CloudSession, now: float) -> Slot | None:
        """The session's slot, or one that can be taken for it; None while all are working."""
        slot = self._own(session)
        if slot is None:
            if (slot := self._take(session)) is None:
                return None
            self._give(slot, session)
        slot.used = now
        return slot

    def _own(self, session: CloudSession) -> Slot | None:
        slot = self._by_key.get(session.key)
        return slot if slot is not None and slot.session is session else None

    def _give(self, slot: Slot, session: CloudSession) -> None:
        before = slot.session
        if before is not None and self._by_key.get(before.key) is slot:
            del self._by_key[before.key]
        slot.session, self._by_key[session.key] = session, slot

    def _take(self, session: CloudSession) -> Slot | None:
        """The longest unused slot, or the one that holds the beginning of the session's text.

        That one is left to its session where much would be lost: its beginning is copied.
        """
        free = [
            slot
            for slot in self._slots
            if (at := slot.session) is None or not at.running or not at.active
        ]
        if not free:
            return None
        slot = min([s for s in free if not s.ids] or free, key=attrgetter("used"))
        alike, shared = self._alike(session)
        if alike is slot or (alike in free and len(alike.ids) - shared < WORTH):
            slot = alike
        else:
            self.fed(slot, [])  # what another key's text left is nobody's any more
            slot.source = alike
        slot.owner = session.owner
        return slot

    def _alike(self, session: CloudSession) -> tuple[Slot | None, int]:
        """The slot of the same key that holds most of the beginning of the session's text."""
        best, most = None, WORTH - 1
        least, owner = session.ids[:WORTH], session.owner
        if len(least) < WORTH:
            return best, most
        for slot in self._slots:
            # Most texts differ at once: one look each, as many slots are asked for every answer.
            ids = slot.ids
            if len(ids) < WORTH or ids[WORTH - 1] != least[-1] or slot.owner != owner:
                continue
            if list(ids[:WORTH]) == least:
                shared = common_prefix(slot.ids, session.ids)
                if shared > most:
                    best, most = slot, shared
        return best, most

    def spoil(self, index: int) -> None:
        """A pass failed: what the slot holds is unknown."""
        self.fed(self._slots[index], [])

    def fed(
        self, slot: Slot, ids: Sequence[int], fed: tuple[CloudSession, int, int] | None = None
    ) -> None:
        """The slot holds ``ids`` from now on; see :class:`Slot` for ``fed``."""
        slot.ids, slot.source, slot.fed = ids, None, fed

    def cached(self, slot: Slot, session: CloudSession) -> int:
        """How many leading ids of the session's text need not be evaluated again."""
        fed = slot.fed
        if fed is None or fed[0] is not session or fed[1] != session.begun:
            return self.shared(slot, session.ids)
        known = fed[2]
        for one, other in zip(slot.ids[known:], session.ids[known:], strict=False):
            if one != other:
                break
            known += 1
        return known

    def shared(self, slot: Slot, ids: list[int]) -> int:
        """How many leading ids of ``ids`` are in the slot, or can be copied into it."""
        here = common_prefix(slot.ids, ids)
        return here if slot.source is None else max(here, common_prefix(slot.source.ids, ids))

    def source(self, slot: Slot, ids: list[int]) -> int | None:
        """The slot to copy that beginning from; None if it lies there already."""
        other = slot.source
        if other is None or common_prefix(other.ids, ids) <= common_prefix(slot.ids, ids):
            return None
        return other.index

    def found(self, session: CloudSession) -> int:
        """How many leading ids of a text that is to be evaluated are in the cache."""
        own = self._own(session)
        if own is not None:
            return self.cached(own, session)
        alike, shared = self._alike(session)
        return 0 if alike is None else shared

    @property
    def held(self) -> int:
        """Ids in the cache, of sessions at work and idle ones."""
        return sum(len(slot.ids) for slot in self._slots)
