"""Scripted specialists for virtual time: a target whose text changes its domain, and drafters that
each know one domain well.

Acceptance here is *assumed*, not measured: a specialist is right at ``OWN`` of the places of its
own domain and ``FOREIGN`` of the others, the general drafter at ``GENERAL`` of all. Published
domain drafters lie in that range (arXiv 2503.10325: mean accepted lengths 1.7 to 3.2). At half of
the places that a drafter gets wrong its second choice is right, and half of what makes a place hard
is common to all drafters, so that their errors go together as those of real ones do.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from outrider.cloud_server.targets.base import Target
from outrider.cloud_server.targets.scripted import ScriptedTarget
from outrider.edge_client.group.members import Member
from outrider.edge_client.group.routing import Similarity, same
from outrider.protocol.errors import BackendError
from outrider.runtime.lm.base import ListedLM, Rows, check_feed
from outrider.runtime.lm.drafter import Drafter

DOMAINS = 3
OWN, FOREIGN, GENERAL = 0.8, 0.45, 0.6
SECOND = 0.5
"""Share of a drafter's mistakes in which its second choice is right."""

COMMON = 0.5
"""Share of the places at which the same hardness counts for all drafters."""

STRETCH = 40
"""Ids after which a text may change its domain."""

SIZE, PEAK = 64, 6.0


class DomainTarget(ScriptedTarget):
    """A scripted target that makes each of its rows only once."""

    def __init__(self, seed: int, slots: int) -> None:
        super().__init__(
            vocabulary=SIZE, seed=seed, order=2, peak=PEAK, n_ctx=4096, slots=slots, name="scripted"
        )
        self._rows: dict[tuple[int, ...], NDArray[np.float32]] = {}

    def row(self, ids: Sequence[int]) -> NDArray[np.float32]:
        key = tuple(ids[-2:])
        if key not in self._rows:
            self._rows[key] = super().row(key)
        return self._rows[key]


def domain(ids: Sequence[int]) -> int:
    """Which domain the next token of a text belongs to: it changes on the way."""
    return (ids[0] + len(ids) // STRETCH) % DOMAINS


class SpecialistLM(ListedLM):
    """Knows one domain (None: a bit of all)."""

    def __init__(self, target: ScriptedTarget, own: int | None, salt: int) -> None:
        name = "general" if own is None else f"domain {own}"
        super().__init__(name, SIZE, 4096)
        self._target, self._own, self._salt = target, own, salt

    def share(self, ids: Sequence[int]) -> float:
        """How often it is right at places like this one."""
        if self._own is None:
            return GENERAL
        return OWN if domain(ids) == self._own else FOREIGN

    def feed(self, ids: Sequence[int], rows: int = 1) -> Rows:
        check_feed(self, ids, rows, len(self._ids))
        self._ids.extend(ids)
        ends = range(len(self._ids) - rows + 1, len(self._ids) + 1)
        return np.array([self._row(self._ids[:i]) for i in ends], np.float32).reshape(rows, SIZE)

    def _row(self, ids: Sequence[int]) -> NDArray[np.float32]:
        row = self._target.row(ids)
        place = (len(ids), *ids[-2:])
        common = _chance(place, -1)
        hard = _chance(place, -2) if common < COMMON else _chance(place, self._salt)
        share = self.share(ids)
        if hard < share:
            return row
        best = int(row.argmax())
        wrong = (best + 1 + int(_chance(place, self._salt + 100) * (SIZE - 1))) % SIZE
        bent = row.copy()
        # Unsure where it is wrong, as drafters are, but not by much.
        bent[wrong] = row[best] - 0.5
        second = _chance(place, self._salt + 200) < SECOND
        bent[best] = bent[wrong] - (1.0 if second else 2 * PEAK)
        return bent

    def fork(self) -> SpecialistLM:
        raise BackendError("not needed here")


@lru_cache(maxsize=1 << 18)
def _chance(place: tuple[int, ...], salt: int) -> float:
    """A fixed number from 0 to 1 for a place and a salt."""
    data = ",".join(map(str, (*place, salt))).encode()
    return int.from_bytes(hashlib.blake2b(data, digest_size=4).digest(), "big") / 2**32


class Kit(Protocol):
    """Where the models and prompts of a comparison come from."""

    @property
    def vocabulary(self) -> int:
        """Ids that the models know."""

    def target(self, seed: int, slots: int) -> Target:
        """The target."""

    def members(self, seed: int, owns: Sequence[int | None]) -> list[Member]:
        """Drafters, general (None) or of a domain."""

    def similarity(self) -> Similarity:
        """How alike two tokens are."""

    def prompt(self, rng: random.Random, at: int) -> tuple[int, ...]:
        """The prompt of an edge's answer number ``at``."""


class ScriptedKit:
    """Scripted models of an assumed acceptance."""

    vocabulary = SIZE

    def target(self, seed: int, slots: int) -> Target:
        """Its text changes its domain on the way."""
        return DomainTarget(seed, slots)

    def members(self, seed: int, owns: Sequence[int | None]) -> list[Member]:
        """Errors of different members go together at half of the places."""
        target = DomainTarget(seed, 1)
        return [
            Member(f"m{own}", Drafter(SpecialistLM(target, own, -3 - i), SIZE))
            for i, own in enumerate(owns)
        ]

    def similarity(self) -> Similarity:
        """There are no embeddings."""
        return same

    def prompt(self, rng: random.Random, _at: int) -> tuple[int, ...]:
        """Ids that mean nothing."""
        return tuple(rng.randrange(SIZE) for _ in range(12))


SCRIPTED = ScriptedKit()
