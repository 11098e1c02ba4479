"""What a world is made of: small frozen settings. Times in seconds, rates in bytes a second."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Literal

from outrider.cloud_server.planner import EngineSettings
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.messages import Limits
from outrider.simulator.links import Direction, Link

LIMITS = Limits(
    max_message=1 << 20,
    max_prompt=2048,
    max_tokens=1024,
    max_nodes_per_frame=16,
    max_nodes_in_flight=64,
    max_sessions=64,
    detached_seconds=30.0,
)

DrafterKind = Literal["good", "bad", "random", "mixed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """A plain link: ``delay`` one way, ``jitter`` more in the mean (order is kept), rates.

    Packet headers are left out. :mod:`outrider.simulator.profiles` has links as they are.
    """

    delay: float = 0.02
    jitter: float = 0.0
    up: float = 1e6
    down: float = 1e6

    def link(self) -> Link:
        """What it stands for."""
        up, down = (
            Direction(rate=rate, delay=self.delay, jitter=self.jitter, overhead=0)
            for rate in (self.up, self.down)
        )
        return Link(name="plain", up=up, down=down)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """How long work takes: a pass and each token in it, a draft step, prefill of one id.

    ``target_row`` is what each row of a pass costs, ``target_padded`` an id of it where every row
    is as long as the longest. ``own_step`` and ``own_prefill`` are those of the verifier's own
    draft model.
    """

    target_pass: float = 0.02
    target_token: float = 0.0005
    target_row: float = 0.0
    target_padded: float = 0.0
    draft_step: float = 0.005
    draft_prefill: float = 0.0005
    own_step: float = 0.003
    own_prefill: float = 0.0001

    def forward(self, fed: int, rows: int, longest: int) -> float:
        """Seconds of a pass over ``fed`` tokens."""
        row = self.target_row + self.target_padded * longest
        return self.target_pass + row * rows + self.target_token * fed


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterSettings:
    """A drafter that is right as often as told. ``dies_after`` works it fails for good.

    ``branch``: guesses beside the chain in one place, at most.
    """

    kind: DrafterKind = "good"
    agreement: float = 0.7
    floor: float = 0.0
    frame: int = 4
    window: int = 8
    branch: int = 0
    n_ctx: int = 4096
    dies_after: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One answer that a user asks for.

    It keeps ``keep`` (0 to 1) of the session's ids and goes on with ``ids``, or starts anew with
    ``text`` that the cloud renders. ``cancel_after`` so many tokens, or ``cancel_in`` so many
    seconds, it is cancelled and the next turn begins at once. ``afresh``: the session is closed
    and another one opened first.
    """

    ids: tuple[int, ...] = ()
    text: str | None = None
    keep: float = 1.0
    max_tokens: int = 16
    sampling: Sampling = Sampling()  # noqa: RUF009 - frozen
    stops: tuple[str, ...] = ()
    ignore_eos: bool = False
    objective: str | None = "cost"
    logprobs: int | None = None
    cancel_after: int | None = None
    cancel_in: float | None = None
    afresh: bool = False


Kind = Literal["cut", "stall", "cloud_first", "replace", "restart", "cap"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Something that goes wrong at ``at``.

    ``cut``: the transport breaks; what is under way is lost. ``stall``: both directions swallow
    everything until timeouts notice. ``cloud_first``: only the cloud sees it end, the edge later.
    ``replace``: the edge gives up a sound connection and opens another; what is under way on the
    old one arrives ``late`` seconds later. ``restart``: the verifier forgets everything.
    ``notice`` is when the slower end finds out, counted from ``at``. ``cap``: from now on edges may
    send so many bytes of guesses a second.
    """

    at: float
    kind: Kind
    edge: int = 0
    notice: float = 0.5
    late: float = 0.0
    cap: float = inf


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeSettings:
    """One edge: its link, its drafter (None: plain cloud streaming), and its users' turns.

    ``sessions[i]`` are the turns of one user, who begins ``starts[i]`` after the world did.
    """

    link: LinkSettings | Link = LinkSettings()
    drafter: DrafterSettings | None = DrafterSettings()
    sessions: tuple[tuple[Turn, ...], ...] = ()
    starts: tuple[float, ...] = ()
    back_off: float = 0.2
    part_bytes: int = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSettings:
    """Everything. ``limit`` is the virtual time by which all answers must have ended.

    ``rehearsed``: sizes of passes that the verifier timed before anybody came.
    ``own`` is the verifier's own draft model (how far it goes is the engine's affair): with it and
    edges without a drafter, the world is co-located speculation.
    """

    seed: int = 0
    vocabulary: int = 16
    target_seed: int = 1
    slots: int = 4
    n_ctx: int = 4096
    eos: frozenset[int] = frozenset()
    edges: tuple[EdgeSettings, ...] = ()
    costs: Costs = Costs()
    engine: EngineSettings = field(default_factory=EngineSettings)
    rehearsed: tuple[int, ...] = ()
    own: DrafterSettings | None = None
    own_longest: int = 16
    limits: Limits = LIMITS
    troubles: tuple[Trouble, ...] = ()
    limit: float = 600.0
    max_steps: int = 200_000
