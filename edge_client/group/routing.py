"""Who of a group drafts for a request: a score for each member, learned from what was committed.

After CoSine (arXiv 2503.10325): a score mixes the member's own probability of its token with the
similarity, in embedding space, of that token and the one committed at its place, *harmonically*, so
that a member that is sure and wrong loses. While little of the recent drafts was accepted, members
that were seldom tried are preferred; otherwise the best are. The paper's constants were not
published: all of those below are ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

Similarity = Callable[[int, int], float]
"""Of two tokens, from -1 to 1; 1 for the same one."""

KEEP = 0.8
"""Weight of a score's past with each position judged."""

IDLE_KEEP = 0.97
"""The same for members that were not asked: they are forgotten slowly, and tried again."""

EXPLORE, EXPLOIT = 0.4, 0.05
"""How much being little tried counts, while drafts are short and otherwise."""

SHORT = 0.5
"""Share of the drafted depth under which the recent accepted length counts as short."""

LENGTH_KEEP = 0.8
START, PRIOR_WEIGHT = 0.5, 4.0
"""Score of a member of which nothing is known, and the most positions that a prior counts for."""

PRIOR_KEEP = 0.5
"""What of a key's prior is left after each further request."""

FORESIGHT_KEEP = 0.95
"""Weight of the past with each position judged, in how well a member foresees the text: its last 20
positions or so count."""

UNFORESEEN, UNKNOWN = -5.0, -1.0
"""Log-probability of what was committed that counts at least, and before anything was judged."""

EVIDENCE = 0.2
"""What the evidence counts: neighbouring positions say much the same, and members that are right
for different reasons are worth hearing together. At 1 one member decides nearly alone."""

EVEN = 0.1
"""Part of the weights that all members share alike: no one is ever unheard."""

BUSY = 0.5
"""Share of its score that a member loses at full load."""


def same(a: int, b: int) -> float:
    """Similarity where no embeddings are reachable: equality."""
    return float(a == b)


def signal(probability: float, similarity: float) -> float:
    """The harmonic mean of both, 0 to 1."""
    s = max(0.0, similarity)
    total = probability + s
    return 2 * probability * s / total if total > 0 else 0.0


@dataclass(slots=True)
class Route:
    """One request's scores. ``tried[i]`` positions of member i were judged, recent ones most.

    ``foresight[i]`` is the mean log-probability that member i gave to what was committed, over the
    last ``foreseen`` positions or so.
    """

    scores: list[float]
    tried: list[float]
    accepted: float | None = None
    depth: float = 1.0
    foresight: list[float] = field(default_factory=list)
    foreseen: float = 0.0

    def __post_init__(self) -> None:
        self.foresight = self.foresight or [UNKNOWN] * len(self.scores)

    def foresaw(self, logs: Mapping[int, float]) -> None:
        """Members gave these log-probabilities to what was committed at one position."""
        gain = 1 / (1 + FORESIGHT_KEEP * self.foreseen)
        for member, value in logs.items():
            self.foresight[member] += gain * (max(UNFORESEEN, value) - self.foresight[member])
        self.foreseen = 1 + FORESIGHT_KEEP * self.foreseen

    def weights(self, members: Sequence[int]) -> dict[int, float]:
        """What each member's word counts, 1 in all: its chance to be the model of this text.

        That is exp of the evidence, the log-probability of the recent text under it, tempered.
        """
        evidence = {m: EVIDENCE * self.foreseen * self.foresight[m] for m in members}
        most = max(evidence.values())
        odds = {m: math.exp(value - most) for m, value in evidence.items()}
        total = sum(odds.values())
        return {m: EVEN / len(members) + (1 - EVEN) * o / total for m, o in odds.items()}

    def observe(self, values: Mapping[int, float]) -> None:
        """Members' tokens at one position were judged; what is known of the others gets old."""
        for member, tried in enumerate(self.tried):
            if member in values:
                weight = max(1 - KEEP, 1 / (2 + tried))
                self.scores[member] += weight * (values[member] - self.scores[member])
                self.tried[member] = 1 + KEEP * tried
            else:
                self.scores[member] += (1 - IDLE_KEEP) * (START - self.scores[member])
                self.tried[member] = IDLE_KEEP * tried

    def accepts(self, length: int, depth: int) -> None:
        """A draft of this depth was judged, so much of it was right."""
        known = float(length) if self.accepted is None else self.accepted
        self.accepted = LENGTH_KEEP * known + (1 - LENGTH_KEEP) * length
        self.depth = LENGTH_KEEP * self.depth + (1 - LENGTH_KEEP) * depth

    @property
    def exploring(self) -> bool:
        """Little was accepted lately."""
        return self.accepted is None or self.accepted < SHORT * self.depth

    def choose(self, ready: Sequence[int], count: int, load: Callable[[int], float]) -> list[int]:
        """The ``count`` members to ask, best first. One alone is no place for experiments."""
        total = 1 + sum(self.tried)
        weight = EXPLORE if self.exploring and count > 1 else EXPLOIT

        def worth(member: int) -> float:
            bonus = weight * math.sqrt(math.log(1 + total) / (1 + self.tried[member]))
            return self.scores[member] * (1 - BUSY * load(member)) + bonus

        return sorted(ready, key=lambda m: (-worth(m), m))[:count]


@dataclass(slots=True)
class Router:
    """The routes of all requests; what one taught is where the next of the same key begins."""

    members: int
    routes: dict[tuple[int, int], Route] = field(default_factory=dict)
    _priors: dict[str, Route] = field(default_factory=dict)
    _keys: dict[tuple[int, int], str] = field(default_factory=dict)

    def route(self, request: tuple[int, int], key: str = "") -> Route:
        """The route of a request, begun from the key's prior."""
        if request not in self.routes:
            before = self._priors.get(key, Route([START] * self.members, [0.0] * self.members))
            self.routes[request] = Route(
                list(before.scores),
                [min(PRIOR_WEIGHT, PRIOR_KEEP * w) for w in before.tried],
                foresight=list(before.foresight),
                foreseen=min(PRIOR_WEIGHT, PRIOR_KEEP * before.foreseen),
            )
            self._keys[request] = key
        return self.routes[request]

    def end(self, request: tuple[int, int]) -> None:
        """The request is over: its key remembers."""
        route = self.routes.pop(request, None)
        if route is not None:
            self._priors[self._keys.pop(request)] = route
