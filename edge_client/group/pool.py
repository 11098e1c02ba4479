"""What several members name for one place, weighed into one ranking.

Members give their likeliest choices by noisy score with their own probability q_i of each. The pool
is their mixture, sum_i w_i q_i(token): a member's weight w_i is its chance to be the model of this
request's text (:meth:`outrider.edge_client.group.routing.Route.weights`), and none can veto what
others are sure of. To its logarithm the shared noise of the coupled rule is added, once: what has
to be guessed is the target's *noisy* best, and the likeliest after the pool's first is its second
under the same noise. Of a token that a member did not name only a bound is known: its noisy score
is under the last that the member did name.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from outrider.protocol.decoding.rules import Proposal

Noise = Callable[[list[int]], NDArray[np.float64]]
"""The shared noise of some tokens at a place; zeros at temperature 0."""

UNNAMED = 0.5
"""By how much a token that a member did not name is taken to score under the last that it did."""

LEAST = math.exp(-20.0)


class Candidate(NamedTuple):
    """A token that may come next. ``rank`` 0 is the pool's first choice.

    ``gap``: by how much the first scores above the second, and above each of the others (natural
    units, noise included). ``votes`` of ``voices`` members name it first. ``confidence``: the
    largest probability that a member gives it.
    """

    id: int
    rank: int
    gap: float
    confidence: float
    votes: int = 1
    voices: int = 1


def pooled(
    named: Mapping[int, Sequence[Proposal]], weights: Mapping[int, float] | None, noise: Noise
) -> list[Candidate]:
    """All tokens that are named, best first, ties to the lower id; none where nobody names any.

    Without weights the members are equals: what more of them name first comes first.
    """
    tokens = sorted({p.id for proposals in named.values() for p in proposals})
    if not tokens:
        return []
    mixture = np.zeros(len(tokens))
    for member, proposals in named.items():
        if proposals:
            weight = weights[member] if weights is not None else 1.0
            mixture += weight * np.exp(log_probabilities(tokens, proposals, noise))
    scores = np.log(mixture) + noise(tokens)
    largest = {
        token: max(p.confidence for known in named.values() for p in known if p.id == token)
        for token in tokens
    }
    votes = Counter(proposals[0].id for proposals in named.values() if proposals)
    first = np.array([0 if weights is not None else -votes[token] for token in tokens])
    order = np.lexsort((-scores, first))
    best = scores[order[0]]
    gaps = [best - scores[at] for at in order]
    gaps[0] = gaps[1] if len(gaps) > 1 else math.inf
    ids = [tokens[at] for at in order]
    voices = votes.total()
    return [
        Candidate(token, rank, float(gap), largest[token], votes[token], voices)
        for rank, (token, gap) in enumerate(zip(ids, gaps, strict=True))
    ]


def log_probabilities(
    tokens: Sequence[int], proposals: Sequence[Proposal], noise: Noise
) -> NDArray[np.float64]:
    """A member's log-probability of each token, or the bound on it; ``proposals`` best first."""
    known = {p.id: math.log(max(LEAST, p.confidence)) for p in proposals}
    unnamed = [token for token in tokens if token not in known]
    last = proposals[-1].id
    shared = noise([last, *unnamed])
    bounds = known[last] + shared[0] - UNNAMED - shared[1:]
    known |= {token: min(0.0, float(b)) for token, b in zip(unnamed, bounds, strict=True)}
    return np.array([known[token] for token in tokens])
