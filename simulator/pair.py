"""Both machines back to back: no clock but a number, no network, one message at a time or all.

For tests of the protocol alone. :class:`World` is the same with engines, links and time.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

from outrider.protocol.cloud import CloudConnection
from outrider.protocol.codec import Codec
from outrider.protocol.edge import EdgeMachine
from outrider.protocol.edge_session import EdgeSession
from outrider.protocol.events import Event
from outrider.protocol.fingerprint import Vocabulary
from outrider.protocol.guesses import judge
from outrider.protocol.messages import Limits, Message, Open
from outrider.protocol.request import Request
from outrider.protocol.session import CloudSession
from outrider.protocol.table import CloudConfig, SessionTable

LIMITS = Limits(
    max_message=1 << 20,
    max_prompt=1000,
    max_tokens=1000,
    max_nodes_per_frame=16,
    max_nodes_in_flight=64,
    max_sessions=8,
    detached_seconds=30.0,
)

Next = Callable[[list[int]], int]


def letters(size: int = 26, template: str | None = None) -> Vocabulary:
    """A vocabulary of ``size`` different ordinary tokens."""
    return Vocabulary(tuple(f"t{i}".encode() for i in range(size)), {}, template)


def render(request: Open) -> tuple[int, ...]:
    """What the pair's cloud makes of messages or text: lengths, as good as anything."""
    if request.messages is not None:
        return tuple(len(str(message["content"])) for message in request.messages)
    return tuple(len(word) for word in (request.text or "").split())


def config(vocabulary: Vocabulary | None = None, limits: Limits = LIMITS) -> CloudConfig:
    """A cloud for tests."""
    return CloudConfig(
        vocabulary=vocabulary or letters(),
        model="test",
        n_ctx=2000,
        eos=(0,),
        limits=limits,
        agent="cloud",
        render=render,
    )


class ConnectionPair:
    """An edge's machine and the cloud's connection, joined by two queues of bytes.

    ``up`` and ``down`` hold the messages under way. A connection that is replaced may still have
    some: ``connect`` returns the old queue of those going up, with :attr:`old` to deliver them to.
    """

    def __init__(
        self, cloud: CloudConfig | None = None, edge: Vocabulary | None = None, seed: int = 0
    ) -> None:
        self.now = 0.0
        self.table = SessionTable(cloud or config())
        self.machine = EdgeMachine(
            edge or self.table.config.vocabulary, "edge", random.Random(seed).randbytes
        )
        self.connection = CloudConnection(self.table, "", self.now)
        self.old = self.connection
        self.up: deque[bytes] = deque()
        self.down: deque[bytes] = deque()
        self.seen: list[Event] = []

    def connect(self) -> deque[bytes]:
        """A fresh connection. Returns what was still going up on the one before."""
        late, self.old = self.up, self.connection
        self.connection = CloudConnection(self.table, "", self.now)
        self.up, self.down = deque(), deque()
        self.machine.connect(self.now)
        return late

    def lose(self) -> None:
        """The transport breaks: both ends notice, what was under way is gone."""
        self.machine.connection_lost(self.now)
        self.connection.connection_lost(self.now)
        self.up.clear()
        self.down.clear()

    # --- moving bytes -----------------------------------------------------------------------

    def pull_up(self) -> bool:
        """The edge sends one message, if it has one."""
        data = self.machine.next_message(self.now)
        if data is not None:
            self.up.append(data)
        return data is not None

    def pull_down(self) -> bool:
        """The cloud sends one message, if it has one."""
        data = self.connection.next_message(self.now)
        if data is not None:
            self.down.append(data)
        return data is not None

    def deliver_up(self) -> bool:
        """One message arrives at the cloud."""
        if self.up:
            self.connection.receive(self.up.popleft(), self.now)
            return True
        return False

    def deliver_down(self) -> bool:
        """One message arrives at the edge."""
        if self.down:
            self.machine.receive(self.down.popleft(), self.now)
            self.seen += self.machine.events()
            return True
        return False

    def settle(self) -> list[Event]:
        """Move everything until both are silent. Returns the events since the last call."""
        while any([self.pull_up(), self.deliver_up(), self.pull_down(), self.deliver_down()]):
            pass
        self.seen += self.machine.events()
        events, self.seen = self.seen, []
        return events

    # --- shortcuts --------------------------------------------------------------------------

    @property
    def codec(self) -> Codec:
        """Reads and writes what this edge's connection carries."""
        return Codec(self.machine.vocabulary.size)

    def tell_cloud(self, message: Message) -> None:
        """A message of the test's own arrives at the cloud."""
        self.connection.receive(self.codec.encode(message), self.now)

    def tell_edge(self, message: Message) -> None:
        """A message of the test's own arrives at the edge."""
        self.machine.receive(self.codec.encode(message), self.now)

    def open(self, *ids: int, max_tokens: int = 100) -> EdgeSession:
        """A new session with an answer under way on this prompt."""
        session = self.machine.session()
        self.machine.open(session, Request(ids=ids, max_tokens=max_tokens))
        return session

    def cloud_session(self, session: EdgeSession) -> CloudSession:
        """The cloud's side of a session."""
        return self.table.sessions[session.key]

    def verify(self, session: EdgeSession, choose: Next, limit: int = 64) -> list[int]:
        """One pass of a target that chooses by ``choose``: commits at least one token."""
        cloud = self.cloud_session(session)
        chain = cloud.window.chain(limit)
        decided = [choose([*cloud.ids, *chain[:i]]) for i in range(len(chain) + 1)]
        tokens = judge(chain, decided)
        cloud.commit(tokens)
        return tokens
