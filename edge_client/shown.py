"""One answer on its way to the user: events go in, pieces and at last the whole come out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from outrider.edge_client.answer import Ahead, Answer, AnswerText, Piece, as_it_stands
from outrider.edge_client.offline import UNVERIFIED, Offline, Unverified, Wrote
from outrider.protocol.edge import EdgeMachine
from outrider.protocol.edge_session import EdgeSession
from outrider.protocol.errors import LinkError, OutriderError, SessionError
from outrider.protocol.events import AnswerEnded, AnswerRefused, Committed, Event
from outrider.protocol.request import Request
from outrider.runtime.text.tokenizer import Tokenizer

Happening = Event | Ahead | Wrote | OutriderError


@dataclass(slots=True)
class Shown:
    """Keeps what was verified and what was not apart. ``ended``: nothing more will come.

    ``closed``: the answer is over at the cloud too, and need not be cancelled.
    """

    machine: EdgeMachine
    session: EdgeSession
    request: Request
    tokenizer: Tokenizer
    offline: Offline | None
    now: Callable[[], float]
    started: float
    degraded: Callable[[], OutriderError | None]
    reconnects: Callable[[], int]
    ended: bool = False
    closed: bool = False
    _parts: list[str] = field(default_factory=list)
    _text: AnswerText | None = None
    _first: float | None = None
    _gone: LinkError | None = None
    _written: int = 0
    _corrected: int = 0
    _links: int = 0

    def __post_init__(self) -> None:
        self._links = self.reconnects()

    def take(self, event: Happening) -> Iterator[Piece | Ahead | Answer]:
        """What the user gets to see of it.

        Raises:
            OutriderError: the answer ends here, and why.
        """
        if isinstance(event, OutriderError):
            yield from self._failed(event)
        elif isinstance(event, Wrote):
            yield from self._wrote(event)
        elif isinstance(event, Ahead):
            yield event
        elif isinstance(event, Committed):
            yield from self._committed(event)
        elif isinstance(event, AnswerRefused):
            self.ended = self.closed = True
            raise SessionError(event.message, code=event.code, retry_after=event.retry_after)
        elif isinstance(event, AnswerEnded):
            yield from self._finished(event)

    def _committed(self, event: Committed) -> Iterator[Piece | Ahead | Answer]:
        if self._first is None:
            self._first = self.now() - self.started
        shown = self._so_far().feed(event.tokens)
        self._parts.append(shown)
        yield Piece(shown, event.tokens, event.accepted, event.refused, event.logprobs)
        wrote = self.offline.committed(self.session, event.tokens) if self.offline else None
        if wrote is not None:
            yield from self._wrote(wrote)

    def _wrote(self, wrote: Wrote) -> Iterator[Ahead | Answer]:
        """The drafter wrote alone, or some of that was verified or turned out wrong."""
        if not wrote.linked:
            self._written = max(self._written, self.session.emitted + len(wrote.tokens))
        self._corrected += wrote.corrected
        text = self._so_far().beyond(wrote.tokens, wrote.text_bytes)
        yield Unverified(text, len(wrote.tokens), wrote.linked, wrote.over, wrote.corrected)
        if self._gone is not None and wrote.over:
            yield self._unverified()

    def _finished(self, event: AnswerEnded) -> Iterator[Piece | Answer]:
        self.ended = self.closed = True
        rest = self._so_far().finish(event.text_bytes)
        self._parts.append(rest)
        if rest:
            yield Piece(rest, (), 0, ())
        if event.reason.startswith("error"):
            raise SessionError(f"the target failed: {event.reason[7:]}", code="target")
        yield self._answer(event.reason, event.passes)

    def _failed(self, error: OutriderError) -> Iterator[Answer]:
        """The link is not coming back. Offline the answer still ends with what the drafter has."""
        alone = self.offline is not None and self.session.may_guess
        if not alone or not isinstance(error, LinkError):
            self.ended = True
            raise error
        self._gone = error
        tail = self.offline.tail(self.session) if self.offline else None
        if tail is not None and tail.over:
            yield self._unverified()

    def _unverified(self) -> Answer:
        self.ended = True
        return self._answer(UNVERIFIED, None)

    def _so_far(self) -> AnswerText:
        """Made when first needed: which tokens end an answer is the cloud's to say."""
        if self._text is None:
            welcome, request = self.machine.welcome, self.request
            known = welcome.eos if welcome is not None else self.tokenizer.eos
            eos = frozenset() if request.ignore_eos else frozenset(known)
            self._text = AnswerText(
                request.stops, eos, request.max_tokens, self.tokenizer.token_bytes
            )
        return self._text

    def _answer(self, reason: str, passes: int | None) -> Answer:
        session, degraded = self.session, self.degraded()
        tail = self.offline.tail(session) if self.offline and reason == UNVERIFIED else None
        tokens = tuple(tail.tokens) if tail else ()
        return as_it_stands(
            session,
            text="".join(self._parts),
            reason=reason,
            first_token=self._first,
            seconds=self.now() - self.started,
            rtt=self.machine.link.srtt,
            passes=passes,
            degraded=str(degraded) if degraded else None,
            unverified=self._so_far().beyond(tokens, tail.text_bytes) if tail else "",
            unverified_tokens=len(tokens),
            offline_tokens=self._written,
            corrected=self._corrected,
            reconnects=self.reconnects() - self._links,
        )
