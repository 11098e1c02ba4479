"""All sessions of one verifier, and what the verifier is and allows."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field

from outrider.protocol import messages as m
from outrider.protocol.errors import SessionError, SettingError
from outrider.protocol.fingerprint import Vocabulary
from outrider.protocol.session import CloudSession


@dataclass(slots=True)
class CloudConfig:
    """What the cloud is and allows. ``render`` turns an open's messages or text into ids.

    ``render`` raises :class:`SessionError` for what it cannot honour; it must be quick, since the
    driver's loop waits for it.
    """

    vocabulary: Vocabulary
    model: str
    n_ctx: int
    eos: tuple[int, ...]
    limits: m.Limits
    agent: str
    render: Callable[[m.Open], tuple[int, ...]]
    objective: str = "latency"

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

    ``load`` is the share of capacity in use, told in verdicts; while ``closing``, no answer begins.
    """

    config: CloudConfig
    sessions: dict[bytes, CloudSession] = field(default_factory=dict)
    load: float = 0.0
    closing: bool = False

    def obtain(self, key: bytes, secret: bytes, owner: str) -> CloudSession:
        """The session with this key, made if need be.

        Raises:
            SessionError: it belongs to somebody else, or there are too many.
        """
        session = self.sessions.get(key)
        if session is not None:
            if not hmac.compare_digest(session.secret, secret) or session.owner != owner:
                raise SessionError("this session belongs to another client", code="session_secret")
            return session
        if len(self.sessions) >= self.config.limits.max_sessions and not self._evict():
            raise SessionError(
                f"the verifier is full: {len(self.sessions)} sessions. Try again later.",
                code="full",
                retry_after=2.0,
            )
        session = self.sessions[key] = CloudSession(key, secret, owner)
        return session

    def find(self, key: bytes, secret: bytes, owner: str) -> CloudSession | None:
        """The session with this key if it is this client's, else None."""
        session = self.sessions.get(key)
        if session is None or session.owner != owner:
            return None
        return session if hmac.compare_digest(session.secret, secret) else None

    def drop(self, session: CloudSession) -> None:
        """Forget a session."""
        self.sessions.pop(session.key, None)
        session.running, session.link = False, None

    def expire(self, now: float) -> None:
        """Forget sessions that nobody came back for in time."""
        limit = now - self.config.limits.detached_seconds
        for session in list(self.sessions.values()):
            if session.link is None and session.idle_since < limit:
                self.drop(session)

    def _evict(self) -> bool:
        """Make room: the session that has been detached longest goes."""
        detached = [s for s in self.sessions.values() if s.link is None]
        if not detached:
            return False
        self.drop(min(detached, key=lambda s: s.idle_since))
        return True
