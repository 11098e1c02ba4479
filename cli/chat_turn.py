"""One answer of a chat, from the question to its figures."""

from __future__ import annotations

import contextlib
import sys
import termios
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from time import monotonic

from outrider.cli.chat_link import ChatLink, Interrupt, Notice, Over, Waiting
from outrider.cli.chat_screen import Screen
from outrider.edge_client.answer import Ahead, Answer, Piece, as_it_stands, held_back
from outrider.edge_client.offline import Unverified
from outrider.protocol.edge_session import EdgeSession
from outrider.protocol.errors import OutriderError
from outrider.protocol.request import Request


@dataclass(frozen=True, slots=True)
class Outcome:
    """An answer as far as it came; ``error`` or ``cancelled`` tell why it is not whole."""

    answer: Answer
    error: OutriderError | None = None
    cancelled: bool = False


class Turn:
    """Shows one answer while it comes and keeps what was verified, however it ends."""

    def __init__(self, link: ChatLink, session: EdgeSession, screen: Screen, patience: float):
        self._link, self._session, self._screen = link, session, screen
        self._patience = patience
        self._parts: list[str] = []
        self._answer: Answer | None = None
        self._cancelled = False
        self._told = False
        self._first: float | None = None

    def take(self, request: Request) -> Outcome:
        """Ask, and stay until it is over."""
        self._began = monotonic()
        over = Over(None)
        asked = self._link.ask(self._session, request, ahead=self._screen.tails)
        with closing(asked) as happenings, silent_keys():  # type: ignore[type-var]
            for event in happenings:
                if isinstance(event, Over):
                    over = event
                else:
                    self._happened(event)
            self._finish()
        error = over.error
        if error is not None and not isinstance(error, OutriderError):
            raise error
        answer = self._answer or self._broken_off("error" if error else "cancel")
        return Outcome(answer, error, self._cancelled and not self._answer)

    def _happened(self, event: object) -> None:
        if isinstance(event, Piece):
            self._first = self._first or monotonic() - self._began
            self._parts.append(event.text)
            self._screen.text(event.text)
        elif isinstance(event, Unverified):
            self._screen.unverified(event)
        elif isinstance(event, Ahead):
            self._screen.ahead(event.text)
        elif isinstance(event, Answer):
            self._answer = event
        elif isinstance(event, Notice):
            self._screen.aside(event.text)
        elif isinstance(event, Waiting) and not self._told:
            self._told = True
            self._wait(event)
        elif isinstance(event, Interrupt):
            self._cancelled = True
            self._screen.ahead("")

    def _wait(self, waiting: Waiting) -> None:
        """The link being away needs words; the target reading a prompt only a sign of life."""
        if waiting.up:
            self._screen.ahead("reading ...")
        else:
            for_how_long = f"for {self._patience:g} s; Ctrl-C gives up"
            self._screen.aside(f"note: no link to the cloud, trying again {for_how_long}")

    def _finish(self) -> None:
        if self._answer is None:
            token_bytes = self._link.client.tokenizer.token_bytes
            rest = held_back(self._session, token_bytes, self._parts)
            self._parts.append(rest)
            self._screen.text(rest)
        self._screen.end(self._answer)

    def _broken_off(self, reason: str) -> Answer:
        """After a cancel there may be verified ids whose piece was not taken any more."""
        return as_it_stands(
            self._session,
            text="".join(self._parts),
            reason=reason,
            first_token=self._first,
            seconds=monotonic() - self._began,
            rtt=self._link.client.machine.link.srtt,
        )


@contextlib.contextmanager
def silent_keys() -> Iterator[None]:
    """Keys typed during an answer are not echoed into it; they are there at the next prompt."""
    try:
        descriptor = sys.stdin.fileno()
        before = termios.tcgetattr(descriptor)
    except (AttributeError, OSError, ValueError, termios.error):  # no terminal, or closed
        yield
        return
    during = list(before)
    during[3] &= ~termios.ECHO
    termios.tcsetattr(descriptor, termios.TCSADRAIN, during)
    try:
        yield
    finally:
        with contextlib.suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
