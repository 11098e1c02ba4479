"""What a step may be made of, and what a choice of it is worth. Plain numbers, no tensors.

A request asks for a row of the next step. What is chosen is which requests are in it and how many
of its guesses each may have judged; the rest is served in the step after it. :func:`worth` is
CoSine's objective (arXiv 2503.10325: weighted latency and verified tokens under caps) in our own
terms, the weighted latency of a token while everybody is served:

    (seconds of the step, and of one with the rest, without guesses + price * tokens)
    / (sum of weight * tokens expected of each row, those of the rest counting LATER times)

With everybody in the step, equal weights and no price its inverse is TurboSpec's goodput (arXiv
2406.14066): tokens expected to be committed a second. Leaving a row out saves nothing, unless it
is long and stretches all others; where a cap makes it necessary, the heavier ones go first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import msgspec

from outrider.cloud_server.scheduling.step_time import StepTime

LATER = 0.5
"""What a token of the step after the next is worth of one in the next."""

ROUNDING = 1e-9
"""Seconds by which sums in another order may exceed a cap."""


class Rank(IntEnum):
    """Kinds of work, in the order in which they are taken into a step."""

    VERIFY = 0
    PREFILL = 1
    ADVANCE = 2
    """A token for a session that does not ride."""
    OPTIONAL = 3
    """A token for one that rides and whose guesses are under way."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a step. ``tokens`` it needs in any case, one for the frontier included.

    ``reach[j]`` is the probability that its first j + 1 guesses are all right: it falls, and its
    length is how many there are. ``context`` ids are in the row at the end. ``weight`` says how
    much its latency counts, ``since`` when it became ready (seconds).
    """

    rank: Rank
    tokens: int = 1
    reach: tuple[float, ...] = ()
    context: int = 0
    weight: float = 1.0
    since: float = 0.0

    def expected(self, drafts: int) -> float:
        """Tokens that a step with so many of its guesses is expected to commit."""
        return 1.0 + sum(self.reach[:drafts])


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """What a step may be at most: ``tokens``, ``seconds``, new cache entries (``memory``).

    ``price``: seconds that a token in the step counts for besides its own.
    """

    tokens: int = 2048
    seconds: float = float("inf")
    memory: float = float("inf")
    price: float = 0.0


Choice = Mapping[int, int]
"""By index of the requests in the step: how many of its guesses. For a prefill: how many of its
tokens fewer than it asked for, as a negative number."""


def seconds(requests: Sequence[Request], choice: Choice, times: StepTime) -> float:
    """How long the step is expected to take."""
    if not choice:
        return 0.0
    longest = max(requests[i].context for i in choice)
    return times.of(fed(requests, choice), len(choice), longest)


def fed(requests: Sequence[Request], choice: Choice) -> int:
    """Tokens in the step."""
    return sum(requests[i].tokens + drafts for i, drafts in choice.items())


def worth(requests: Sequence[Request], choice: Choice, times: StepTime, caps: Caps) -> float | None:
    """Weighted seconds a token, to be as small as can be; None: the choice exceeds a cap."""
    took, tokens = seconds(requests, choice, times), fed(requests, choice)
    if took > caps.seconds + ROUNDING or tokens > min(caps.tokens, caps.memory):
        return None
    rest = dict.fromkeys((i for i in range(len(requests)) if i not in choice), 0)
    gain = sum(requests[i].weight * requests[i].expected(d) for i, d in choice.items())
    gain += LATER * sum(requests[i].weight for i in rest)
    tokens += fed(requests, rest)
    return (took + seconds(requests, rest, times) + caps.price * tokens) / gain
