"""One session at the edge: committed ids, the answer under way, the guesses ahead of it.

Phases of an answer and what moves them::

    IDLE    --begin-->   OPENING   --opened-->  LIVE
    LIVE    --lost-->    OPENING               the cloud forgot the text: give it back
    OPENING, LIVE --end--> IDLE
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence

from outrider.protocol.decoding.row import SparseRow
from outrider.protocol.epochs import EdgeWindow
from outrider.protocol.errors import LocalProtocolError, RemoteProtocolError
from outrider.protocol.events import AnswerOpened, Committed, Event
from outrider.protocol.link import LinkEstimator
from outrider.protocol.logprobs import EdgeLogprobs
from outrider.protocol.messages import (
    LEAST_FRAME_NODES,
    LEAST_IN_FLIGHT,
    Ack,
    Attach,
    Attached,
    Draft,
    EpochStart,
    Finished,
    Limits,
    Logprobs,
    Open,
    Opened,
    Verdict,
)
from outrider.protocol.offers import Offers
from outrider.protocol.origins import Origins
from outrider.protocol.pacing import Pacer
from outrider.protocol.packing import PrefixDigest
from outrider.protocol.request import Request
from outrider.protocol.sent import SentFrames

MAX_RESTORES, RESTORE_PAYS = 3, 16
"""How often in a row the edge gives its text back to a cloud that keeps losing it; after so many
tokens a restored answer counts as going on."""

MAX_FRAME_NODES = 64
"""Nodes in one frame; the cloud's limit, if lower, wins."""

FORGETTING = 0.97
"""Weight of the past with every guess judged: the last 30 or so count."""


class Phase(enum.Enum):
    """Of the answer under way."""

    IDLE = "idle"
    OPENING = "opening"
    LIVE = "live"


class EdgeSession:
    """State of one session. Made by :meth:`EdgeMachine.session`.

    ``ids`` are the committed ids, prompt included (empty until the cloud has rendered it).
    ``right`` of ``judged`` guesses were what was committed there, recent ones counting most, late
    ones included: over all answers. ``objective`` is what was granted.
    Counters of the answer under way: ``frames_sent``, ``nodes_sent``, ``nodes_accepted``, and the
    bytes of frames and verdicts, framing included. ``cached`` prompt ids the cloud had evaluated.
    ``logprobs`` are the target's, of the answer's tokens; None: nobody asked for them.
    """

    def __init__(self, handle: int, key: bytes, secret: bytes) -> None:
        self.handle, self.key, self.secret = handle, key, secret
        self.n, self.bound = 0, False
        self.answer, self.phase = 0, Phase.IDLE
        self.request: Request | None = None
        self.ids: list[int] = []
        self.prompt_len = self.base = 0
        self.digests = PrefixDigest(self.ids)
        self.window = EdgeWindow(self.ids)
        self.offers, self.origins, self.scores = Offers(self.ids), Origins(), False
        self.restores_left, self._since_restore = MAX_RESTORES, 0
        self.max_frame_nodes, self.max_in_flight = LEAST_FRAME_NODES, LEAST_IN_FLIGHT
        self.frames_sent = self.nodes_sent = self.nodes_accepted = self.cached = 0
        self.bytes_up = self.bytes_down = 0
        self.right, self.judged, self.objective = 0.0, 0.0, "balanced"
        self.logprobs: EdgeLogprobs | None = None
        self._closing = self._calling = self._full = False
        self._rides = self._closed = False
        self._sent = SentFrames()
        self.pacer, self.weight = Pacer(), 1.0

    # --- the engine's side ------------------------------------------------------------------

    @property
    def emitted(self) -> int:
        """Tokens of the answer under way that were verified."""
        return len(self.ids) - self.prompt_len if self.prompt_len else 0

    @property
    def may_guess(self) -> bool:
        """There is an answer under way whose prompt is known here."""
        return self.phase is not Phase.IDLE and self.prompt_len > 0

    def ride(self) -> None:
        """Tell the cloud, once, that guesses are being made: it need not go on alone."""
        self._calling = not self._rides
        self._closing = False

    @property
    def ratio(self) -> bool:
        """Guesses of the answer under way go with rows: the ratio rule, or models combined."""
        return self.request is not None and self.request.sampling.rowed

    @property
    def collaborates(self) -> bool:
        """The text of the answer under way is partly of the models here."""
        return self.request is not None and self.request.sampling.collaborate is not None

    def guess(
        self,
        tokens: Sequence[int],
        rows: Sequence[SparseRow] = (),
        *,
        parents: Sequence[int] = (),
        full: bool = False,
        scored: int = 0,
    ) -> None:
        """Append guesses after the chain ahead; they leave when the link can take them.

        ``rows``, ``parents``, ``scored``: as of :meth:`EdgeWindow.extend`. ``full``: no more will
        follow before a verdict.

        Raises:
            LocalProtocolError: no answer to guess for, rows are missing, or a tree has some.
        """
        drawn = len(tokens) if self.ratio else 0
        if not self.may_guess or len(rows) != drawn or (parents and drawn):
            raise LocalProtocolError("a guess without an answer under way, or without its row")
        self.window.extend(tokens, parents, rows, scored)
        self._full = full
        self._closing = False

    def stop_riding(self) -> None:
        """Tell the cloud, once, that no guesses will come until further notice."""
        self._calling, self.window.least = False, 1
        unsent = self.window.sent < len(self.window.current.tokens)
        # A text that is partly of the edge cannot go on, which the cloud must hear in any case.
        self._closing = self._rides or unsent or (self.collaborates and not self._closed)

    def withdraw(self) -> None:
        """Drop the guesses ahead, sent or not, and begin a new epoch at the committed end."""
        self.window.restart()

    # --- the machine's side -----------------------------------------------------------------

    def limit(self, limits: Limits) -> None:
        """The cloud said how much it takes at a time."""
        self.max_frame_nodes = min(MAX_FRAME_NODES, limits.max_nodes_per_frame)
        self.max_in_flight = limits.max_nodes_in_flight

    def begin(self, request: Request) -> None:
        """The next answer, on the first ``base`` ids of the session."""
        if self.phase is not Phase.IDLE:
            raise LocalProtocolError("an answer is under way; cancel it first")
        if request.base > len(self.ids):
            raise LocalProtocolError(f"base {request.base} beyond the {len(self.ids)} ids known")
        rendered = request.messages is not None or request.text is not None
        if not request.ids and (request.base or not rendered):
            raise LocalProtocolError("an answer needs ids, or messages or text at base 0")
        self.answer += 1
        self.request, self.base = request, request.base
        del self.ids[request.base :]
        self.digests.cut(request.base)
        self.ids.extend(request.ids)
        self.prompt_len = request.prompt_len or (len(self.ids) if request.ids else 0)
        self.window.restart()
        self.phase, self.objective = Phase.OPENING, request.objective or "balanced"
        self.restores_left = MAX_RESTORES
        self.offers.clear()
        self.origins.clear()
        self.frames_sent = self.nodes_sent = self.nodes_accepted = self.cached = 0
        self.bytes_up = self.bytes_down = 0
        self.logprobs = None if request.logprobs is None else EdgeLogprobs.after(self.emitted)

    def end(self) -> None:
        """The answer is over; its verified text stays for the next one."""
        self.phase = Phase.IDLE
        self._closing = self._calling = self._rides = self._closed = False
        self.window.restart()

    def lost(self) -> None:
        """The cloud lost the text: open again, giving back all that the answer depends on."""
        self.base = 0
        self.phase = Phase.OPENING
        self.restores_left -= 1
        self._since_restore = 0
        self._rides = self._closing = self._closed = False
        self.window.restart()

    def forget_template(self) -> None:
        """The cloud's template differs from ours: it shall render all of the messages itself."""
        self.ids.clear()
        self.digests.cut(0)
        self.base = self.prompt_len = 0
        self.window.restart()

    def unbind(self) -> None:
        """The connection is gone: nothing in flight counts."""
        self.bound = self._rides = self._closing = self._calling = self._closed = False
        self._sent.clear()
        self.pacer.lift()
        self.offers.clear()
        self.window.void()
        if self.logprobs is not None:
            del self.logprobs[self.emitted :]  # told again with the tokens that follow

    def open_message(self) -> Open:
        """Everything the answer depends on, as far as this side knows it."""
        request = self.request
        assert request is not None  # begin() set it
        ids = tuple(self.ids[self.base :]) if self.prompt_len else ()
        return Open(
            handle=self.handle,
            session=self.key,
            secret=self.secret,
            n=self._bind(),
            answer=self.answer,
            base=self.base,
            digest=self.digests.at(self.base),
            prompt_len=self.prompt_len,
            **request.asked(ids),
            epoch=self.window.last_announced,
        )

    def attach_message(self) -> Attach:
        """Take the answer over on a new connection."""
        return Attach(
            handle=self.handle,
            session=self.key,
            secret=self.secret,
            n=self._bind(),
            answer=self.answer,
            epoch=self.window.last_announced,
            length=len(self.ids),
            digest=self.digests.at(len(self.ids)),
        )

    def next_frame(self, now: float) -> Draft | None:
        """The guesses that have not left, or the closing frame; None if there is nothing to say."""
        self.pacer.held = None
        if not self.may_guess or not self.bound:
            return None
        window = self.window
        unsent = len(window.current.tokens) - window.sent
        room = min(self.max_frame_nodes, self.max_in_flight - window.in_flight)
        tokens, deltas, rows = window.unsent(room)
        if not tokens and (unsent or not (self._closing or self._calling)):
            return None
        if tokens and not self._closing and not self.pacer.free(now):  # a cloud waits for the last
            return None  # what is guessed until then goes with it
        start = None
        if not window.announced:
            base = window.current.base
            start = EpochStart(answer=self.answer & 0xFF, base=base, digest=self.digests.at(base))
        scored = window.proposals(len(tokens), wanted=self.scores)
        window.announced = True
        window.sent += len(tokens)
        more = not self._closing or window.sent < len(window.current.tokens)
        self._closing = self._closing and more
        self._calling = False
        self._rides, self._closed = more, not more
        self.frames_sent += bool(tokens)
        self.nodes_sent += len(tokens)
        self._sent.add(now)
        return Draft(
            handle=self.handle,
            epoch=window.current.number & 0xFF,
            start=start,
            tokens=tokens,
            deltas=deltas,
            rows=rows,
            more=more,
            full=self._full and bool(tokens) and len(tokens) == unsent,
            scored=scored,
        )

    def live(self, answer: int) -> bool:
        """A message about answer number ``answer`` is about the one under way."""
        return self.phase is Phase.LIVE and answer == self.answer

    def serves(self, message: Opened | Attached) -> bool:
        """The reply belongs to the newest attempt for the answer under way."""
        return self.phase is not Phase.IDLE and (message.answer, message.n) == (self.answer, self.n)

    def opened(self, message: Opened | Attached) -> Iterator[Event]:
        """The cloud serves the answer: take what it committed that we did not know.

        Raises:
            RemoteProtocolError: its text is not a continuation of ours.
        """
        start, ids = message.start, message.ids
        if isinstance(message, Opened) and not self.prompt_len:
            self._learn_prompt(message)
        known = len(self.ids) - start
        if known < 0 or tuple(self.ids[start:]) != ids[:known]:
            raise RemoteProtocolError("the cloud serves another text than this edge holds")
        if isinstance(message, Opened):
            self.objective, self.cached = message.objective, message.cached
            yield AnswerOpened(self, self.answer, self.prompt_len, message.cached)
        self.phase = Phase.LIVE
        if len(ids) > known:
            yield self._commit(ids[known:], 0, None)

    def _learn_prompt(self, message: Opened) -> None:
        """The prompt was rendered at the cloud: the first ids are it."""
        length = message.prompt_len
        if message.start != 0 or not 0 < length <= len(message.ids):
            raise RemoteProtocolError("an opened answer without its prompt")
        self.prompt_len = length
        self.ids[:] = message.ids[:length]
        self.digests.cut(0)
        self.window.restart()

    def verdict(self, verdict: Verdict, now: float, link: LinkEstimator) -> Iterator[Event]:
        """Tokens were committed; those of an answer that is over are dropped."""
        if self.phase is not Phase.LIVE or verdict.answer != self.answer & 0xFF:
            return
        length = len(self.ids)
        if verdict.at != length & 0xFFFF:
            raise RemoteProtocolError(f"verdict at {verdict.at}, the text ends at {length}")
        node = verdict.node
        own = [] if node is None else self.window.resolve(verdict.epoch, node, length)
        if verdict.ack is not None:
            # An answer's first pass reads the prompt: its time says nothing of others.
            self._sent.acknowledged(verdict.ack, now, link, usual=self.emitted > 0)
        yield self._commit((*own, *verdict.ids), len(own), verdict.ack)
        if verdict.cap is not None:
            self.pacer.limit(verdict.cap)
        if verdict.offered:
            self.offers.learn(verdict.offered_after, verdict.offered)

    def observed(self, message: Logprobs) -> None:
        """Log-probabilities of the next tokens; those of an answer that is over are dropped."""
        if self.live(message.answer) and self.logprobs is not None:
            self.logprobs.take(message, self.prompt_len)

    def check_end(self, finished: Finished) -> None:
        """Both ends must hold the same text when an answer ends."""
        if (finished.length, finished.digest) != (len(self.ids), self.digests.at(len(self.ids))):
            raise RemoteProtocolError("the answer ended on another text than was sent")
        if finished.tokens != self.emitted:
            raise RemoteProtocolError(
                f"the answer ended with {finished.tokens} tokens, {self.emitted} were sent"
            )

    # --- inside -----------------------------------------------------------------------------

    def _bind(self) -> int:
        """The attach number of this connection's attempt; frames are counted from here on."""
        self._sent.clear()
        if not self.bound:
            self.n += 1
            self.bound = True
        return self.n

    def _commit(self, tokens: Sequence[int], accepted: int, ack: Ack | None) -> Committed:
        limit = self.request.max_tokens if self.request else 0
        if self.emitted + len(tokens) > limit:
            raise RemoteProtocolError(f"an answer of more than the {limit} tokens asked for")
        first, last = self.emitted, self.emitted + len(tokens)
        if self.logprobs is not None:
            self.logprobs.check(last)
        start, hits = len(self.ids), self.window.hits(tokens)
        node, matched = self.window.current.follow(self.window.tip, tokens)
        judged_at, guesses = self.window.tip + 1, self.window.current
        refused = tuple(self.window.current.first(node)[0])
        alive = self.window.commit(tokens, own=self.ratio and accepted < len(tokens))
        self.nodes_accepted += accepted
        refused = () if alive else refused
        judged = matched + bool(refused)
        if self.collaborates:
            matched, judged = self.origins.note(guesses, judged_at, tokens, accepted)
        self.right = FORGETTING**judged * self.right + matched - hits
        self.judged = FORGETTING**judged * self.judged + judged
        self._since_restore += len(tokens)
        if self._since_restore >= RESTORE_PAYS:
            self.restores_left = MAX_RESTORES
        return Committed(
            session=self,
            answer=self.answer,
            start=start,
            tokens=tuple(tokens),
            accepted=accepted,
            refused=refused,
            ack=ack,
            logprobs=tuple(self.logprobs[first:last]) if self.logprobs is not None else (),
        )
