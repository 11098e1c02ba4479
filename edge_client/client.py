"""The edge as a running client: one link, one drafter on its own thread, answers as streams."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Self

from outrider.edge_client.answer import Ahead, Answer, Piece
from outrider.edge_client.decisions import DecisionLog
from outrider.edge_client.engine import EdgeEngine, EdgeStats
from outrider.edge_client.offline import Offline, Wrote
from outrider.edge_client.policy import Policy
from outrider.edge_client.ratio import ruled
from outrider.edge_client.shown import Happening, Shown
from outrider.edge_client.together import check_models
from outrider.edge_client.work import DraftWork, Idle, Prefill
from outrider.protocol.edge import EdgeMachine
from outrider.protocol.edge_session import EdgeSession
from outrider.protocol.errors import (
    BackendError,
    LinkError,
    OutriderError,
    SettingError,
)
from outrider.protocol.events import (
    AnswerEnded,
    AnswerOpened,
    AnswerRefused,
    Committed,
    LinkFailed,
    LinkReady,
)
from outrider.protocol.messages import Welcome
from outrider.protocol.request import Request
from outrider.runtime.lm.drafter import DraftSource, Guess
from outrider.runtime.net.courier import Courier, Persistence
from outrider.runtime.net.link import Link
from outrider.runtime.owner import OwnerThread
from outrider.runtime.text.fingerprint import describe
from outrider.runtime.text.tokenizer import Tokenizer

AGENT = "outrider-edge"

QUIET = 30.0
"""Seconds without a word from the cloud in an answer, after which the user is told. A long prompt
may take longer."""

FAREWELL = 2.0
"""Seconds that the last messages may take on a link that is not going to carry them."""

_log = logging.getLogger("outrider.edge")


class EdgeClient:
    """A connected edge: ``async with EdgeClient(...) as edge``, then ``edge.stream(...)``.

    Without a drafter every answer is plain cloud streaming. ``offline``: while there is no link the
    drafter goes on alone, and streams yield :class:`Unverified`. ``rule`` is for sampled answers:
    coupled, ratio or auto (``choose_rule`` in ``ratio``). ``accept(welcome)`` may raise an error
    for a cloud that is not the right one.
    """

    def __init__(
        self,
        url: str,
        tokenizer: Tokenizer,
        drafter: DraftSource | None,
        policy: Policy,
        *,
        key: str | None = None,
        context: ssl.SSLContext | None = None,
        persistence: Persistence | None = None,
        log: DecisionLog | None = None,
        offline: bool = False,
        rule: str = "coupled",
        accept: Callable[[Welcome], None] = lambda _: None,
    ) -> None:
        self.tokenizer = tokenizer
        self.machine = EdgeMachine(describe(tokenizer), AGENT, os.urandom)
        self.notices: Counter[str] = Counter()
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
        self._accept = accept
        self._rule = rule
        self._offline: Offline | None = None
        if offline:
            if self._engine is None:
                raise SettingError("without a drafter nobody can write while the link is down")
            self._offline = Offline(self.machine, self._engine, tokenizer, self._wrote)
        self._serving: asyncio.Task[None] | None = None
        self._streams: dict[EdgeSession, asyncio.Queue[Happening]] = {}
        self._show_ahead: set[EdgeSession] = set()
        self._ready: asyncio.Future[Welcome] | None = None
        self._thread = OwnerThread("drafter")
        self._work: Prefill | DraftWork | None = None
        self._stale = self._stopped = self._foreign = False

    # --- life -------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Connect and shake hands. Offline, a cloud that cannot be reached is tried again later.

        Raises:
            LinkError: no connection. HandshakeError: the cloud refused (key, version, tokenizer).
        """
        self._ready = asyncio.get_running_loop().create_future()
        link: Link | LinkError
        try:
            link = await self.courier.connect()
        except LinkError as error:
            if self._offline is None:
                raise
            link, self._ready = error, None  # nobody waits for it
        self._serving = asyncio.create_task(self.courier.run(link), name="courier")
        try:
            if self._ready is not None:
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
        self._stale = self._stopped = True
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL):
                await self.courier.flush()  # a cancel may be due
        await self.courier.close()
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.gather(self._serving, return_exceptions=True)
        await asyncio.to_thread(self._thread.close)

    @property
    def url(self) -> str:
        """Where the cloud is."""
        return self.courier.url

    @property
    def welcome(self) -> Welcome:
        """What the cloud said of itself.

        Raises:
            LinkError: offline, it has never been reached.
        """
        if self.machine.welcome is None:
            raise LinkError("the cloud has not been reached yet")
        return self.machine.welcome

    @property
    def policy(self) -> Policy | None:
        """What decides how far to draft; None without a drafter. May be replaced at any time."""
        return self._engine.policy if self._engine else None

    @policy.setter
    def policy(self, policy: Policy) -> None:
        if self._engine is None:
            raise SettingError("there is no drafter whose policy could be set")
        self._engine.policy = policy

    @property
    def stats(self) -> EdgeStats | None:
        """What the drafter did so far; None without one."""
        return self._engine.stats if self._engine else None

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
        check_models(request.sampling, self._drafter)
        if self._engine is not None and request.sampling.collaborate is not None:
            self._engine.health.check()
        request = self._whose_template(request)
        if self._engine is not None:
            request = ruled(request, self._rule, self._engine.known)
        queue: asyncio.Queue[Happening] = asyncio.Queue()
        self._streams[session] = queue
        if ahead:
            self._show_ahead.add(session)
        self.courier.needed.set()
        shown = self._shown(session, request)
        try:
            self.machine.open(session, request)
            self._talk()
            self._hear()  # what is refused here is over, and no message will say so
            while not shown.ended:
                for item in shown.take(await self._heard_from(queue)):
                    yield item
        finally:
            if self._streams.get(session) is queue:  # a stream left early is closed late
                del self._streams[session]
                self._show_ahead.discard(session)
            if self._offline is not None:
                self._offline.forget(session)
            if not self._streams:
                self.courier.rest()
            if not shown.closed:
                if self._drafter is not None:
                    self._thread.submit(self._drafter.forget, tuple(session.ids), lambda *_: None)
                self.machine.cancel(session)
                self._talk()

    def _whose_template(self, request: Request) -> Request:
        """A chat is written out by the target's own template, wherever that is."""
        welcome = self.machine.welcome
        if request.messages is None or welcome is None or welcome.same_template:
            return request
        if self.tokenizer.chat is not None and not self._foreign:
            self._foreign = True
            self._notice(
                "the draft model's chat template is not the target's: the cloud writes the "
                "messages out, and guesses begin a round trip later"
            )
        return replace(request, ids=(), base=0, templated=False)

    def _shown(self, session: EdgeSession, request: Request) -> Shown:
        engine, courier = self._engine, self.courier
        return Shown(
            machine=self.machine,
            session=session,
            request=request,
            tokenizer=self.tokenizer,
            offline=self._offline,
            now=_now,
            started=_now(),
            degraded=lambda: engine.health.trouble if engine else None,
            reconnects=lambda: courier.reconnects,
        )

    # --- the drafter ------------------------------------------------------------------------

    def _step(self) -> None:
        """Give the drafter its next work, if it is free and there is any, and send what is due.

        The work runs on the drafter's own thread, so that a decode never blocks the socket; what
        leads from a verdict to it and from it to a frame wakes no task.
        """
        if self._engine is None or self._work is not None or self._stopped:
            return
        alone = self._offline.next(_now()) if self._offline else None
        work = self._engine.next(_now()) if alone is None else alone
        self.courier.post()  # perhaps a closing frame
        if not isinstance(work, Idle):
            self._work, self._stale = work, False
            self._thread.submit(self._run, work, self._ran)

    def _ran(self, work: Prefill | DraftWork, result: Guess | BackendError | None) -> None:
        """The drafter's work is done."""
        assert self._engine is not None  # it made the work
        self._work = None
        alone = self._offline is not None and self._offline.done(work, result, _now())
        if not alone:
            self._engine.done(work, result, _now())
            self.courier.post()  # the new guesses, before the next are thought about
        self._step()
        if not alone:
            self._guessed(work.session)
        if (away := self._engine.health.away) is not None:
            asyncio.get_running_loop().call_later(away.retry_after, self._step)
        if self._engine.health.trouble is not None:
            self._notice(self._engine.health.notice)

    def _guessed(self, session: EdgeSession) -> None:
        """Tell a stream that asked for it what is ahead of its text now."""
        queue = self._streams.get(session)
        if queue is not None and session in self._show_ahead:
            queue.put_nowait(Ahead(self.tokenizer.decode(session.window.ahead)))

    def _wrote(self, session: EdgeSession, wrote: Wrote) -> None:
        """The drafter went on alone."""
        if queue := self._streams.get(session):
            queue.put_nowait(wrote)

    def _run(self, work: Prefill | DraftWork) -> Guess | BackendError | None:
        """On the drafter's thread."""
        assert self._drafter is not None
        try:
            if isinstance(work, Prefill):
                self._drafter.prefill(work.ids, work.count)
                return None
            return work.run(self._drafter, stop=lambda: self._stale)
        except BackendError as error:
            return error
        except Exception as error:
            _log.exception("the drafter failed")
            return BackendError(f"the drafter failed: {error}")

    def _talk(self) -> None:
        """The machine was told something: send it, and let the drafter look."""
        self.courier.wake()
        self._step()

    def _hear(self) -> None:
        """The machine may have events: give them to the streams that wait for them."""
        events = self.machine.events()
        for event in events:
            if isinstance(event, LinkReady):
                self._linked(event)
        self._step()  # the drafter first: what it does next takes longest
        if isinstance(self._work, DraftWork) and self._engine is not None:
            self._stale = not self._engine.wanted(self._work)
        for event in events:
            if not isinstance(event, LinkReady | LinkFailed | AnswerOpened):
                self._pass_on(event)

    def _pass_on(self, event: Committed | AnswerEnded | AnswerRefused) -> None:
        """To the stream of its answer; what is left of an answer before it concerns nobody."""
        queue = self._streams.get(event.session)
        if queue is not None and event.answer == event.session.answer:
            queue.put_nowait(event)

    def _linked(self, event: LinkReady) -> None:
        if event.never_draft:
            named = ", ".join(map(str, sorted(event.never_draft)[:8]))
            self._notice(f"special tokens differ: these ids are never drafted: {named}")
        try:
            self._accept(event.welcome)
        except OutriderError as error:
            self._fail(error)
            return
        if self._ready and not self._ready.done():
            self._ready.set_result(event.welcome)
        if self._offline is not None:
            self._offline.linked()

    def _fail(self, error: OutriderError) -> None:
        """The link is not coming back: whoever waits for it is told."""
        if self._ready and not self._ready.done():
            self._ready.set_exception(error)
        for queue in self._streams.values():
            queue.put_nowait(error)

    async def _heard_from(self, queue: asyncio.Queue[Happening]) -> Happening:
        """The next event of a stream; a cloud that says nothing for long is mentioned once."""
        while True:
            try:
                async with asyncio.timeout(QUIET):
                    return await queue.get()
            except TimeoutError:
                self._notice(f"the cloud has said nothing for {QUIET:g} s, still waiting")

    def _notice(self, text: str) -> None:
        """Said the first time, and again when it has come 10, 100, ... times; counted always."""
        self.notices[text] += 1
        count = self.notices[text]
        if count == 1:
            _log.warning("%s", text)
        elif str(count).strip("0") == "1":
            _log.warning("%s (%d times so far)", text, count)


def _now() -> float:
    return asyncio.get_running_loop().time()
