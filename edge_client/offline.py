"""While there is no link the drafter may go on alone. Its text is not the target's until verified.

What it wrote is a *tail* after the verified text of a session, kept apart from it everywhere. When
the link is back the tail becomes guesses like any others: the target confirms or contradicts them,
a contradiction takes the rest away, and only then is any of it part of the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from outrider.edge_client.answer import Ahead
from outrider.edge_client.engine import EdgeEngine
from outrider.edge_client.work import DraftWork, Idle, Prefill, Work
from outrider.protocol.edge import EdgeMachine, State
from outrider.protocol.edge_session import EdgeSession
from outrider.protocol.errors import BackendError
from outrider.runtime.lm.drafter import Guess
from outrider.runtime.text.ending import Ending
from outrider.runtime.text.tokenizer import Tokenizer

UNVERIFIED = "unverified"
"""Why an answer ended whose link never came back."""

CHUNK = 2
"""Tokens between two looks at whether the link is back."""

READ = 64
"""Ids of a prompt evaluated between two such looks."""


@dataclass(frozen=True, slots=True)
class Unverified(Ahead):
    """What the drafter wrote alone, after the verified text; takes the place of what it was before.

    ``tokens`` long. ``linked``: the link is back and the text is being verified. ``over``: the
    drafter has come to an end of the answer. ``corrected`` tokens just turned out wrong.
    """

    tokens: int
    linked: bool
    over: bool
    corrected: int = 0


@dataclass(slots=True)
class Tail:
    """A session's tail. ``text_bytes`` of the whole answer's text, tail included, are to be shown.

    ``handed``: it has become guesses, and nothing is added any more.
    """

    answer: int
    ending: Ending
    tokens: list[int] = field(default_factory=list)
    over: bool = False
    handed: bool = False

    @property
    def text_bytes(self) -> int:
        """Where the text ends, a stop string cut off."""
        return self.ending.text_bytes


@dataclass(frozen=True, slots=True)
class Wrote:
    """The tail changed: a copy of it for whoever shows the answer."""

    tokens: tuple[int, ...]
    text_bytes: int
    linked: bool
    over: bool
    corrected: int = 0


class Offline:
    """Decides what the drafter does while the link is down. ``show(session, wrote)`` is told."""

    def __init__(
        self,
        machine: EdgeMachine,
        engine: EdgeEngine,
        tokenizer: Tokenizer,
        show: Callable[[EdgeSession, Wrote], None],
    ) -> None:
        self._machine, self._engine, self._tokenizer, self._show = machine, engine, tokenizer, show
        self._tails: dict[int, Tail] = {}

    def tail(self, session: EdgeSession) -> Tail | None:
        """What hangs unverified from the session's text, if anything does."""
        tail = self._tails.get(session.handle)
        return tail if tail is not None and tail.answer == session.answer else None

    def forget(self, session: EdgeSession) -> None:
        """The answer is over."""
        self._tails.pop(session.handle, None)

    # --- the drafter's side -----------------------------------------------------------------

    def next(self, now: float) -> Work | None:
        """The next work while there is no link; None where the engine decides as ever."""
        state = self._machine.state
        down = state in (State.DOWN, State.FAILED)
        if state is State.READY or not (down or self._tails):
            return None
        for session in self._machine.sessions:
            if session.may_guess and (down or self.tail(session)):
                work = self._work(session, now)
                if work is not None:
                    return work
        return Idle()

    def _work(self, session: EdgeSession, now: float) -> Prefill | DraftWork | None:
        tail = self.tail(session) or self._begin(session)
        tail.handed = False  # if it was, that link is gone as well
        if tail.over:
            return None
        ids = (*session.ids, *tail.tokens)
        room = self._engine.drafter.n_ctx - len(ids)
        health, lost = self._engine.health, self._machine.state is State.FAILED
        if health.failed is not None or room <= 0 or (lost and health.rests(now)):
            tail.over = True
            self._tell(session, tail)
            return None
        if health.rests(now):
            return None
        if self._engine.drafter.behind(ids) > READ:
            return Prefill(session, ids, READ, now)
        request = session.request
        assert request is not None  # it may guess
        return DraftWork(
            session=session,
            answer=session.answer,
            epoch=session.window.begun,
            ids=ids,
            prompt_len=session.prompt_len,
            sampling=request.sampling,
            count=min(CHUNK, room),
            window=CHUNK,
            never=self._machine.never_draft,
            floor=0.0,
            started=now,
        )

    def _begin(self, session: EdgeSession) -> Tail:
        request = session.request
        assert request is not None  # it may guess
        known = self._machine.welcome.eos if self._machine.welcome else self._tokenizer.eos
        eos = frozenset() if request.ignore_eos else frozenset(known)
        ending = Ending(request.stops, eos, request.max_tokens, self._tokenizer.token_bytes)
        ending.scan(session.ids[session.prompt_len :])
        tail = self._tails[session.handle] = Tail(session.answer, ending)
        session.withdraw()  # whatever was ahead was made for another link, and is made again
        return tail

    def done(
        self, work: Prefill | DraftWork, result: Guess | BackendError | None, now: float
    ) -> bool:
        """Take a result back; False if it was not for this."""
        tail = self.tail(work.session)
        if tail is None or tail.handed:
            return False
        if isinstance(result, BackendError):
            self._engine.done(work, result, now)
            tail.over = self._engine.health.failed is not None
            self._tell(work.session, tail)
        elif isinstance(result, Guess) and work.ids == (*work.session.ids, *tail.tokens):
            keep = tail.ending.scan(result.tokens).keep
            tail.tokens.extend(result.tokens[:keep])
            tail.over = tail.ending.reason is not None
            self._tell(work.session, tail)
        return True

    # --- the link's side --------------------------------------------------------------------

    def linked(self) -> None:
        """The link is back: what was written becomes guesses, to be judged like any others."""
        for session in self._machine.sessions:
            tail = self.tail(session)
            if tail is None or tail.handed or not session.may_guess:
                continue
            tail.handed = True
            left = session.request.max_tokens - session.emitted if session.request else 0
            tokens = tail.tokens[: max(0, left - 1)]  # the pass adds a token of its own
            if tokens and not session.ratio:  # there guesses are drawn from rows, anew
                session.withdraw()
                session.guess(tokens, full=True)
            self._tell(session, tail)

    def committed(self, session: EdgeSession, tokens: Sequence[int]) -> Wrote | None:
        """Tokens were verified: what is left of the tail, if there was one."""
        tail = self.tail(session)
        if tail is None:
            return None
        right = tail.tokens[: len(tokens)] == list(tokens[: len(tail.tokens)])
        corrected = 0
        if right:
            del tail.tokens[: len(tokens)]
        else:
            same = next(i for i, t in enumerate(tokens) if tail.tokens[i] != t)
            corrected = len(tail.tokens) - same
            tail.tokens.clear()
        if not tail.tokens:
            self.forget(session)
        return Wrote(tuple(tail.tokens), tail.text_bytes, True, tail.over, corrected)

    def _tell(self, session: EdgeSession, tail: Tail) -> None:
        self._show(session, Wrote(tuple(tail.tokens), tail.text_bytes, tail.handed, tail.over))
