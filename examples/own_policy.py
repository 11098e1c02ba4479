"""A policy of your own: how far to guess. Usage: own_policy.py [CLOUD]

A package can register such a class under a name, for ``Outrider(policy="twice-as-far")``::

    [project.entry-points."outrider.policies"]
    twice-as-far = "my_package:TwiceAsFar"
"""

import sys

from outrider.edge_client.api import Outrider
from outrider.edge_client.policy import Observed, Plan, Policy

CLOUD = sys.argv[1] if len(sys.argv) > 1 else "ws://127.0.0.1:8471"


class TwiceAsFar(Policy):
    """Doubles the draft length while guesses are right, and begins anew after a wrong one."""

    name = "twice-as-far"
    length = 1

    def plan(self, observed: Observed) -> Plan:
        right = observed.acceptance is None or observed.acceptance > 0.5
        self.length = min(2 * self.length, 16) if right and not observed.ahead else self.length
        self.length = self.length if right else 1
        self.reason = f"lockstep, {self.length} a frame"
        return Plan(self.length, self.length)


with Outrider(CLOUD, policy=TwiceAsFar()) as client:
    answer = client.ask("And God said, Let there be light", max_tokens=32)
    print(answer.text)
    print(f"{answer.drafted} guesses in {answer.frames} frames, {answer.accepted} accepted")
