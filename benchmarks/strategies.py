"""The strategies that are compared, and the machines that they are compared on.

Each strategy is a setting of our one machine: a policy at the edge, an objective, and how much
the verifier guesses by itself. Where it stands for a published scheme, ``deviation`` says how it
differs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from outrider.edge_client.adaptive import Adaptive
from outrider.edge_client.policy import Plan, Policy, Steady
from outrider.protocol.objective import Objective

LOOKUP = 8
"""Guesses that the verifier's own look-up adds at most, where it is on."""

LENGTHS = (1, 2, 4, 8, 16)
"""Draft lengths of lockstep."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Speeds of one pair of models in their places, in seconds and tokens a second.

    A pass takes ``target_pass``, and ``target_token`` for each token in it. ``cloud_step`` is the
    drafter's step where it runs beside the target.
    """

    name: str
    about: str
    draft_step: float
    prefill_rate: float
    target_pass: float
    cloud_step: float
    target_token: float = 0.0


MACHINES = {
    machine.name: machine
    for machine in (
        Machine("a", "Jetson-class edge, 30 ms a pass", 0.012, 500.0, 0.03, 0.003),
        Machine("b", "Pi-class edge, 30 ms a pass", 0.055, 40.0, 0.03, 0.003),
        Machine("c", "laptop, 100 ms a pass", 0.005, 1000.0, 0.1, 0.01),
        Machine("d", "a 4-bit target on a CPU, 43 ms a token", 0.034, 30.0, 0.006, 0.005, 0.043),
    )
}
"""The classes of the tables. Beside the target the drafter is assumed at a tenth of its pass."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """``plan`` None: the edge has no drafter; ``adaptive``: the plan is chosen while it runs.

    ``group`` is what it is compared as: ``cloud``, ``lockstep``, ``published``, ``streaming``,
    ``adaptive``; or, with a drafter beside the target, ``co-located``, whose user is behind the
    link, and ``own``, our verifier that has one (``own_drafter``).
    """

    name: str
    group: str
    plan: Plan | None
    objective: Objective = "latency"
    lookup: int = 0
    deviation: str = ""
    adaptive: bool = False
    own_drafter: bool = False

    @property
    def drafts(self) -> bool:
        """There is a drafter."""
        return self.plan is not None or self.adaptive

    @property
    def patient(self) -> bool:
        """The verifier never goes on without the guesses that it was promised."""
        return self.group in ("lockstep", "published", "co-located")

    @property
    def drafters(self) -> str:
        """Who guesses, edge first."""
        cloud = "n-gram" if self.lookup else "none"
        if self.own_drafter:
            cloud = "model and n-gram"
        if self.group == "co-located":
            return "edge: none, cloud: model"
        return f"edge: {'model' if self.drafts else 'none'}, cloud: {cloud}"

    def policy(self) -> Policy:
        """A fresh policy for an edge."""
        return Adaptive() if self.adaptive else Steady(self.plan or Plan(0, 0))


CLOUD = Strategy("cloud", "cloud", None)
NGRAM = Strategy("cloud + n-gram", "cloud", None, lookup=LOOKUP)


def lockstep(length: int) -> Strategy:
    """Draft, send, wait for the verdict, begin anew."""
    return Strategy(
        f"lockstep {length}",
        "lockstep",
        Plan(length, length),
        "cost",
        deviation="The first token does not wait, and the next one is decided in advance.",
    )


def co_located(length: int) -> Strategy:
    """Lockstep with both models in the cloud."""
    return Strategy(
        f"co-located {length}",
        "co-located",
        Plan(length, length),
        "cost",
        deviation="The drafter's speed there is assumed; only committed tokens travel.",
    )


def pearl(machine: Machine) -> Strategy:
    """One block is judged while the next is made; a refusal voids both."""
    g = max(1, min(16, round(machine.target_pass / machine.draft_step)))
    return Strategy(
        f"pearl {g}",
        "published",
        Plan(g, 2 * g),
        "cost",
        deviation=(
            "A pass starts when a block is there, not at a beat common to both models, and all "
            "of a waiting block is judged, not its first token."
        ),
    )


PICOSPEC = Strategy(
    "picospec 4",
    "published",
    Plan(4, 16),
    "cost",
    deviation=(
        "Tokens are compared under the coupled rule, so no probabilities travel, and drafts are "
        "not cut short for an idle cloud."
    ),
)

STREAMING = Strategy("streaming", "streaming", Plan(1, 16), "latency", LOOKUP)
BRANCH_CACHE = Strategy(
    "branch-cache",
    "streaming",
    Plan(1, 16, branch=8),
    "latency",
    LOOKUP,
    deviation="Guesses for refusals are kept at the cloud, where no trip has to be made for them.",
)
ADAPTIVE = Strategy("adaptive", "adaptive", None, "latency", LOOKUP, adaptive=True)
OWN = Strategy("cloud + own drafter", "own", None, "latency", LOOKUP, own_drafter=True)
BOTH = replace(OWN, name="adaptive + own drafter", adaptive=True)


def table(machine: Machine) -> list[Strategy]:
    """All rows of a table, in their order."""
    return [
        CLOUD,
        NGRAM,
        *(co_located(length) for length in (2, 4, 8)),
        *(lockstep(length) for length in LENGTHS),
        pearl(machine),
        PICOSPEC,
        STREAMING,
        BRANCH_CACHE,
        OWN,
        BOTH,
        ADAPTIVE,
        replace(ADAPTIVE, name="adaptive (balanced)", objective="balanced"),
        replace(ADAPTIVE, name="adaptive (cost)", objective="cost"),
    ]
