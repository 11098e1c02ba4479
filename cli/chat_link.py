"""The link of a chat: it lives on a thread of its own, for the prompt blocks while it waits.

Everything that happens there arrives at the prompt's thread through one queue: pieces of text,
errors, what the log has to say, and Ctrl-C, which is only looked at between two of them.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from types import FrameType, TracebackType
from typing import Self

from outrider.cli.edge import Edge, connected
from outrider.cli.exits import NotConnectedError
from outrider.edge_client.answer import Ahead, Answer, Piece
from outrider.edge_client.client import EdgeClient
from outrider.edge_client.patience import stream_patiently
from outrider.edge_client.policy import Observed, Plan, Policy
from outrider.protocol.edge import State
from outrider.protocol.edge_session import EdgeSession
from outrider.protocol.request import Request

WAIT = 1.0
"""Seconds after which somebody who waits is told for what."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that the user should know."""

    text: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """Nothing came for a while. ``up``: the link is there, so the target is at work."""

    up: bool


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Ctrl-C."""


@dataclass(frozen=True, slots=True)
class Over:
    """The answer's last event: it is complete or was cancelled, or why it broke off."""

    error: BaseException | None


Happening = Piece | Ahead | Answer | Notice | Waiting | Interrupt | Over


class Switch(Policy):
    """The policy that was chosen, or none of it while drafting is off."""

    name = "switch"

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.on = True

    @property
    def about(self) -> str:
        """What the chosen policy does."""
        return self.policy.about

    def plan(self, observed: Observed) -> Plan:
        """Off is the plain path: no frames at all."""
        if not self.on:
            self.reason = "off"
            return Plan(0, 0)
        plan = self.policy.plan(observed)
        self.reason = self.policy.reason
        return plan


class ChatLink:
    """A connected client on a thread of its own: ``with ChatLink(edge, model) as link``."""

    def __init__(self, edge: Edge, model: str | None) -> None:
        self._edge, self._model = edge, model
        self._events: SimpleQueue[Happening] = SimpleQueue()
        self._ready: Future[EdgeClient] = Future()
        self._task: asyncio.Task[None] | None = None
        self._answer: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="link", daemon=True)
        self.client: EdgeClient
        self.switch: Switch | None = None

    def __enter__(self) -> Self:
        """Connect.

        Raises:
            NotConnectedError: as :func:`outrider.cli.edge.connected`; offline, there is no cloud to
            begin with.
        """
        self._thread.start()
        try:
            self.client = self._ready.result()
        except BaseException:
            self._leave()
            raise
        if self.client.machine.welcome is None:  # only with --offline local
            self._leave()
            raise NotConnectedError(
                f"there is no cloud at {self.client.url}: a chat begins with one, which says what "
                "its model is. Without: outrider run --offline local"
            )
        if self.client.policy is not None:
            self.switch = self.client.policy = Switch(self.client.policy)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave()

    def notify(self, text: str) -> None:
        """Have a line shown where it does not run into an answer. From any thread."""
        self._events.put(Notice(text))

    def pending(self) -> list[str]:
        """Notices that nobody has seen yet."""
        found = []
        with suppress(Empty):
            while True:
                event = self._events.get_nowait()
                if isinstance(event, Notice):
                    found.append(event.text)
        return found

    def ask(self, session: EdgeSession, request: Request, *, ahead: bool) -> Iterator[Happening]:
        """What happens to one answer, to the end. Closing this or an interrupt cancels it."""
        assert self._loop is not None  # __enter__ waited for it
        self.client.notices.clear()  # what is said once is said once an answer
        self._loop.call_soon_threadsafe(self._begin, session, request, ahead)
        with interrupts(self._events):
            over = False
            try:
                for event in self._happenings():
                    over = isinstance(event, Over)
                    yield event
            finally:
                if not over:
                    self._stop_answer()
                    while not isinstance(self._events.get(), Over):
                        pass

    def _happenings(self) -> Iterator[Happening]:
        begun = False
        while True:
            try:
                event = self._events.get(timeout=None if begun else WAIT)
            except Empty:
                yield Waiting(self.client.machine.state is State.READY)
                continue
            if isinstance(event, Interrupt):
                self._stop_answer()
            begun = begun or isinstance(event, Piece | Ahead | Interrupt)
            yield event
            if isinstance(event, Over):
                return

    def _stop_answer(self) -> None:
        if self._loop is not None and self._answer is not None:
            self._loop.call_soon_threadsafe(self._answer.cancel)

    # --- on the link's thread ---------------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(self._life())
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            if self._ready.done():
                self._events.put(Over(error))
            else:
                self._ready.set_exception(error)

    async def _life(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        async with connected(self._edge, model=self._model) as client:
            self._ready.set_result(client)
            await asyncio.get_running_loop().create_future()  # until cancelled

    def _leave(self) -> None:
        if self._loop is not None and self._task is not None:
            with suppress(RuntimeError):  # it has ended by itself
                self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(10)

    def _begin(self, session: EdgeSession, request: Request, ahead: bool) -> None:
        self._answer = asyncio.create_task(self._pump(session, request, ahead), name="answer")
        self._answer.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._events.put(Over(None if task.cancelled() else task.exception()))

    async def _pump(self, session: EdgeSession, request: Request, ahead: bool) -> None:
        """Leaving the stream early, as a cancelled task does, stops the cloud's work."""
        stream = stream_patiently(self.client, session, request, ahead=ahead)
        try:
            async with aclosing(stream) as events:
                async for event in events:
                    self._events.put(event)
        finally:
            # The end of an answer cancelled just now must not pass for that of the next one.
            self.client.machine.events()


class NoticeHandler(logging.Handler):
    """Sends log lines to the prompt's thread, in the form that the other handler gives them."""

    def __init__(self, link: ChatLink) -> None:
        super().__init__()
        self._link = link

    def emit(self, record: logging.LogRecord) -> None:
        """From whatever thread logs."""
        self._link.notify(self.format(record))


@contextmanager
def notices(link: ChatLink) -> Iterator[None]:
    """While this lasts, log lines do not run into the text."""
    logger = logging.getLogger("outrider")
    before = logger.handlers[:]
    handler = NoticeHandler(link)
    handler.setFormatter(before[0].formatter if before else None)
    logger.handlers[:] = [handler]
    try:
        yield
    finally:
        logger.handlers[:] = before


@contextmanager
def interrupts(events: SimpleQueue[Happening]) -> Iterator[None]:
    """Ctrl-C becomes an event. Should that be stuck, the third one is as ever."""
    pressed: list[int] = []

    def press(number: int, _frame: FrameType | None) -> None:
        pressed.append(number)
        if len(pressed) > 2:
            raise KeyboardInterrupt
        events.put(Interrupt())

    before = signal.signal(signal.SIGINT, press)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
