"""One verifier as a gateway sees it: its link's machine, what it said of itself, who is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from outrider.protocol.edge import EdgeMachine, State
from outrider.protocol.edge_session import EdgeSession
from outrider.protocol.fingerprint import Vocabulary
from outrider.protocol.messages import Welcome

if TYPE_CHECKING:
    from outrider.cloud_server.cluster.relay import Relay

AGENT = "outrider-gateway"


@dataclass(slots=True, eq=False)
class Replica:
    """Made with :func:`replica`. ``relays`` are the sessions that are there.

    ``draining``: it is given nothing new. ``alien``: why it cannot be used, though it answers.
    ``shunned``: until when it said that it takes no more answers. ``way``: seconds of the shortest
    ping lately; ``page``: what its ``/status`` said last.
    """

    name: str
    machine: EdgeMachine
    relays: dict[EdgeSession, Relay] = field(default_factory=dict)
    draining: bool = False
    alien: str | None = None
    shunned: float = 0.0
    way: float | None = None
    page: dict[str, Any] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        """Its link is up, and it serves what all of them serve."""
        return self.machine.state is State.READY and self.alien is None

    @property
    def state(self) -> str:
        """For people."""
        if self.alien is not None:
            return "refused"
        if not self.ready:
            return "down"
        return "draining" if self.draining else "ready"

    @property
    def working(self) -> int:
        """Answers that it works on for this gateway."""
        return sum(relay.at_work for relay in self.relays.values())


def replica(name: str, vocabulary: Vocabulary, entropy: Callable[[int], bytes]) -> Replica:
    """A replica that nobody has heard of yet."""
    return Replica(name, EdgeMachine(vocabulary, AGENT, entropy))


@dataclass(frozen=True, slots=True)
class Serves:
    """What all replicas of one cluster must have in common, beside the vocabulary."""

    model: str
    n_ctx: int
    eos: tuple[int, ...]
    features: tuple[str, ...]
    same_template: bool

    @classmethod
    def of(cls, welcome: Welcome) -> Serves:
        """From what a replica says of itself."""
        return cls(
            welcome.model,
            welcome.n_ctx,
            welcome.eos,
            welcome.features,
            welcome.same_template and welcome.specials is None,
        )

    def differs(self, other: Serves) -> str | None:
        """The first thing in which a replica is another than expected, in words."""
        for name in ("model", "n_ctx", "eos", "features", "same_template"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                return f"its {name} is {theirs!r}; this cluster serves {mine!r}"
        return None
