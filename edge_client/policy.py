"""How far to ride ahead: policies decide, the engine and the window enforce.

Lockstep, the streaming schemes and plain cloud streaming are settings of one thing, a
:class:`Plan`: a frame of so many tokens, and so many guesses outstanding at most.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import inf

from outrider.protocol.errors import SettingError
from outrider.protocol.link import LinkEstimator

MAX_DRAFT = 64
"""Longest draft length accepted: beyond it no pair of models gains anything."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What a policy may look at. Times in seconds; None is unknown and must be handled.

    ``session`` tells sessions apart, since one policy serves all of an edge. ``acceptance`` is the
    share of ``judged`` recent guesses that were right. ``behind`` ids have to
    be evaluated before the drafter can guess, at ``prefill_rate`` ids a second. Answer number
    ``answer`` has ``emitted`` tokens at ``now`` and at most ``left`` to come; ``ahead`` guesses
    after them stand so far. At most ``cap`` bytes of frames may leave a second; a guess takes
    ``guess_bytes``, and every frame a header besides.
    """

    session: int
    answer: int
    now: float
    link: LinkEstimator
    objective: str
    acceptance: float | None
    judged: float
    draft_step: float | None
    prefill_rate: float | None
    behind: int
    left: int
    emitted: int
    ahead: int = 0
    cap: float = inf
    guess_bytes: float = 2.5


@dataclass(frozen=True, slots=True)
class Plan:
    """Guesses a frame, guesses outstanding at most, and the confidence under which to stop.

    ``frame`` 0 is plain cloud streaming: do not draft. Guesses are kept until ``gather`` of them
    can leave in one message, or no more will follow. ``branch``: guesses that may stand beside
    the chain in one place, in case it is refused there (:mod:`outrider.edge_client.branches`).
    ``offers``: of a text of several models, what the cloud proposes is scored before guessing.
    ``chance``: how likely right a guess must be to be made at all.
    """

    frame: int
    window: int
    floor: float = 0.0
    gather: int = 1
    branch: int = 0
    offers: bool = False
    chance: float = 0.0


class Policy(ABC):
    """One small decision, taken anew before every frame."""

    name: str
    reason: str = "fixed"
    """Why the last plan is as it is, for people."""

    @property
    def about(self) -> str:
        """What the policy does, in a few words for people."""
        return self.name

    @abstractmethod
    def plan(self, observed: Observed) -> Plan:
        """What to do now."""


class Steady(Policy):
    """One plan, always: lockstep, a fixed stream, or nothing at all."""

    name = "steady"

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    @property
    def about(self) -> str:
        plan = self._plan
        tokens = "token" if plan.frame == 1 else "tokens"
        ahead = "" if plan.window == plan.frame else f", up to {plan.window} ahead"
        return f"{plan.frame} {tokens} a frame{ahead}"

    def plan(self, observed: Observed) -> Plan:  # noqa: ARG002 - it never changes
        return self._plan


class Fixed(Steady):
    """Lockstep with one draft length: a frame of ``length``, then wait for its verdict."""

    name = "fixed"

    def __init__(self, length: int, floor: float = 0.0) -> None:
        if not 0 <= length <= MAX_DRAFT:
            raise SettingError(f"draft length {length}; it must be 0 (off) to {MAX_DRAFT}")
        if not 0.0 <= floor <= 1.0:
            raise SettingError(f"draft-p-min {floor}; it must be 0 to 1")
        super().__init__(Plan(length, length, floor))
