"""One session on its way through a gateway: a cloud to its edge, an edge to its replica.

Nothing is translated that both ends could not do themselves. What the edge guessed and what is
still alive of it is guessed again to the replica; what the replica commits is committed here, and
from there told to the edge. So a replica can be replaced in mid answer: the next one is given the
text so far and the live guesses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from outrider.protocol.edge_session import EdgeSession, Phase
from outrider.protocol.errors import LocalProtocolError, SessionError
from outrider.protocol.events import AnswerEnded, AnswerRefused, Committed
from outrider.protocol.guesses import Guesses
from outrider.protocol.request import Request
from outrider.protocol.session import CloudSession
from outrider.runtime.lm.base import common_prefix

if TYPE_CHECKING:
    from outrider.cloud_server.cluster.replica import Replica

MOST_ASKED = 16
"""Guesses of a round that count, where work is reckoned."""


@dataclass(slots=True, eq=False)
class Relay:
    """``session`` is the edge's side, ``onward`` the replica's; None: it is nowhere now.

    ``begun`` is the answer of the edge's side that ``onward`` works on. ``since``: when it was
    placed where it is, in seconds; ``moves``: how often the answer under way changed its replica.
    ``waiting``: since when its answer has had no replica, for the reason ``why``. ``work``: tokens
    that a round of it asks for lately. ``rtt``: seconds to its edge and back, 0 until that is
    known.
    """

    session: CloudSession
    replica: Replica | None = None
    onward: EdgeSession | None = None
    begun: int = 0
    since: float = 0.0
    moves: int = 0
    waiting: float | None = None
    why: SessionError | None = None
    work: float = 1.0
    rtt: float = 0.0
    _epoch: Guesses | None = None

    @property
    def weight(self) -> float:
        """What its replica was told that it counts; 1 unless told otherwise."""
        return 1.0 if self.onward is None else self.onward.weight

    @property
    def asks(self) -> float:
        """Tokens that a round of it asks a replica for now: its live guesses and one more."""
        return 1.0 + len(self.session.window.chain(MOST_ASKED)) if self.session.riding else 1.0

    @property
    def wanted(self) -> bool:
        """There is an answer to work on and somebody to tell."""
        return self.session.running and self.session.link is not None

    @property
    def at_work(self) -> bool:
        """A replica works on the answer that the edge's side has."""
        onward = self.onward
        return (
            onward is not None
            and onward.phase is not Phase.IDLE
            and self.begun == self.session.begun
        )

    def place(self, replica: Replica, now: float) -> None:
        """Go on at this replica, with the text so far."""
        session = self.session
        asked = session.request
        if asked is None:
            raise LocalProtocolError("a session without an answer has no place")
        self.moves = 0 if self.begun != session.begun else self.moves + (self.replica is not None)
        if self.replica is not replica:
            self.leave()
        self.replica, self.begun, self.since = replica, session.begun, now
        self.waiting = self.why = self._epoch = None
        machine = replica.machine
        if self.onward is None:
            self.onward = machine.session()
            replica.relays[self.onward] = self
        else:
            machine.cancel(self.onward)
        # At least one id is sent: an answer needs some.
        base = min(common_prefix(self.onward.ids, session.ids), len(session.ids) - 1)
        request = Request(
            max_tokens=asked.max_tokens,
            sampling=asked.sampling,
            base=base,
            ids=tuple(session.ids[base:]),
            stops=asked.stops,
            ignore_eos=asked.ignore_eos,
            objective=session.objective,
            logprobs=asked.logprobs,
            grammar=asked.grammar,
            prompt_len=session.prompt_len,
        )
        machine.open(self.onward, request)
        self.push()

    def rest(self) -> None:
        """Nobody wants the answer any more: the replica stops, and keeps the text for the next."""
        if self.replica is not None and self.onward is not None:
            self.replica.machine.cancel(self.onward)
        self.waiting = self.why = None

    def leave(self) -> None:
        """Be nowhere: the replica forgets the session, if it can be told."""
        if self.replica is not None and self.onward is not None:
            self.replica.relays.pop(self.onward, None)
            self.replica.machine.close(self.onward)
        self.replica = self.onward = self._epoch = None

    def push(self) -> None:
        """Hand on what the edge guesses, as far as it can still be right."""
        session, onward = self.session, self.onward
        if onward is None or not self.at_work or not onward.may_guess:
            return
        window, theirs = session.window, session.window.guesses
        if theirs is not self._epoch:
            self._epoch = theirs
            onward.withdraw()  # guesses of an epoch that the edge has given up
        aligned = window.caught_up and len(onward.ids) == len(session.ids)
        if theirs is not None and aligned and onward.window.graft(theirs, window.tip):
            onward.guess((), full=session.full)
        if session.riding:
            onward.ride()
        else:
            onward.stop_riding()

    def take(self, event: Committed | AnswerEnded | AnswerRefused) -> SessionError | None:
        """The replica says something; what it refused is for the caller to mend."""
        session = self.session
        if not self.at_work_on(event):
            return None
        if isinstance(event, AnswerRefused):
            return SessionError(event.message, code=event.code, retry_after=event.retry_after)
        if not self.wanted:
            return None
        if isinstance(event, Committed):
            self._commit(event)
        elif event.reason != "cancel":
            session.passes += event.passes or 0
            session.finish(event.reason, event.tokens, event.text_bytes)
        return None

    def at_work_on(self, event: Committed | AnswerEnded | AnswerRefused) -> bool:
        """It is about the answer that the edge's side has, and not about one before."""
        onward = self.onward
        return (
            onward is event.session
            and event.answer == event.session.answer
            and self.begun == self.session.begun
        )

    def _commit(self, event: Committed) -> None:
        session = self.session
        if event.start != len(session.ids):
            raise LocalProtocolError(
                f"a replica's text goes on at {event.start}, here it ends at {len(session.ids)}"
            )
        if event.ack is not None:
            session.queue_time, session.target_time = event.ack.queue, event.ack.target
        session.commit(event.tokens, event.accepted, event.logprobs)
        self.push()
