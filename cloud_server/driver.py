"""The verifier as a running service: sockets on asyncio, the model on its own thread.

A forward pass must never delay a ping, so the loop only moves bytes and takes engine steps; one
thread owns the target and runs one pass at a time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from outrider.cloud_server.engine import CloudEngine, Forward
from outrider.cloud_server.grammar import Grammars, available
from outrider.cloud_server.own_drafter import OwnDraft, OwnDrafter, check_vocabulary
from outrider.cloud_server.planner import EngineSettings
from outrider.cloud_server.prompts import render
from outrider.cloud_server.rehearsal import rehearse
from outrider.cloud_server.served import Served
from outrider.cloud_server.targets.base import Decided, Target
from outrider.protocol.cloud import CloudConnection
from outrider.protocol.errors import BackendError, LinkError
from outrider.protocol.messages import LEAST_MESSAGE, Limits
from outrider.protocol.objective import Objective
from outrider.protocol.queue import Capacity
from outrider.protocol.table import CloudConfig, SessionTable
from outrider.runtime.lm.drafter import Drafter, Guess
from outrider.runtime.net.keys import KeyFile
from outrider.runtime.net.link import Link
from outrider.runtime.net.server import Server, serve
from outrider.runtime.owner import OwnerThread
from outrider.runtime.text.fingerprint import describe
from outrider.runtime.text.template import takes_tools
from outrider.runtime.text.tokenizer import Tokenizer

AGENT = "outrider-cloud"

_log = logging.getLogger("outrider.cloud")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """Where to listen and what to allow. Sizes in bytes, tokens and counts; times in seconds.

    ``objective`` is the dearest that is granted, ``draft_max`` the most guesses at a time of the
    verifier's own draft model, ``max_queue`` the answers that may wait for a slot. ``rehearse`` is
    how long the target's passes may be timed before the first edge comes; 0: not at all.
    """

    host: str = "127.0.0.1"
    port: int = 8471
    keys: KeyFile | None = None
    tls: ssl.SSLContext | None = None
    max_sessions: int = 64
    max_queue: int = 64
    idle_seconds: float = 600.0
    max_message: int = 4 << 20
    max_tokens: int = 1 << 16
    max_nodes_per_frame: int = 64
    max_nodes_in_flight: int = 256
    detached_seconds: float = 120.0
    drain_seconds: float = 30.0
    objective: Objective = "latency"
    draft_max: int = 16
    rehearse: float = 0.0
    engine: EngineSettings = field(default_factory=EngineSettings)

    @property
    def max_connections(self) -> int:
        """Twice the sessions: some edges are connected and have none."""
        return 2 * self.max_sessions


class Verifier:
    """One target served to many edges. Use as an async context manager, or :meth:`run`."""

    def __init__(
        self,
        target: Target,
        tokenizer: Tokenizer,
        settings: ServiceSettings,
        own: tuple[Drafter, Tokenizer] | None = None,
    ) -> None:
        """``own``: a draft model to use beside the target, and its tokenizer.

        Raises:
            SettingError: it has another tokenizer than the target.
        """
        info = target.info
        if tokenizer.size > info.usable:
            _log.warning(
                "the tokenizer has %d tokens, the model %d: the others cannot occur",
                tokenizer.size,
                info.usable,
            )
        self.target = target
        self.tokenizer = tokenizer
        self.settings = settings
        eos = info.eos | tokenizer.eos
        # What fits the context, chats written out included, and nothing much larger.
        self.max_message = min(settings.max_message, max(LEAST_MESSAGE, 64 * info.n_ctx))
        enforces = available() and eos
        self.grammars = Grammars(tokenizer.entries, eos) if enforces else None
        self.table = SessionTable(
            CloudConfig(
                vocabulary=describe(tokenizer),
                model=info.name,
                n_ctx=info.n_ctx,
                eos=tuple(sorted(eos)),
                limits=Limits(
                    max_message=self.max_message,
                    max_prompt=info.n_ctx - 1,
                    max_tokens=settings.max_tokens,
                    max_nodes_per_frame=settings.max_nodes_per_frame,
                    max_nodes_in_flight=settings.max_nodes_in_flight,
                    max_sessions=settings.max_sessions,
                    detached_seconds=settings.detached_seconds,
                ),
                agent=AGENT,
                render=partial(render, tokenizer),
                trees=info.leaves > 1,
                constrain=self.grammars.check if self.grammars else None,
                tools=takes_tools(tokenizer.template),
                collaborators=info.collaborators,
                objective=settings.objective,
                capacity=Capacity(
                    answers=info.slots,
                    ids=info.slots * info.n_ctx,
                    waiting=settings.max_queue,
                    n_ctx=info.n_ctx,
                ),
                idle_seconds=settings.idle_seconds,
            ),
            quotas=settings.keys.quotas if settings.keys else {},
        )
        self.drafter = own[0] if own else None
        self.engine = CloudEngine(
            self.table,
            info,
            eos,
            tokenizer.token_bytes,
            settings.engine,
            own=self._own(*own) if own and settings.draft_max else None,
            grammars=self.grammars,
        )
        self.passed: Callable[[Forward], None] = lambda work: None  # noqa: ARG005
        self._work: Forward | OwnDraft | None = None
        self._due: asyncio.Handle | None = None
        self._stale = self._mentioned = False
        self._served: set[Served] = set()
        self._thread = OwnerThread("target")
        self._broken: asyncio.Future[None] | None = None
        self._server: Server | None = None

    def _own(self, drafter: Drafter, tokenizer: Tokenizer) -> OwnDrafter:
        """The draft model beside the target, after a look at what it means by its ids."""
        never = check_vocabulary(self.table.config.vocabulary, describe(tokenizer))
        if never:
            named = ", ".join(map(str, sorted(never)[:8]))
            _log.warning("the draft model's special tokens differ, never drafted: %s", named)
        return OwnDrafter(drafter, self.settings.draft_max, never)

    # --- life -------------------------------------------------------------------------------

    async def start(self, server: Server | None = None) -> Server:
        """Listen and work until :meth:`stop`. A ``server`` that listens already is taken over.

        Raises:
            SettingError: the address is in use, or open to the world without key and certificate.
        """
        settings = self.settings
        self._broken = asyncio.get_running_loop().create_future()
        if self.grammars is not None:
            await asyncio.to_thread(self.grammars.prepare)
        if settings.rehearse > 0:
            seconds = settings.rehearse
            self.engine.rehearsed(await self._thread.run(rehearse, self.target, seconds))
        self._server = server or await serve(
            self.handle,
            settings.host,
            settings.port,
            keys=settings.keys,
            context=settings.tls,
            max_connections=settings.max_connections,
            make_room=self.make_room,
            max_frame=self.max_message,
        )
        self._arrived()  # an engine that is broken is told of before the first edge comes
        return self._server

    async def stop(self, *, drain: bool = True) -> None:
        """Finish the answers under way (at most ``drain_seconds``), say goodbye, free the model."""
        if drain:
            await self._drain()
        now = _now()
        for served in self._served:
            served.connection.close("shutdown", "the verifier is shutting down", now)
            served.wake.set()
        if self._server is not None:
            await self._server.close()
        self._rest()
        await asyncio.to_thread(self._thread.close)
        self.target.close()
        if self.drafter is not None:
            self.drafter.close()

    async def _drain(self) -> None:
        """Let answers under way end; new ones are refused meanwhile."""
        self.table.closing = True
        deadline = _now() + self.settings.drain_seconds
        while _now() < deadline and self._under_way():
            await asyncio.sleep(0.02)

    def _under_way(self) -> bool:
        """Answers that were begun, those that wait for their turn included."""
        return any(s.running and s.link is not None for s in self.table.sessions.values())

    @property
    def failed(self) -> BaseException | None:
        """What broke the engine, if anything did: the service cannot go on then."""
        broken = self._broken
        return broken.exception() if broken is not None and broken.done() else None

    async def ended(self) -> None:
        """Return when the engine can't go on, which is when it is broken."""
        if self._broken is not None:
            await asyncio.wait({self._broken})

    # --- the engine -------------------------------------------------------------------------

    def _arrived(self) -> None:
        """Look for work, once for all that arrives in this turn of the loop."""
        if self._work is not None or (self._due and not isinstance(self._due, asyncio.TimerHandle)):
            return
        self._rest()
        if len(self.table.sessions) == 1:
            self._step()  # nobody else's could have come
        else:
            self._due = asyncio.get_running_loop().call_soon(self._step)

    def _rest(self) -> None:
        """No look for work is due."""
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _step(self) -> None:
        """Give the target its next work, on its own thread; or look again when there may be some.

        Callbacks, no task: what leads from a frame to a pass and from that to a verdict keeps
        somebody waiting each time.
        """
        self._due, loop = None, asyncio.get_running_loop()
        try:
            work = self.engine.next(loop.time())
            self._mention()
        except Exception as error:
            self._break(error)
            return
        if isinstance(work, Forward):
            self._work = work
            self._thread.submit(self._forward, work, self._passed)
        elif isinstance(work, OwnDraft):
            self._work, self._stale = work, False
            self._thread.submit(self._draft, work, self._drafted)
        elif work.until is not None:
            self._due = loop.call_at(work.until, self._step)

    def _passed(self, work: Forward, result: list[Decided] | BackendError) -> None:
        """A pass is over. Its verdicts leave before the next one is thought about."""
        self._work = None
        try:
            self.engine.done(work, result, _now())
        except Exception as error:
            self._break(error)
            return
        near = False
        for served in self._served:
            served.post()
            near = near or served.link.near
        if near:
            # The write woke the edge up, on this processor, for the kernel expects a writer to go
            # to sleep: let it go first.
            os.sched_yield()
        self._arrived()
        self.passed(work)

    def _drafted(self, work: OwnDraft, guess: Guess | BackendError) -> None:
        """A guess of our own draft model is there."""
        self._work = None
        try:
            self.engine.drafted(work, guess, _now())
        except Exception as error:
            self._break(error)
            return
        self._arrived()

    def _break(self, error: Exception) -> None:
        """Something that should not be: whoever waits in :meth:`ended` is told."""
        if self._broken is not None and not self._broken.done():
            self._broken.set_exception(error)

    def _mention(self) -> None:
        """Say once that the draft model is too small for some texts."""
        own = self.engine.own
        if own is not None and own.outgrown and not self._mentioned:
            self._mentioned = True
            _log.warning(
                "a text has outgrown the draft model's context of %d ids: such answers go on "
                "without it",
                own.source.n_ctx,
            )

    def _forward(self, work: Forward) -> list[Decided] | BackendError:
        """On the target's thread. A failing backend ends the answers concerned, not the service."""
        try:
            return work.run(self.target)
        except BackendError as error:
            _log.error("the target failed: %s", error)
            return error
        except Exception as error:
            _log.exception("the target failed")
            return BackendError(f"the target failed: {error}")

    def _draft(self, work: OwnDraft) -> Guess | BackendError:
        """On the same thread. A draft model that fails is off; answers go on without it."""
        assert self.drafter is not None
        try:
            if work.read:
                self.drafter.prefill(work.ids, work.read)
                return Guess((), ())
            return self.drafter.draft(
                work.ids,
                work.prompt_len,
                work.sampling,
                work.count,
                never=work.never,
                stop=lambda: self._stale,
            )
        except BackendError as error:
            _log.error("the draft model failed and is off from now on: %s", error)
            return error
        except Exception as error:
            _log.exception("the draft model failed and is off from now on")
            return BackendError(f"the draft model failed: {error}")

    # --- connections ------------------------------------------------------------------------

    async def handle(self, link: Link) -> None:
        """Serve one connection until it is over."""
        served = Served(link, CloudConnection(self.table, link.peer.key_name or "", _now()))
        connection = served.connection

        def take(message: bytes) -> bool:
            connection.receive(message, _now())
            if isinstance(self._work, OwnDraft):
                self._stale = not self.engine.wanted(self._work)
            if connection.has_cold_messages:
                served.wake.set()
            self._arrived()
            return not connection.wants_close

        self._served.add(served)
        writer = asyncio.create_task(served.write())
        try:
            await link.receive(take)
            await writer
        except LinkError as error:
            _log.debug("%s: %s", link.peer, error)
        finally:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
            self._served.discard(served)
            connection.connection_lost(_now())
            self._arrived()

    def make_room(self, key_name: str | None) -> bool:
        """Close the connection that has been idle longest, of that key if one is named."""
        idle = [
            (served.connection.idle_since, served)
            for served in self._served
            if served.connection.idle_since is not None
            and key_name in (None, served.connection.owner)
        ]
        if not idle:
            return False
        _, oldest = min(idle, key=lambda found: found[0])
        oldest.connection.close("idle", "others need the place", _now())
        oldest.wake.set()
        return True


def _now() -> float:
    return asyncio.get_running_loop().time()
