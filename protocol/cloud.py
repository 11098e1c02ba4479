"""The cloud's end of the stream: for each connection, a state machine.

Sans-I/O: a driver gives :class:`CloudConnection` the bytes that came and pulls the bytes to send.
Receiving never raises for the peer's mistakes: the machine queues a goodbye and closes.

States of a connection and what moves them::

    GREETING --hello--> READY          the tokenizers agree
    GREETING --alien--> COMPARING      the ordinary tokens differ; one segment may be asked for
    any      --bye----> CLOSED         goodbye from either side, a protocol error, a timeout
"""

from __future__ import annotations

import enum

import msgspec

from outrider.protocol import messages as m
from outrider.protocol.admission import check_open, check_text
from outrider.protocol.codec import Codec
from outrider.protocol.errors import RemoteProtocolError, SessionError
from outrider.protocol.fingerprint import SEGMENT
from outrider.protocol.objective import granted
from outrider.protocol.outbox import Assembler, Outbox
from outrider.protocol.session import CloudSession
from outrider.protocol.table import SessionTable

MAX_HANDLES = 1024  # sessions that one connection may name
HELLO_SECONDS = 10.0
"""A connection that has not said hello, or not asked for its segment, by then is closed."""


class State(enum.Enum):
    """Of a connection."""

    GREETING = "greeting"
    READY = "ready"
    COMPARING = "comparing"
    CLOSED = "closed"


TRANSITIONS = {
    (State.GREETING, "hello"): State.READY,
    (State.GREETING, "alien"): State.COMPARING,
    (State.GREETING, "bye"): State.CLOSED,
    (State.READY, "bye"): State.CLOSED,
    (State.COMPARING, "bye"): State.CLOSED,
}

_OF_SESSIONS = (m.Cancel, m.Close, m.Weigh)

ALLOWED: dict[State, tuple[type[m.Message], ...]] = {
    State.GREETING: (m.Hello, m.Goodbye),
    State.READY: (m.Draft, m.Open, m.Attach, *_OF_SESSIONS, m.Goodbye),
    State.COMPARING: (m.SegmentAsk, m.Goodbye, m.Draft, m.Open, m.Attach, *_OF_SESSIONS),
}
"""What a peer may send in each state; while comparing, what travelled with the hello is ignored."""


class CloudConnection:
    """One connection's state machine. ``owner`` is the name of the key it authenticated with."""

    def __init__(self, table: SessionTable, owner: str, now: float) -> None:
        self.table = table
        self.owner = owner
        self.state = State.GREETING
        self._codec = Codec(1, table.config.limits.max_message)
        self._outbox = Outbox(self._codec)
        self._assembler = Assembler(self._codec)
        self._handles: dict[int, CloudSession] = {}
        self._same_template = self._shares = False
        self._asked = 0
        self._turn = 0
        self._ended = False
        self._deadline: float | None = now + HELLO_SECONDS
        self.heard_at = now

    # --- the driver's side ------------------------------------------------------------------

    def receive(self, data: bytes, now: float) -> None:
        """One WebSocket message came. Never raises for what is in it."""
        if self.state is State.CLOSED:
            return
        self.heard_at = now
        try:
            message = self._assembler.receive(data)
            if message is not None:
                self._take(message, now)
        except RemoteProtocolError as error:
            self._goodbye(error.code, str(error), now)

    def next_message(self, now: float) -> bytes | None:
        """The next bytes to send, if any: verdicts in turn, then control, then bulk."""
        if self.state is State.READY and (verdict := self._next_verdict(now)):
            return verdict
        self._ended = False  # whoever was due a last word has it
        return self._outbox.next_control() or self._outbox.next_bulk()

    @property
    def wants_close(self) -> bool:
        """Nothing more will be sent or read: close the socket once the outbox is empty."""
        return self.state is State.CLOSED

    @property
    def has_cold_messages(self) -> bool:
        """Something waits to be sent that no pass brings about, or the connection is over."""
        return bool(self._outbox) or self._ended or self.wants_close

    def next_timeout(self) -> float | None:
        """When :meth:`handle_timeout` wants to be called."""
        return self._deadline

    def handle_timeout(self, now: float) -> None:
        """Close a connection that did not say hello in time, or on which nothing happens."""
        if self._deadline is None or now < self._deadline:
            return
        idle = self.table.config.idle_seconds
        if self.state is not State.READY:
            self._goodbye("timeout", f"no hello within {HELLO_SECONDS:.0f} seconds", now)
        elif self.busy or now < self.heard_at + idle:
            self._deadline = (now if self.busy else self.heard_at) + idle
        else:
            self._goodbye("idle", f"nothing happened here for {idle:.0f} seconds", now)

    @property
    def idle_since(self) -> float | None:
        """Since when it could be closed without harm to anybody; None: it is in use."""
        return None if self.busy or self.state is not State.READY else self.heard_at

    @property
    def busy(self) -> bool:
        """An answer runs on this connection."""
        return any(s.running and s.link is self for s in self._handles.values())

    @property
    def sessions(self) -> list[CloudSession]:
        """Those that this connection serves."""
        return [s for h, s in self._handles.items() if s.link is self and s.handle == h]

    def refuse(self, session: CloudSession, error: SessionError) -> None:
        """An answer that was opened here cannot be given: it is over, and the edge is told why."""
        session.running = session.riding = False
        self._refuse(session.handle, session.answer, error)

    def connection_lost(self, now: float) -> None:
        """The socket is gone: its sessions are detached and wait for the edge to come back."""
        if self.state is not State.CLOSED:
            self._over(now)

    def close(self, code: str, message: str, now: float) -> None:
        """Say goodbye, for a shutdown."""
        self._goodbye(code, message, now)

    # --- messages ---------------------------------------------------------------------------

    def _take(self, message: m.Message, now: float) -> None:
        if not isinstance(message, ALLOWED[self.state]):
            raise RemoteProtocolError(
                f"{type(message).__name__} is not expected while {self.state.value}"
            )
        if isinstance(message, m.Goodbye):
            self._over(now)
        elif isinstance(message, m.Hello):
            self._greet(message)
        elif isinstance(message, m.SegmentAsk):
            self._compare(message)
        elif self.state is State.READY:
            self._work(message, now)

    def _work(self, message: m.Message, now: float) -> None:
        if isinstance(message, m.Draft):
            self._draft(message, now)
        elif isinstance(message, m.Open | m.Attach):
            try:
                if isinstance(message, m.Open):
                    self._open(message, now)
                else:
                    self._attach(message, now)
            except SessionError as error:
                self._refuse(message.handle, message.answer, error)
        elif isinstance(message, _OF_SESSIONS) and (session := self._served(message.handle)):
            if isinstance(message, m.Weigh):
                session.weight = message.weight
            elif isinstance(message, m.Cancel):
                session.cancel(message.answer)
            else:
                self.table.drop(session, now)
                del self._handles[message.handle]

    def _greet(self, hello: m.Hello) -> None:
        config = self.table.config
        if hello.version != m.WIRE_VERSION:
            raise RemoteProtocolError(
                f"wire version {hello.version}; this cloud speaks {m.WIRE_VERSION}", code="version"
            )
        mine, theirs = config.vocabulary.fingerprint(), hello.fingerprint
        if not 0 < theirs.size < 2**31:
            raise RemoteProtocolError(f"a vocabulary of {theirs.size} ids")
        self._codec.learn(theirs.size)
        if (theirs.ordinary, theirs.size) != (mine.ordinary, mine.size):
            self._move("alien")
            segments = tuple(config.vocabulary.segments())
            self._outbox.put(m.Mismatch(size=mine.size, segments=segments))
            return
        self._move("hello")
        self._deadline = self.heard_at + config.idle_seconds
        self._same_template = theirs.template == mine.template
        self._shares = m.SHARES in hello.features
        alike = theirs.special == mine.special
        self._outbox.put(
            m.Welcome(
                version=m.WIRE_VERSION,
                agent=config.agent,
                model=config.model,
                n_ctx=config.n_ctx,
                eos=config.eos,
                limits=self.table.quota(self.owner).limits(config.limits),
                same_template=self._same_template,
                specials=None if alike else dict(config.vocabulary.specials),
                objective=self.table.quota(self.owner).dearest(config.objective),
                features=config.features,
                pass_times=self.table.pass_times,
                collaborators=config.collaborators,
                elsewhere=config.elsewhere,
            )
        )

    def _compare(self, ask: m.SegmentAsk) -> None:
        vocabulary = self.table.config.vocabulary
        if not 0 <= ask.index * SEGMENT < max(1, vocabulary.size):
            raise RemoteProtocolError(f"there is no segment {ask.index}")
        self._asked += 1
        if self._asked > 1:
            raise RemoteProtocolError("one segment was asked for already")
        self._outbox.put(m.Segment(index=ask.index, entries=vocabulary.segment(ask.index)))

    def _draft(self, frame: m.Draft, now: float) -> None:
        session = self._served(frame.handle)
        if session is None:
            return  # taken over by another connection, or its open was refused
        limits = self.table.quota(self.owner).limits(self.table.config.limits)
        # Before its welcome an edge knows of no limit but the least that every cloud allows.
        if len(frame.tokens) > max(limits.max_nodes_per_frame, m.LEAST_FRAME_NODES):
            raise RemoteProtocolError(
                f"{len(frame.tokens)} nodes in a frame; at most {limits.max_nodes_per_frame}",
                code="limit",
            )
        try:
            session.draft(frame, now, limits.max_nodes_in_flight)
        except SessionError as error:
            session.window.void(session.window.last_epoch)
            self._refuse(frame.handle, session.answer, error)
        self._ended |= session.ended is not None and not session.farewell_told

    def _open(self, request: m.Open, now: float) -> None:
        config = self.table.config
        if self.table.closing:
            raise SessionError("the verifier is shutting down", code="closing", retry_after=5.0)
        session = self.table.obtain(request.session, request.secret, self.owner, now)
        if not session.takes(self, request.n):
            raise SessionError("a newer connection serves this session", code="superseded")
        if request.answer < session.answer:
            raise SessionError(f"answer {request.answer} is over", code="stale_answer")
        if not session.agrees(request.base, request.digest):
            raise SessionError("the earlier text of this session is not known", code="diverged")
        if request.templated and not self._same_template:
            raise SessionError("the chat templates differ: send the messages", code="template")
        check_text(request, config)
        ids = request.ids or config.render(request)
        check_open(request, request.base + len(ids), config)
        quota = self.table.quota(self.owner)
        objective = granted(request.objective, quota.dearest(config.objective))
        if not session.running or session.answer != request.answer:
            self.table.admit(session, now)
        self._serve(session, request, now)
        known = request.base + len(request.ids)
        opened = session.open(request, ids, known, objective)
        cached = min(self.table.cached(session), opened.prompt_len)
        self._outbox.put(msgspec.structs.replace(opened, cached=cached), request.handle)
        self.table.opened(session, now)
        if len(session.ids) >= config.n_ctx and session.running:
            # Given back when its last token had filled the context: only the end is missing.
            end = self.table.ended(session)
            if end is not None:
                session.finish(end[0], len(session.ids) - session.prompt_len, end[1])

    def _attach(self, request: m.Attach, now: float) -> None:
        session = self.table.find(request.session, request.secret, self.owner)
        if session is None or session.answer != request.answer:
            raise SessionError("this session is not known any more", code="session_lost")
        if not session.takes(self, request.n):
            raise SessionError("a newer connection serves this session", code="superseded")
        if not session.agrees(request.length, request.digest):
            raise SessionError("the edge holds another text", code="diverged")
        self._serve(session, request, now)
        self._outbox.put(session.attach(request), request.handle)
        self.table.queue.join(session)

    def _serve(self, session: CloudSession, request: m.Open | m.Attach, now: float) -> None:
        """This connection serves the session under this handle, which may have named another."""
        if request.handle >= MAX_HANDLES:
            raise RemoteProtocolError(f"handle {request.handle}; at most {MAX_HANDLES - 1}")
        if session.link is self and session.handle != request.handle:  # one name a session
            self._handles.pop(session.handle, None)
        named = self._handles.get(request.handle)
        if named is not None and named is not session and named.link is self:
            named.detach(now)
        session.bind(self, request.n, request.handle, shares=self._shares)
        self._handles[request.handle] = session

    def _refuse(self, handle: int, answer: int, error: SessionError) -> None:
        self.table.refused[error.code] += 1
        self._outbox.put(
            m.Refused(
                handle=handle,
                answer=answer,
                code=error.code,
                message=str(error),
                retry_after=error.retry_after,
            ),
            handle,
        )

    # --- sending ----------------------------------------------------------------------------

    def _next_verdict(self, now: float) -> bytes | None:
        """News of the next session in turn that has some and is not behind a message of its own."""
        handles = list(self._handles)
        for i in range(len(handles)):
            handle = handles[(self._turn + i) % len(handles)]
            session = self._served(handle)
            if session is None or self._outbox.blocks(handle):
                continue
            message = session.news(now, session.load)
            if message is not None:
                self._turn = (self._turn + i + 1) % len(handles)
                return self._codec.encode(message)
        return None

    def _served(self, handle: int) -> CloudSession | None:
        """The session that this connection calls ``handle``, unless another took it over."""
        session = self._handles.get(handle)
        if session is None or session.link is not self or session.handle != handle:
            return None
        return session

    def _move(self, event: str) -> None:
        self.state = TRANSITIONS[self.state, event]

    def _goodbye(self, code: str, message: str, now: float) -> None:
        if self.state is not State.CLOSED:
            self._outbox.close(m.Goodbye(code=code, message=message))
            self._over(now)

    def _over(self, now: float) -> None:
        """Nothing more is read here; the sessions wait for the edge on another connection."""
        self._move("bye")
        self._deadline = None
        for session in self._handles.values():
            if session.link is self:
                session.detach(now)
        self._handles.clear()
