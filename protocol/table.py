"""All sessions of one verifier, and what the verifier is and allows."""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from outrider.protocol import messages as m
from outrider.protocol.errors import SessionError, SettingError
from outrider.protocol.fingerprint import Vocabulary
from outrider.protocol.queue import AnswerQueue, Capacity
from outrider.protocol.quota import NO_QUOTA, Meter, Quota
from outrider.protocol.session import CloudSession

RETRY = 2.0
"""Seconds after which it makes sense to ask for a session again."""


@dataclass(slots=True)
class CloudConfig:
    """What the cloud is and allows. ``render`` turns an open's messages or text into ids.

    ``capacity`` None: every answer is worked on at once. A connection on which nothing runs and
    nothing comes for ``idle_seconds`` is closed. ``trees``: the target judges more than chains.
    ``collaborators``: further models that can take part in a text.
    ``elsewhere``: addresses where the same service can be had. ``collaborates``: texts of a
    combination of models can be had.

    ``render`` raises :class:`SessionError` for what it cannot honour; it must be quick, since the
    driver's loop waits for it. ``constrain`` raises it for a form that it cannot enforce; None:
    this cloud enforces none. ``tools``: its chat template has a place for them.
    """

    vocabulary: Vocabulary
    model: str
    n_ctx: int
    eos: tuple[int, ...]
    limits: m.Limits
    agent: str
    render: Callable[[m.Open], tuple[int, ...]]
    objective: str = "latency"
    collaborators: tuple[str, ...] = ()
    capacity: Capacity | None = None
    idle_seconds: float = 600.0
    trees: bool = False
    constrain: Callable[[str], None] | None = None
    tools: bool = False
    elsewhere: tuple[str, ...] = ()
    collaborates: bool = True

    @property
    def features(self) -> tuple[str, ...]:
        """What of this software's features the cloud has."""
        here = {m.TREES: self.trees, m.GRAMMAR: self.constrain is not None, m.TOOLS: self.tools}
        here[m.COLLABORATE] = self.collaborates
        return tuple(name for name in m.FEATURES if here.get(name, True))

    def __post_init__(self) -> None:
        """Refuse limits that an edge could break before it knows them."""
        limits = self.limits
        frame, flight = limits.max_nodes_per_frame, limits.max_nodes_in_flight
        if frame < m.LEAST_FRAME_NODES or flight < m.LEAST_IN_FLIGHT:
            raise SettingError(
                f"limits of {frame} nodes a frame and {flight} in flight; every cloud must allow "
                f"{m.LEAST_FRAME_NODES} and {m.LEAST_IN_FLIGHT}"
            )


@dataclass(slots=True)
class SessionTable:
    """All sessions of one verifier, by key. The only owner of their lives.

    While ``closing``, no answer begins. ``dropped`` counts sessions that were forgotten.
    ``pass_times`` are tokens and seconds of passes, told in welcomes.
    ``quotas`` are those of the keys that have any, by name; the queue says whose turn it is.
    ``refused`` counts answers by code; ``on_open`` and ``on_end`` are told of each that
    begins or is over.
    ``cached`` says how many ids of a prompt need no evaluation, ``ended`` how an answer ended that
    an edge gave back with a full context, and how many bytes of its text are kept (None: all); the
    engine puts itself there. Where ``ended`` gives None, somebody else will say.
    """

    config: CloudConfig
    sessions: dict[bytes, CloudSession] = field(default_factory=dict)
    closing: bool = False
    dropped: int = 0
    pass_times: tuple[tuple[float, float], ...] = ()
    quotas: Mapping[str, Quota] = field(default_factory=dict)
    meter: Meter = field(default_factory=Meter)
    queue: AnswerQueue = field(init=False)
    refused: Counter[str] = field(default_factory=Counter)
    on_open: Callable[[CloudSession], None] = lambda _session: None
    on_end: Callable[[CloudSession, float], None] = lambda _session, _now: None
    cached: Callable[[CloudSession], int] = lambda _session: 0
    ended: Callable[[CloudSession], tuple[str, int | None] | None] = lambda _session: (
        "length",
        None,
    )

    def __post_init__(self) -> None:
        self.queue = AnswerQueue(self.config.capacity)

    def quota(self, owner: str) -> Quota:
        """What the holder of this key may ask."""
        return self.quotas.get(owner, NO_QUOTA)

    def obtain(self, key: bytes, secret: bytes, owner: str, now: float) -> CloudSession:
        """The session with this key, made if need be.

        Raises:
            SessionError: it belongs to somebody else, or there are too many.
        """
        session = self.sessions.get(key)
        if session is not None:
            if not hmac.compare_digest(session.secret, secret) or session.owner != owner:
                raise SessionError("this session belongs to another client", code="session_secret")
            return session
        own = [s for s in self.sessions.values() if s.owner == owner]
        limit = self.quota(owner).sessions
        if limit is not None and len(own) >= limit and not self._evict(own, now):
            raise SessionError(
                f"this key may have {limit} sessions at once, and has them",
                code="quota",
                retry_after=RETRY,
            )
        everybody = list(self.sessions.values())
        if len(everybody) >= self.config.limits.max_sessions and not self._evict(everybody, now):
            raise SessionError(
                f"the verifier is full: {len(everybody)} sessions. Try again later.",
                code="full",
                retry_after=RETRY,
            )
        session = self.sessions[key] = CloudSession(key, secret, owner)
        return session

    def find(self, key: bytes, secret: bytes, owner: str) -> CloudSession | None:
        """The session with this key if it is this client's, else None."""
        session = self.sessions.get(key)
        if session is None or session.owner != owner:
            return None
        return session if hmac.compare_digest(session.secret, secret) else None

    def admit(self, session: CloudSession, now: float) -> None:
        """Check that the session may begin one more answer now.

        Raises:
            SessionError: the queue is full, or the key has used up its tokens.
        """
        self.meter.check(session.owner, self.quota(session.owner), now)
        self.queue.check(self.sessions.values(), session)

    def opened(self, session: CloudSession, now: float) -> None:
        """An answer was opened; its turn may have to come."""
        fresh = self.queue.join(session)
        if fresh:
            session.opened_at = now
            self.on_open(session)

    def drop(self, session: CloudSession, now: float) -> None:
        """Forget a session."""
        self._charge(session, now)
        self.sessions.pop(session.key, None)
        self.dropped += 1
        session.running, session.link = False, None

    def expire(self, now: float) -> None:
        """Forget sessions that nobody came back for in time; let in those whose turn it is."""
        limit = now - self.config.limits.detached_seconds
        for session in list(self.sessions.values()):
            if session.uncharged:
                self._charge(session, now)
            if session.link is None and session.idle_since < limit:
                self.drop(session, now)
        for session in self.queue.settle(self.sessions, now):
            self.on_end(session, now)

    def _charge(self, session: CloudSession, now: float) -> None:
        if session.uncharged:
            self.meter.charge(session.owner, session.uncharged, self.quota(session.owner), now)
            session.uncharged = 0

    def _evict(self, among: list[CloudSession], now: float) -> bool:
        """Make room: the one that has been detached longest goes, else the longest idle.

        Nobody loses text by it: an edge that comes back gives its copy.
        """
        spare = [s for s in among if s.link is None or not s.running]
        if not spare:
            return False
        self.drop(min(spare, key=lambda s: (s.link is not None, _idle_since(s))), now)
        return True


def _idle_since(session: CloudSession) -> float:
    return max(session.idle_since, session.verdict_at or 0.0)
