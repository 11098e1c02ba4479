"""Fair shares of the verifier between keys: who used how much of its time lately.

Each key is charged for its rows and tokens, refused guesses included, in seconds of the target. A
key that used more than its share loses weight until it is even again, in the manner of fair
queueing (a key's virtual time runs with what it is charged, divided by its weight). So whoever
sends bad guesses pays with what is left of its own share.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

MEMORY = 5.0
"""Seconds after which what was used counts 1 / e."""

FLOOR, CEILING = 0.25, 4.0
"""A key's factor at most: a share is restored over some steps, not in one."""

SOME = 1e-3
"""Seconds of use added to everybody's, so that the first steps of a key decide nothing."""


class Shares:
    """What each key used. ``weights`` are the keys' shares, 1 for those that are not named."""

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        self.weights = dict(weights or {})
        self._used: dict[str, float] = {}
        self._at = 0.0

    def charge(self, used: Mapping[str, float], now: float) -> None:
        """So many seconds of the target went to each key since the last call."""
        keep = math.exp(-max(0.0, now - self._at) / MEMORY)
        self._at = now
        for owner, amount in self._used.items():
            self._used[owner] = keep * amount
        for owner, amount in used.items():
            self._used[owner] = self._used.get(owner, 0.0) + amount
        self._used = {o: amount for o, amount in self._used.items() if amount > SOME / 100}

    def factors(self, owners: Iterable[str]) -> dict[str, float]:
        """For each key that asks now: what to multiply the weight of its requests with."""
        asking = set(owners)
        if len(asking) < 2:
            return dict.fromkeys(asking, 1.0)
        weight = {o: max(1e-6, self.weights.get(o, 1.0)) for o in asking}
        total = sum(weight.values())
        used = {o: self._used.get(o, 0.0) + SOME * weight[o] / total for o in asking}
        everything = sum(used.values())
        even = {o: everything * weight[o] / total for o in asking}
        return {o: min(CEILING, max(FLOOR, even[o] / used[o])) for o in asking}
