"""The shares that act in a gateway: of a replica's compute as weights, of its band as caps.

A session's compute share is its weight in the token budget of its replica's scheduler, its
bandwidth share a cap on the bytes of guesses that its edge may send, told in verdicts. Both are
worked out anew now and then from what the sessions ask for (arXiv 2511.01695, with wired links).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Literal

import numpy as np

from outrider.cloud_server.cluster.relay import Relay
from outrider.cloud_server.cluster.replica import Replica
from outrider.cloud_server.placement.problem import Floats
from outrider.cloud_server.placement.shares import linear_bands, root_shares
from outrider.protocol.pacing import FRAME_BYTES, cap_code, cap_rate

ShareName = Literal["equal", "optimised"]
SHARES: tuple[ShareName, ...] = ("equal", "optimised")

GAIN = 1 / 4
"""Of what a session asks for, at each look."""

INTERVAL = 1.0
"""Seconds between two looks, unless sessions came or went."""

NOTICED = 0.05
"""By what part a weight must change to be told."""

STEPS_NOTICED = 2
"""The same of a cap, in steps of its code: a fifth."""

HEADROOM = 1.5
"""Of a cap over what its edge was seen to send: who is held back by a cap is never seen to send
more than that, however quick it is."""

USUAL_GAP = 0.05
"""Seconds a guess takes an edge that has not been timed."""


class LiveShares:
    """``band``: bytes a second of draft frames that one replica's sessions may send together.

    Where a link to a replica was found to be the limit, what it carries is the band if that is
    less. Without either, nobody is capped. ``guess_bytes``: what one guess takes on the wire.
    """

    def __init__(self, kind: ShareName, guess_bytes: float, band: float = math.inf) -> None:
        self.kind, self.band = kind, band
        self._guess_bytes = guess_bytes
        self._looked = -math.inf
        self._seen: set[Relay] = set()

    def look(self, relays: Iterable[Relay], now: float) -> None:
        """Give shares to all answers that are worked on."""
        working = [r for r in relays if r.at_work and r.wanted and r.replica is not None]
        here = set(working)
        if now - self._looked < INTERVAL and here == self._seen:
            return
        for relay in self._seen - here:
            relay.session.cap = math.inf
        self._looked, self._seen = now, here
        places: dict[str, list[Relay]] = defaultdict(list)
        for relay in working:
            assert relay.replica is not None
            places[relay.replica.name].append(relay)
            relay.work += GAIN * (relay.asks - relay.work)
        for there in places.values():
            self._share(there)

    def _share(self, relays: list[Relay]) -> None:
        """Among the sessions of one replica."""
        replica = relays[0].replica
        assert replica is not None
        work = np.array([relay.work for relay in relays])
        weights = np.ones(len(relays))
        if self.kind == "optimised":
            weights = root_shares(work, np.zeros(len(relays), np.int64)) * len(relays)
        for relay, weight in zip(relays, weights.tolist(), strict=True):
            _weigh(relay, replica, weight)
        band = min(self.band, replica.machine.link.goodput_up or math.inf)
        caps = np.full(len(relays), math.inf)
        if math.isfinite(band):
            caps = band * self._bands(relays, work, band)
        for relay, cap in zip(relays, caps.tolist(), strict=True):
            _limit(relay, cap)

    def _bands(self, relays: list[Relay], work: Floats, band: float) -> Floats:
        if self.kind == "equal":
            return np.full(len(relays), 1.0 / len(relays))
        guesses = np.maximum(1.0, work - 1.0)
        gaps = np.array([max(1e-3, r.session.node_gap or USUAL_GAP) for r in relays])
        size = FRAME_BYTES + self._guess_bytes * guesses
        # Whoever does not guess now needs little, and must be able to say when that changes.
        riding = [r.session.riding for r in relays]
        seconds = np.where(riding, gaps * guesses / HEADROOM, 1.0)
        return linear_bands(size, seconds, band)


def _weigh(relay: Relay, replica: Replica, weight: float) -> None:
    if relay.onward is not None and abs(weight - relay.weight) > NOTICED * relay.weight:
        replica.machine.weigh(relay.onward, weight)


def _limit(relay: Relay, cap: float) -> None:
    """Small changes are not told: the edge plans by what it knows."""
    session = relay.session
    code = cap_code(cap)
    known = cap_code(session.cap)
    if code == known or (code and known and abs(code - known) < STEPS_NOTICED):
        return
    session.cap = cap_rate(code)
