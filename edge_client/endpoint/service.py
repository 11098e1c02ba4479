"""The answers behind the endpoint: one client, its sessions, and who is served when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from hashlib import blake2b
from typing import cast

from outrider.edge_client.answer import Ahead, Answer, Piece
from outrider.edge_client.client import EdgeClient
from outrider.edge_client.endpoint.errors import ApiError
from outrider.edge_client.endpoint.metrics import Metrics
from outrider.edge_client.endpoint.sessions import SessionPool
from outrider.edge_client.endpoint.turns import Turns
from outrider.edge_client.endpoint.wishes import Wish
from outrider.protocol.edge_session import EdgeSession, Phase
from outrider.protocol.errors import LinkError, SessionError
from outrider.protocol.messages import WIRE_VERSION

MOST_WAITING = 256
"""Answers that may wait for a place; a request beyond that is refused."""

Happening = Piece | Ahead | Answer


class Service:
    """Answers wishes with one client. ``parallel`` at a time, the others in order of arrival."""

    def __init__(
        self,
        client: EdgeClient,
        turns: Turns,
        metrics: Metrics,
        *,
        parallel: int,
        drafts: bool,
        about: str,
    ) -> None:
        """``turns`` is the client's policy; ``drafts``: there is a drafter; ``about`` it."""
        self.client = client
        self.turns = turns
        self.metrics = metrics
        self.drafts = drafts
        self.about = about
        limit = client.welcome.limits.max_sessions
        self.parallel = min(parallel, limit)
        # A cloud that is full drops idle ones by itself: they are given back when they go on.
        self.pool = SessionPool(client, min(2 * parallel, limit))
        self._places = asyncio.Semaphore(self.parallel)
        self._running = self._waiting = 0
        self._degraded: str | None = None

    @property
    def model(self) -> str:
        """The target's name."""
        return self.client.welcome.model

    @property
    def fingerprint(self) -> str:
        """Of everything that decides which text a seed gives."""
        welcome, tokens = self.client.welcome, self.client.machine.vocabulary.fingerprint()
        told = (WIRE_VERSION, welcome.agent, welcome.model, welcome.n_ctx, welcome.eos, tokens)
        return f"fp_{blake2b(repr(told).encode(), digest_size=6).hexdigest()}"

    @property
    def mode(self) -> str:
        """Whether there are drafts now, and why (not)."""
        if not self.drafts:
            return "plain cloud streaming: drafting is off"
        if self._degraded is not None:
            return f"plain cloud streaming: the drafter failed: {self._degraded}"
        return self.turns.reason

    def link_figures(self) -> dict[str, float | str | None]:
        """Of the link as it is now: milliseconds, bytes a second, and how far is drafted."""
        link = self.client.machine.link
        return {
            "rtt_ms": None if link.srtt is None else link.srtt * 1e3,
            "goodput_up": link.goodput_up,
            "goodput_down": link.goodput_down,
            "frame": float(self.turns.frame),
            "mode": self.mode,
        }

    def status(self) -> dict[str, object]:
        """How things stand, for people."""
        client, stats = self.client, self.client.stats
        return {
            "model": self.model,
            "cloud": client.url,
            "link": client.machine.state.value,
            "policy": self.turns.about if self.drafts else "off",
            **self.link_figures(),
            "running": self._running,
            "waiting": self._waiting,
            "sessions": len(client.machine.sessions),
            "idle_sessions": self.pool.idle,
            "drafted": stats.drafted if stats else 0,
            "notices": list(client.notices),
        }

    async def answer(self, wish: Wish) -> AsyncGenerator[tuple[Happening, EdgeSession], None]:
        """What happens to one answer, with its session.

        Closing the generator early cancels the answer at the cloud and frees its place.

        Raises:
            ApiError: too many wait. OutriderError: refused by the cloud, or the link is lost.
        """
        if self._places.locked() and self._waiting >= MOST_WAITING:
            raise ApiError(
                429,
                f"{self._waiting} requests wait already; try again later",
                kind="rate_limit_error",
                code="too_many_requests",
                retry_after=2.0,
            )
        await self._enter()
        self._running += 1
        self.metrics.running.inc()
        try:
            async with aclosing(self._served(wish)) as events:
                async for event in events:
                    yield event
        finally:
            self._running -= 1
            self.metrics.running.dec()
            self._places.release()

    async def _enter(self) -> None:
        self._waiting += 1
        self.metrics.waiting.inc()
        try:
            await self._places.acquire()
        finally:
            self._waiting -= 1
            self.metrics.waiting.dec()

    async def _served(self, wish: Wish) -> AsyncGenerator[tuple[Happening, EdgeSession], None]:
        session, base = self._session(wish)
        self.turns.begin(session.handle, draft=wish.draft)
        stream = cast(
            "AsyncGenerator[Happening, None]",
            self.client.stream(session, wish.request(base), ahead=wish.trace),
        )
        keep = False
        try:
            async with aclosing(stream) as events:
                async for event in events:
                    if isinstance(event, Answer):
                        keep, self._degraded = True, event.degraded
                        self.metrics.answered(event, self._fallback(wish, event))
                    yield event, session
        except (SessionError, LinkError):
            raise
        except BaseException:
            keep = session.phase is Phase.IDLE  # its client left: what was verified is still good
            self.metrics.cancelled.inc()
            raise
        finally:
            self.turns.end(session.handle)
            chat = None if wish.ids else wish.messages
            self.pool.give(session, chat) if keep else self.pool.close(session)

    def _session(self, wish: Wish) -> tuple[EdgeSession, int]:
        """A session for it, and how many of its ids that holds and keeps."""
        if wish.ids:
            return self.pool.take(wish.ids)
        return self.pool.take_chat(wish.messages or ()), 0

    def _fallback(self, wish: Wish, answer: Answer) -> str | None:
        """Why an answer had no drafts, in a word that can be counted."""
        if answer.drafted:
            return None
        if not self.drafts:
            return "off"
        if not wish.draft:
            return "request"
        return "failed" if answer.degraded else "policy"
