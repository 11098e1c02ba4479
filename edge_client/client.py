"""The edge as a running client: one link, one drafter on its own thread, answers as streams."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

from outrider.edge_client.answer import Ahead, Answer, AnswerText, Piece
from outrider.edge_client.courier import Courier, Persistence
from outrider.edge_client.decisions import DecisionLog
from outrider.edge_client.engine import DraftWork, EdgeEngine, Idle, Prefill
from outrider.edge_client.policy import Policy
from outrider.protocol.edge import EdgeMachine
from outrider.protocol.edge_session import EdgeSession, Request
from outrider.protocol.errors import BackendError, OutriderError, SessionError
from outrider.protocol.events import (
    AnswerEnded,
    AnswerOpened,
    AnswerRefused,
    Committed,
    Event,
    LinkFailed,
    LinkReady,
)
from outrider.protocol.messages import Welcome
from outrider.runtime.lm.drafter import Drafter, Guess
from outrider.runtime.text.fingerprint import describe
from outrider.runtime.text.tokenizer import Tokenizer

AGENT = "outrider-edge"
_log = logging.getLogger("outrider.edge")


class EdgeClient:
    """A connected edge: ``async with EdgeClient(...) as edge``, then ``edge.stream(...)``.

    Without a drafter every answer is plain cloud streaming.
    """

    def __init__(
        self,
        url: str,
        tokenizer: Tokenizer,
        drafter: Drafter | None,
        policy: Policy,
        *,
        key: str | None = None,
        context: ssl.SSLContext | None = None,
        persistence: Persistence | None = None,
        log: DecisionLog | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.machine = EdgeMachine(describe(tokenizer), AGENT, os.urandom)
        self.notices: list[str] = []
        self.courier = Courier(
            self.machine,
            url,
            key=key,
            context=context,
            persistence=persistence or Persistence(),
            heard=self._hear,
            interrupted=lambda error: self._notice(f"the link was lost, connecting again: {error}"),
            failed=self._fail,
        )
        self._drafter = drafter
        self._engine = EdgeEngine(self.machine, drafter, policy, log) if drafter else None
        self._tasks: list[asyncio.Task[None]] = []
        self._draft_wake = asyncio.Event()
        self._streams: dict[int, asyncio.Queue[Event | Ahead | OutriderError]] = {}
        self._show_ahead: set[int] = set()
        self._ready: asyncio.Future[Welcome] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="drafter")
        self._work: DraftWork | None = None
        self._stale = False

    # --- life -------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Connect and shake hands.

        Raises:
            LinkError: no connection. HandshakeError: the cloud refused (key, version, tokenizer).
        """
        self._ready = asyncio.get_running_loop().create_future()
        link = await self.courier.connect()
        self._tasks = [asyncio.create_task(self.courier.run(link), name="courier")]
        if self._engine is not None:
            self._tasks.append(asyncio.create_task(self._draft(self._engine), name="draft"))
        try:
            await self._ready
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stop()

    async def _stop(self) -> None:
        self._stale = True
        await self.courier.flush()  # a cancel may be due
        await self.courier.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)

    @property
    def url(self) -> str:
        """Where the cloud is."""
        return self.courier.url

    @property
    def welcome(self) -> Welcome:
        """What the cloud said of itself."""
        assert self.machine.welcome is not None  # __aenter__ waited for it
        return self.machine.welcome

    # --- answers ----------------------------------------------------------------------------

    def session(self) -> EdgeSession:
        """A new conversation."""
        return self.machine.session()

    async def stream(
        self, session: EdgeSession, request: Request, *, ahead: bool = False
    ) -> AsyncIterator[Piece | Ahead | Answer]:
        """The pieces of one answer as they are verified, and last the whole answer.

        With ``ahead`` also the guesses that run ahead of it, whenever there are new ones. Leaving
        the loop early cancels the answer at the cloud.

        Raises:
            SessionError: the cloud refused the answer. LinkError: the connection was lost; what was
            yielded before is verified.
        """
        queue: asyncio.Queue[Event | Ahead | OutriderError] = asyncio.Queue()
        self._streams[session.handle] = queue
        if ahead:
            self._show_ahead.add(session.handle)
        self.courier.needed.set()
        started = _now()
        self.machine.open(session, request)
        self._talk()
        eos = frozenset() if request.ignore_eos else frozenset(self.welcome.eos)
        text = AnswerText(request.stops, eos, request.max_tokens, self.tokenizer.token_bytes)
        parts: list[str] = []
        first: float | None = None
        ended = False
        try:
            while not ended:
                event = await queue.get()
                if isinstance(event, OutriderError):
                    raise event
                if isinstance(event, Ahead):
                    yield event
                    continue
                if isinstance(event, Committed):
                    first = first if first is not None else _now() - started
                    shown = text.feed(event.tokens)
                    parts.append(shown)
                    yield Piece(shown, event.tokens, event.accepted, event.refused)
                elif isinstance(event, AnswerRefused):
                    ended = True
                    raise _refusal(event)
                elif isinstance(event, AnswerEnded):
                    ended = True
                    rest = text.finish(event.text_bytes)
                    parts.append(rest)
                    if rest:
                        yield Piece(rest, (), 0, ())
                    if event.reason.startswith("error"):
                        raise SessionError(f"the target failed: {event.reason[7:]}", code="target")
                    yield self._answer(session, event, "".join(parts), first, _now() - started)
        finally:
            del self._streams[session.handle]
            self._show_ahead.discard(session.handle)
            if not self._streams:
                self.courier.needed.clear()
            if not ended:
                self.machine.cancel(session)
                self._talk()

    def _answer(
        self,
        session: EdgeSession,
        ended: AnswerEnded,
        text: str,
        first: float | None,
        seconds: float,
    ) -> Answer:
        sampling = session.request.sampling if session.request else None
        degraded = self._engine.failed if self._engine else None
        return Answer(
            text=text,
            ids=tuple(session.ids[session.prompt_len :]),
            prompt_ids=tuple(session.ids[: session.prompt_len]),
            reason=ended.reason,
            seed=sampling.seed if sampling and sampling.temperature else None,
            frames=session.frames_sent,
            drafted=session.nodes_sent,
            accepted=session.nodes_accepted,
            bytes_up=session.bytes_up,
            bytes_down=session.bytes_down,
            passes=ended.passes,
            first_token=first,
            seconds=seconds,
            rtt=self.machine.link.srtt,
            degraded=str(degraded) if degraded else None,
        )

    # --- the loops --------------------------------------------------------------------------

    async def _draft(self, engine: EdgeEngine) -> None:
        """Run the engine's work on the drafter's thread: a decode never blocks the socket."""
        loop = asyncio.get_running_loop()
        while True:
            self._draft_wake.clear()
            work = engine.next(_now())
            await self.courier.flush()  # new guesses or a closing frame, without a further wake-up
            if isinstance(work, Idle):
                await self._draft_wake.wait()
                continue
            self._work, self._stale = (work if isinstance(work, DraftWork) else None), False
            result = await loop.run_in_executor(self._thread, self._run, work)
            self._work = None
            engine.done(work, result, _now())
            self._guessed(work.session)
            if engine.failed is not None:
                self._notice(f"drafting stopped, the cloud goes on alone: {engine.failed}")

    def _guessed(self, session: EdgeSession) -> None:
        """Tell a stream that asked for it what is ahead of its text now."""
        queue = self._streams.get(session.handle)
        if queue is not None and session.handle in self._show_ahead:
            queue.put_nowait(Ahead(self.tokenizer.decode(session.window.ahead)))

    def _run(self, work: Prefill | DraftWork) -> Guess | BackendError | None:
        """On the drafter's thread."""
        assert self._drafter is not None
        try:
            if isinstance(work, Prefill):
                self._drafter.prefill(work.ids, work.count)
                return None
            return self._drafter.draft(
                work.ids,
                work.prompt_len,
                work.sampling,
                work.count,
                never=work.never,
                floor=work.floor,
                stop=lambda: self._stale,
            )
        except BackendError as error:
            return error
        except Exception as error:
            _log.exception("the drafter failed")
            return BackendError(f"the drafter failed: {error}")

    def _talk(self) -> None:
        """The machine was told something: send it, and let the drafter look."""
        self.courier.wake()
        self._draft_wake.set()

    def _hear(self) -> None:
        """The machine may have events: give them to the streams that wait for them."""
        for event in self.machine.events():
            if isinstance(event, LinkReady):
                if event.never_draft:
                    named = ", ".join(map(str, sorted(event.never_draft)[:8]))
                    self._notice(f"special tokens differ: these ids are never drafted: {named}")
                if self._ready and not self._ready.done():
                    self._ready.set_result(event.welcome)
            elif not isinstance(event, LinkFailed | AnswerOpened) and (
                queue := self._streams.get(event.session.handle)
            ):
                queue.put_nowait(event)
        if self._work is not None and self._engine is not None:
            self._stale = not self._engine.wanted(self._work)
        self._draft_wake.set()

    def _fail(self, error: OutriderError) -> None:
        """The link is not coming back: whoever waits for it is told."""
        if self._ready and not self._ready.done():
            self._ready.set_exception(error)
        for queue in self._streams.values():
            queue.put_nowait(error)

    def _notice(self, text: str) -> None:
        if text not in self.notices:
            self.notices.append(text)
            _log.warning("%s", text)


def _refusal(event: AnswerRefused) -> SessionError:
    return SessionError(event.message, code=event.code, retry_after=event.retry_after)


def _now() -> float:
    return asyncio.get_running_loop().time()
