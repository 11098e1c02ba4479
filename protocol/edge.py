"""The edge's end of the stream: its sessions, and the state machine of its link.

Sans-I/O: a driver says when a transport is up or lost, gives the bytes that came, pulls the bytes
to send. One :class:`EdgeMachine` outlives its connections: sessions are attached again on the next
one, at the exact token. Receiving never raises for the peer's mistakes.

States of the link and what moves them::

    DOWN     --connect-->  GREETING   hello, attaches and opens leave in one flight
    GREETING --welcome-->  READY
    GREETING --mismatch--> COMPARING  the tokenizers differ: find out where, then fail
    any      --lost-->     DOWN       the transport is gone; sessions wait
    any      --bye-->      FAILED     refused or broken: this connection is over
    FAILED   --connect-->  GREETING   a new attempt
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable

from outrider.protocol import messages as m
from outrider.protocol.codec import Codec
from outrider.protocol.edge_session import EdgeSession, Phase
from outrider.protocol.errors import HandshakeError, LocalProtocolError, RemoteProtocolError
from outrider.protocol.events import AnswerEnded, AnswerRefused, Event, LinkFailed, LinkReady
from outrider.protocol.fingerprint import (
    Vocabulary,
    differing_specials,
    first_segment,
    tokenizers_differ,
)
from outrider.protocol.fit import Misfit, can_render, check_request, missing_feature, too_large
from outrider.protocol.link import LinkEstimator, PassCurve
from outrider.protocol.outbox import PART_BYTES, Assembler, Outbox
from outrider.protocol.request import Request
from outrider.protocol.traffic import Traffic

GREETING_SECONDS = 15.0
"""A cloud that has not answered the hello by then is given up."""

MAX_MESSAGE = 4 << 20


class State(enum.Enum):
    """Of the link."""

    DOWN = "down"
    GREETING = "greeting"
    READY = "ready"
    COMPARING = "comparing"
    FAILED = "failed"


_OF_ANSWERS = (m.Verdict, m.Logprobs, m.Opened, m.Attached, m.Finished, m.Refused)
_UP = (State.GREETING, State.READY, State.COMPARING)

TRANSITIONS = {
    (State.DOWN, "connect"): State.GREETING,
    (State.FAILED, "connect"): State.GREETING,
    (State.GREETING, "welcome"): State.READY,
    (State.GREETING, "mismatch"): State.COMPARING,
    **{(state, "bye"): State.FAILED for state in _UP},
    **{(state, "lost"): State.DOWN for state in (*_UP, State.DOWN)},
    (State.FAILED, "lost"): State.FAILED,
}


class EdgeMachine:
    """All sessions of one edge over one cloud.

    ``entropy(n)`` gives n random bytes (session names and secrets); it and ``now`` are the only
    things from the outside world. ``progress``: ids that the cloud has given, ever, to any session.
    """

    def __init__(self, vocabulary: Vocabulary, agent: str, entropy: Callable[[int], bytes]) -> None:
        self.vocabulary = vocabulary
        self.agent = agent
        self.state = State.DOWN
        self.link = LinkEstimator()
        self.welcome: m.Welcome | None = None
        self.never_draft: frozenset[int] = frozenset()
        self.failure: HandshakeError | None = None
        self.traffic, self.progress = Traffic(), 0
        self._entropy = entropy
        self._fingerprint = vocabulary.fingerprint()
        self._sessions: dict[int, EdgeSession] = {}
        self._last_answers: dict[int, int] = {}
        self._events: deque[Event] = deque()
        self._deadline: float | None = None
        self._held: float | None = None
        self._greeted = 0.0
        self._turn = self._asked = self._theirs = 0
        self._reset_transport()

    # --- sessions ---------------------------------------------------------------------------

    def session(self) -> EdgeSession:
        """A new, empty session."""
        handle = next(h for h in range(len(self._sessions) + 1) if h not in self._sessions)
        session = EdgeSession(handle, self._entropy(m.SESSION_BYTES), self._entropy(m.SECRET_BYTES))
        # What is still on its way to the handle's last owner must not be taken for this one's.
        session.answer = self._last_answers.get(handle, 0)
        if self.welcome is not None:
            session.limit(self.welcome.limits)
        self._sessions[handle] = session
        return session

    @property
    def sessions(self) -> list[EdgeSession]:
        """The sessions, in order of their handles."""
        return [self._sessions[handle] for handle in sorted(self._sessions)]

    def open(self, session: EdgeSession, request: Request) -> None:
        """Begin the next answer of a session; it is sent now or when the link comes up.

        Raises:
            LocalProtocolError: an answer is under way (cancel it first).
            SessionError: the request has a number or stops that no cloud would take.
        """
        check_request(request)
        session.begin(request)
        if self._can_serve(session) and self.state in (State.GREETING, State.READY):
            self._send_open(session)

    def cancel(self, session: EdgeSession) -> None:
        """Stop the answer under way. It ends for this side at once, with what was verified."""
        if session.phase is Phase.IDLE:
            return
        if self.state in (State.GREETING, State.READY) and session.bound:
            self._outbox.put(m.Cancel(handle=session.handle, answer=session.answer), session.handle)
        self._end(session, "cancel", None)

    def close(self, session: EdgeSession) -> None:
        """Forget a session at both ends; an answer under way is cancelled."""
        self.cancel(session)
        if self.state in (State.GREETING, State.READY) and session.bound:
            self._outbox.put(m.Close(handle=session.handle), session.handle)
        if self._sessions.pop(session.handle, None):
            self._last_answers[session.handle] = session.answer

    def weigh(self, session: EdgeSession, weight: float) -> None:
        """How much its latency counts against other sessions of this edge, at a cloud that asks."""
        session.weight = weight
        known = self.welcome is not None and m.SHARES in self.welcome.features
        if self.state is State.READY and session.bound and known:
            self._outbox.put(m.Weigh(handle=session.handle, weight=weight), session.handle)

    # --- the driver's side ------------------------------------------------------------------

    def connect(self, now: float) -> None:
        """A transport is up: hello, then attach or open every session with an answer under way."""
        if self.state in _UP:
            self.connection_lost(now)
        self._move("connect")
        self._reset_transport()
        self.failure = None
        self._greeted, self._deadline = now, now + GREETING_SECONDS
        self._outbox.put(
            m.Hello(
                version=m.WIRE_VERSION,
                agent=self.agent,
                fingerprint=self._fingerprint,
                max_message=MAX_MESSAGE,
                features=m.FEATURES,
            )
        )
        for session in self.sessions:
            session.unbind()
            if session.phase is Phase.OPENING:
                self._send_open(session)
            elif session.phase is Phase.LIVE:
                self._outbox.put(session.attach_message(), session.handle)

    def receive(self, data: bytes, now: float) -> None:
        """One WebSocket message came. Never raises for what is in it."""
        if self.state not in _UP:
            return
        try:
            size = self.traffic.received(data)
            message = self._assembler.receive(data)
            if message is not None:
                self._take(message, now)
                session = self._sessions.get(getattr(message, "handle", -1))
                if session is not None and isinstance(message, m.Verdict | m.Logprobs):
                    session.bytes_down += size
        except RemoteProtocolError as error:
            failure = HandshakeError(f"the cloud broke the protocol: {error}", code=error.code)
            self._fail(failure, m.Goodbye(code=error.code, message=str(error)))

    def next_message(self, now: float, part_bytes: int = PART_BYTES) -> bytes | None:
        """The next bytes to send, if any: draft frames in turn, then control, then bulk."""
        if self.state in (State.GREETING, State.READY) and (frame := self._next_draft(now)):
            return frame
        data = self._outbox.next_control() or self._outbox.next_bulk(part_bytes)
        if data is not None:
            self.traffic.sent(data)
        return data

    def events(self) -> list[Event]:
        """What happened since the last call, in order."""
        events, self._events = list(self._events), deque()
        return events

    @property
    def wants_close(self) -> bool:
        """This connection is over: close the socket once nothing is left to send."""
        return self.state is State.FAILED

    @property
    def has_cold_messages(self) -> bool:
        """Something other than draft frames waits to be sent, or the connection is over."""
        return bool(self._outbox) or self.wants_close

    def next_timeout(self) -> float | None:
        """When :meth:`handle_timeout` wants to be called, or a frame that waits may leave."""
        return self._deadline if self._held is None else self._held

    def handle_timeout(self, now: float) -> None:
        """Give up a cloud that does not answer the hello. A frame that waited is now due."""
        self._held = None
        if self._deadline is not None and now >= self._deadline:
            said = f"the cloud did not answer the hello within {GREETING_SECONDS:.0f} seconds. "
            said += "Is it an Outrider verifier?"
            self._fail(HandshakeError(said, code="timeout"))

    def connection_lost(self, now: float) -> None:  # noqa: ARG002 - machines share one signature
        """The transport is gone: nothing in flight counts, sessions wait for the next one."""
        self._move("lost")
        self._unbind()

    # --- messages ---------------------------------------------------------------------------

    def _take(self, message: m.Message, now: float) -> None:
        if isinstance(message, m.Goodbye):
            said = f"the cloud closed the connection: {message.message}"
            self._fail(HandshakeError(said, code=message.code))
        elif self.state is State.GREETING and isinstance(message, m.Welcome):
            self._welcomed(message, now)
        elif self.state is State.GREETING and isinstance(message, m.Mismatch):
            self._mismatched(message)
        elif self.state is State.COMPARING and isinstance(message, m.Segment):
            self._compared(message)
        elif self.state is State.READY:
            self._ready(message, now)
        else:
            raise RemoteProtocolError(f"{type(message).__name__} while {self.state.value}")

    def _ready(self, message: m.Message, now: float) -> None:
        session = self._sessions.get(getattr(message, "handle", -1))
        if not isinstance(message, _OF_ANSWERS):
            raise RemoteProtocolError(f"{type(message).__name__} is not expected")
        if session is None:
            return
        known = len(session.ids)
        if isinstance(message, m.Verdict):
            self._events.extend(session.verdict(message, now, self.link))
        elif isinstance(message, m.Logprobs):
            session.observed(message)
        elif isinstance(message, m.Opened | m.Attached) and session.serves(message):
            self._events.extend(session.opened(message))
        elif isinstance(message, m.Finished) and session.live(message.answer):
            session.check_end(message)
            self._end(session, message.reason, message)
        elif isinstance(message, m.Refused):
            self._refused(session, message)
        self.progress += max(0, len(session.ids) - known)

    def _welcomed(self, welcome: m.Welcome, now: float) -> None:
        self._move("welcome")
        self.link.greeting = now - self._greeted
        self._deadline = None
        self.welcome = welcome
        for session in self.sessions:
            session.limit(welcome.limits)
        self.link.passes = PassCurve(welcome.pass_times)
        mine, theirs = self.vocabulary.specials, welcome.specials
        self.never_draft = frozenset() if theirs is None else differing_specials(mine, theirs)
        self._events.append(LinkReady(welcome, self.never_draft))
        for session in self.sessions:
            if self._can_serve(session) and session.phase is Phase.OPENING and not session.bound:
                self._send_open(session)

    def _can_serve(self, session: EdgeSession) -> bool:
        """Whether the cloud has what an answer asks for; one that it lacks is refused."""
        if why := missing_feature(session, self.welcome):
            self._refuse(session, why)
        return why is None

    def _refuse(self, session: EdgeSession, why: Misfit) -> None:
        self._events.append(AnswerRefused(session, session.answer, why.code, why.message, None))
        session.end()

    def _mismatched(self, mismatch: m.Mismatch) -> None:
        self._move("mismatch")
        index = first_segment(self.vocabulary.segments(), mismatch.segments)
        if index is None:
            raise RemoteProtocolError("a mismatch without a difference")
        self._asked, self._theirs = index, mismatch.size
        if index < len(mismatch.segments):
            self._outbox.put(m.SegmentAsk(index=index))
        else:
            self._compared(m.Segment(index=index, entries=()))

    def _compared(self, segment: m.Segment) -> None:
        if segment.index != self._asked:
            raise RemoteProtocolError(f"segment {segment.index}; {self._asked} was asked for")
        self._fail(tokenizers_differ(self._asked, self.vocabulary, segment.entries, self._theirs))

    def _refused(self, session: EdgeSession, refused: m.Refused) -> None:
        """The edge's copy wins where the cloud lost or changed the text; else the answer ends."""
        if refused.answer != session.answer or session.phase is Phase.IDLE:
            return
        if refused.code in ("session_lost", "diverged") and session.restores_left:
            session.lost()
            self._send_open(session)
            return
        rendered = session.prompt_len and can_render(session.request, self.welcome)
        if refused.code == "template" and rendered:
            session.forget_template()
            self._send_open(session)
            return
        self._events.append(
            AnswerRefused(
                session, refused.answer, refused.code, refused.message, refused.retry_after
            )
        )
        session.end()

    # --- sending ----------------------------------------------------------------------------

    def _send_open(self, session: EdgeSession) -> None:
        """Open it, unless the cloud cannot read that; what may be too long awaits the welcome."""
        bound, message = session.bound, session.open_message()
        welcome = self.welcome if self.state is State.READY else None
        limit = welcome.limits.max_message if welcome else m.LEAST_MESSAGE
        if (size := self._codec.weight(message)) <= limit:
            self._outbox.put(message, session.handle)
            if session.weight != 1.0:
                self.weigh(session, session.weight)  # the cloud may have forgotten the session
            return
        session.bound = bound
        if welcome:
            self._refuse(session, too_large(size, limit))

    def _next_draft(self, now: float) -> bytes | None:
        sessions = self.sessions
        for i in range(len(sessions)):
            session = sessions[(self._turn + i) % len(sessions)]
            if self._outbox.blocks(session.handle):
                continue
            if session.ratio and self.state is State.GREETING:
                continue  # whether rows are understood is not known yet
            frame = session.next_frame(now)
            if frame is not None:
                self._turn = (self._turn + i + 1) % len(sessions)
                data = self._codec.encode(frame)
                size = self.traffic.sent(data)
                session.bytes_up += size
                session.pacer.sent(size, now)
                return data
        holding = (s.pacer.held for s in sessions if s.pacer.held is not None)
        self._held = min(holding, default=None)
        return None

    def _end(self, session: EdgeSession, reason: str, finished: m.Finished | None) -> None:
        kept = finished.text_bytes if finished and finished.text_bytes >= 0 else None
        passes = finished.passes if finished else None
        self._events.append(
            AnswerEnded(session, session.answer, reason, session.emitted, kept, passes)
        )
        session.end()

    def _fail(self, error: HandshakeError, goodbye: m.Goodbye | None = None) -> None:
        """This connection is over; nothing more is sent on it but the reason."""
        self._reset_transport()
        if goodbye is not None:
            self._outbox.put(goodbye)
        self.failure = error
        self._move("bye")
        self._unbind()
        self._events.append(LinkFailed(error))

    def _unbind(self) -> None:
        self._deadline = self._held = None
        for session in self.sessions:
            session.unbind()

    def _reset_transport(self) -> None:
        self._codec = Codec(self.vocabulary.size, MAX_MESSAGE)
        self._outbox = Outbox(self._codec)
        self._assembler = Assembler(self._codec)

    def _move(self, event: str) -> None:
        try:
            self.state = TRANSITIONS[self.state, event]
        except KeyError:
            raise LocalProtocolError(f"{event} while {self.state.value}") from None
