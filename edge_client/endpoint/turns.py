"""One drafter, several answers: they draft in turns.

The drafter has one cache. If every frame were for another answer than the last, it would read whole
texts again for each of them. So one answer has the drafter for a while; the others go on as plain
cloud streaming and get it in the order in which they asked.
"""

from __future__ import annotations

from collections.abc import Callable

from outrider.edge_client.policy import Observed, Plan, Policy

TURN = 64
"""Tokens of an answer after which the next one gets the drafter."""

READING = 0.25
"""For each id that had to be read first, a turn is longer by so many tokens."""

OFF = Plan(0, 0)


class Turns(Policy):
    """The policy that was chosen, for the answer whose turn it is, and no drafting for the others.

    ``chosen(frame)`` is told the length of every frame that is planned; ``frame`` is the last one.
    """

    name = "turns"

    def __init__(self, policy: Policy, chosen: Callable[[int], None] = lambda _: None) -> None:
        self.policy = policy
        self._chosen = chosen
        self._wanted: dict[int, bool] = {}
        self._queue: list[int] = []
        self._until = 0.0
        self._begun = False
        self.frame = 0

    @property
    def about(self) -> str:
        """What the chosen policy does."""
        return self.policy.about

    def begin(self, session: int, *, draft: bool) -> None:
        """An answer of this session begins; it may not want drafts."""
        self._wanted[session] = draft

    def end(self, session: int) -> None:
        """It is over, and with it its turn."""
        self._wanted.pop(session, None)
        if session in self._queue:
            if self._queue[0] == session:
                self._begun = False
            self._queue.remove(session)

    def plan(self, observed: Observed) -> Plan:
        """Whose turn it is, and then what the chosen policy says."""
        session = observed.session
        if not self._wanted.get(session, True):
            self.reason, self.frame = "the request turned drafting off", 0
            return OFF
        if session not in self._queue:
            self._queue.append(session)
        if self._queue[0] != session:
            self.reason = "another answer has the drafter"
            return OFF
        if not self._begun:
            self._begun = True
            self._until = observed.emitted + TURN + READING * observed.behind
        elif observed.emitted >= self._until and len(self._queue) > 1:
            self._pass_on()
            self.reason = "another answer has the drafter"
            return OFF
        plan = self.policy.plan(observed)
        self.reason = self.policy.reason
        self.frame = plan.frame
        if plan.frame:
            self._chosen(plan.frame)
        elif len(self._queue) > 1:
            self._pass_on()  # it does not pay for this one; perhaps for the next
        return plan

    def _pass_on(self) -> None:
        self._queue.append(self._queue.pop(0))
        self._begun = False
