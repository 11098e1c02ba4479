"""A verifier whose text means nothing behind a proxy that makes trouble: sockets, no model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from outrider.cloud_server.driver import ServiceSettings, Verifier
from outrider.cloud_server.planner import EngineSettings
from outrider.cloud_server.replay import plain
from outrider.cloud_server.targets.base import Target
from outrider.cloud_server.targets.scripted import ScriptedTarget
from outrider.cloud_server.targets.several import SeveralTargets
from outrider.edge_client.answer import Ahead, Answer, Piece
from outrider.edge_client.client import EdgeClient
from outrider.edge_client.policy import Plan, Steady
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.edge_session import EdgeSession
from outrider.protocol.request import Request
from outrider.runtime.lm.base import ListedLM, Rows, check_feed
from outrider.runtime.lm.drafter import Drafter
from outrider.runtime.net.courier import Persistence
from outrider.runtime.text.tokenizer import Tokenizer, load_tokenizer
from outrider.simulator.links import Direction, Link
from outrider.simulator.paced import PacedTarget
from outrider.simulator.proxy import Proxy

MODELS = Path(str(files("outrider.models")))
PROMPT = tuple(range(300, 312))
TOKENS = 60
PASS = 0.004
NEAR = Link(name="near", up=Direction(), down=Direction())
SILENCE = 30.0
"""Seconds without a word after which a scene has failed. However slow the machine, a text that
grows goes on."""

PATIENT = Persistence(first=0.02, longest=0.1, give_up=8.0, silence=0.5)


_guard: ContextVar[asyncio.Timeout] = ContextVar("the scene's")


class EchoLM(ListedLM):
    """A drafter's model that expects what the target would say, except every ``wrong``-th time."""

    def __init__(self, target: ScriptedTarget, wrong: int = 0) -> None:
        super().__init__("echo", target.info.usable, target.info.n_ctx)
        self._target, self._wrong = target, wrong

    def feed(self, ids: Sequence[int], rows: int = 1) -> Rows:
        check_feed(self, ids, rows, len(self._ids))
        self._ids.extend(ids)
        end = len(self._ids)
        found = [self._row(self._ids[:i]) for i in range(end - rows + 1, end + 1)]
        return np.array(found, np.float32).reshape(rows, self.row_width)

    def _row(self, ids: Sequence[int]) -> np.ndarray:
        row = self._target.row(ids)
        return np.roll(row, 1) if self._wrong and len(ids) % self._wrong == 0 else row

    def fork(self) -> EchoLM:
        raise AssertionError("not needed here")


@dataclass
class Heard:
    """What a stream gave, in order."""

    events: list[Piece | Ahead] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    answer: Answer | None = None

    @property
    def whole(self) -> Answer:
        assert self.answer is not None
        return self.answer


Trouble = Callable[[], Awaitable[None] | None]


@dataclass
class Scene:
    """A verifier, the proxy in front of it, and edges that connect through that."""

    tokenizer: Tokenizer
    verifier: Verifier
    port: int
    proxy: Proxy

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.proxy.port}"

    def edge(self, wrong: int | None = 4, persistence: Persistence = PATIENT, **more) -> EdgeClient:
        """An edge; ``wrong`` as of :class:`EchoLM`, None for no drafter, or ``drafter`` itself."""
        drafter = more.pop("drafter", None)
        if wrong is not None and drafter is None:
            drafter = Drafter(EchoLM(script(self.tokenizer), wrong), self.tokenizer.size)
        policy = more.pop("policy", None) or Steady(Plan(2, 6))
        url = more.pop("url", None) or self.url
        return EdgeClient(url, self.tokenizer, drafter, policy, persistence=persistence, **more)

    async def away(self) -> None:
        """The link goes and does not come back until :meth:`back`."""
        if self.proxy._server.sockets:
            self._kept = self.proxy.port
        await self.proxy.close()

    async def back(self, link: Link = NEAR) -> None:
        self.proxy = Proxy(link, ("127.0.0.1", self.port), port=self._kept)
        await self.proxy.start()

    def plain(self, sampling: Sampling, tokens: int = TOKENS) -> list[int]:
        """What the target alone says."""
        return plain(script(self.tokenizer), list(PROMPT), sampling, tokens)


def script(tokenizer: Tokenizer) -> ScriptedTarget:
    """Always the same one."""
    return ScriptedTarget(vocabulary=tokenizer.size, seed=5, order=2, peak=4.0)


def request(sampling: Sampling, tokens: int = TOKENS, **more) -> Request:
    """The answer that all of these tests ask for."""
    return Request(
        **{"ids": PROMPT, "max_tokens": tokens, "sampling": sampling, "ignore_eos": True, **more}
    )


async def listen(
    edge: EdgeClient,
    session: EdgeSession,
    asked: Request,
    trouble: Trouble | None = None,
    after: int = 20,
) -> Heard:
    """Take an answer; once ``after`` tokens are verified, make trouble."""
    heard = Heard()
    async for event in edge.stream(session, asked):
        _guard.get().reschedule(asyncio.get_running_loop().time() + SILENCE)
        if isinstance(event, Answer):
            heard.answer = event
            continue
        heard.events.append(event)
        if isinstance(event, Piece):
            heard.tokens.extend(event.tokens)
        if trouble is not None and len(heard.tokens) >= after:
            done, trouble = trouble(), None
            if done is not None:
                await done
    return heard


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return load_tokenizer(MODELS / "drafter")


@pytest.fixture
def scene(tokenizer: Tokenizer):
    """``async with scene() as world``."""

    @asynccontextmanager
    async def make(
        link: Link = NEAR,
        step: float = PASS,
        others: dict[str, Target] | None = None,
        engine: EngineSettings | None = None,
    ) -> AsyncIterator[Scene]:
        target = PacedTarget(script(tokenizer), step)
        if others:
            target = SeveralTargets(target, others)
        service = ServiceSettings(port=0, drain_seconds=0.1, engine=engine or EngineSettings())
        verifier = Verifier(target, tokenizer, service)
        server = await verifier.start()
        world = Scene(tokenizer, verifier, server.port, Proxy(link, ("127.0.0.1", server.port)))
        await world.proxy.start()
        try:
            async with asyncio.timeout(SILENCE) as guard:
                _guard.set(guard)
                yield world
        finally:
            await world.proxy.close()
            await verifier.stop(drain=False)

    return make


@pytest.fixture(name="script")
def script_of():
    """:func:`script`."""
    return script


@pytest.fixture
def echo():
    """:class:`EchoLM`."""
    return EchoLM


@pytest.fixture
def take():
    """:func:`listen`."""
    return listen


@pytest.fixture
def ask():
    """:func:`request`."""
    return request
