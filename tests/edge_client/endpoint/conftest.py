"""The endpoint on a real socket, behind it a real client and a verifier, all on one other thread.

The embedded pair on llama.cpp where the text matters; where its course does, a target that says
what a test wrote down, slowed down to a stated pace.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import uvicorn

from outrider.cloud_server.driver import ServiceSettings, Verifier
from outrider.cloud_server.targets.base import Target
from outrider.cloud_server.targets.factory import load_target
from outrider.cloud_server.targets.scripted import ScriptedTarget
from outrider.edge_client.adaptive import Adaptive
from outrider.edge_client.client import EdgeClient
from outrider.edge_client.endpoint.app import Endpoint, build
from outrider.edge_client.endpoint.service import Service
from outrider.edge_client.endpoint.turns import Turns
from outrider.edge_client.policy import Plan, Policy, Steady
from outrider.runtime.lm.base import ListedLM, Rows, check_feed
from outrider.runtime.lm.drafter import Drafter
from outrider.runtime.lm.factory import load_lm
from outrider.runtime.net.courier import Persistence
from outrider.runtime.text.tokenizer import Tokenizer, load_tokenizer
from outrider.simulator.paced import PacedTarget

MODELS = Path(str(files("outrider.models")))
PROMPT = "And it came to pass"
KEY = "a-key-for-apps-0123456789"


class Written(ScriptedTarget):
    """A target that goes on with ``text`` wherever a prompt of ``prompt`` ids ends. No model."""

    def __init__(self, text: Sequence[int], prompt: int, size: int, **more: Any) -> None:
        super().__init__(vocabulary=size, **more)
        self.text, self.prompt = list(text), prompt

    def row(self, ids: Sequence[int]) -> np.ndarray:
        row = np.zeros(self.info.usable, np.float32)
        at = len(ids) - self.prompt
        row[self.text[at % len(self.text)] if at >= 0 else 0] = 30.0
        return row


class Knowing(ListedLM):
    """A drafter's model that expects what a written target says."""

    def __init__(self, target: ScriptedTarget) -> None:
        super().__init__("knowing", target.info.usable, target.info.n_ctx)
        self._target = target

    def feed(self, ids: Sequence[int], rows: int = 1) -> Rows:
        check_feed(self, ids, rows, len(self._ids))
        self._ids.extend(ids)
        end = len(self._ids)
        found = [self._target.row(self._ids[:i]) for i in range(end - rows + 1, end + 1)]
        return np.array(found, np.float32).reshape(rows, self.row_width)

    def fork(self) -> Knowing:
        raise AssertionError("not needed here")


@dataclass
class Running:
    """A running endpoint, and what runs behind it. Closed by the fixture that made it."""

    port: int
    service: Service
    verifier: Verifier
    endpoint: Endpoint
    tokenizer: Tokenizer
    loop: asyncio.AbstractEventLoop
    key: str | None = None
    opened: list[openai.OpenAI] = field(default_factory=list)

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def client(self, **more: Any) -> openai.OpenAI:
        """The client that apps use; no second attempts that would hide a failure."""
        made = openai.OpenAI(base_url=self.base, api_key=self.key or "none", max_retries=0, **more)
        self.opened.append(made)
        return made

    def call(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, dict[str, str], Any]:
        """(status, headers, what came) of one request."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        try:
            link.request(method, path, data, {k.replace("_", "-"): v for k, v in headers.items()})
            response = link.getresponse()
            came = response.read()
            kind = response.headers.get("content-type", "")
            found = json.loads(came) if kind.startswith("application/json") else came.decode()
            return response.status, {k.lower(): v for k, v in response.headers.items()}, found
        finally:
            link.close()

    def chat(self, text: str = PROMPT, **more: Any) -> tuple[int, Any]:
        """(status, what came) of a chat of one message."""
        asked = {"messages": [{"role": "user", "content": text}], "temperature": 0} | more
        status, _, came = self.call("POST", "/v1/chat/completions", asked)
        return status, came

    def events(self, **body: Any) -> list[Any]:
        """What a stream of ``/v1/completions`` gave: objects, and DONE as text."""
        _, _, came = self.call("POST", "/v1/completions", {"stream": True, **body})
        lines = [line.removeprefix("data: ") for line in came.split("\n\n") if line]
        return [line if line == "[DONE]" else json.loads(line) for line in lines]

    def on_loop(self, function: Callable[[], Any]) -> Any:
        """Called where everything else runs."""

        async def run() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(30)


@asynccontextmanager
async def _serving(
    target: Target,
    tokenizer: Tokenizer,
    drafter: Drafter | None,
    policy: Policy,
    *,
    keys: Any,
    sessions: int,
    parallel: int,
    url: str | None,
    edges: Tokenizer,
    **settings: Any,
) -> AsyncIterator[Running]:
    async with AsyncExitStack() as stack:
        verifier = Verifier(
            target, tokenizer, ServiceSettings(port=0, max_sessions=sessions, drain_seconds=0.1)
        )
        server = await verifier.start()
        stack.push_async_callback(verifier.stop, drain=False)
        endpoint = Endpoint(keys=keys, **settings)
        turns = Turns(policy, endpoint.metrics.length.observe)
        client = await stack.enter_async_context(
            EdgeClient(
                url or server.url,
                edges,
                drafter,
                turns,
                persistence=Persistence(first=0.02, longest=0.1, give_up=8.0),
            )
        )
        endpoint.service = service = Service(
            client,
            turns,
            endpoint.metrics,
            parallel=parallel,
            drafts=drafter is not None,
            about="under test",
        )
        listener = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(build(endpoint), log_config=None, lifespan="off", ws="none")
        http_server = uvicorn.Server(config)
        http_server.capture_signals = _nothing  # type: ignore[method-assign]
        task = asyncio.create_task(http_server.serve([listener]))
        while not http_server.started:
            await asyncio.sleep(0.005)
        yield Running(
            listener.getsockname()[1],
            service,
            verifier,
            endpoint,
            tokenizer,
            asyncio.get_running_loop(),
        )
        http_server.should_exit = http_server.force_exit = True
        await task


class _nothing:  # noqa: N801 - stands for a method
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture(scope="session")
def serve() -> Iterator[Callable[..., Running]]:
    """``serve(target, drafter=..., ...)`` runs an endpoint until the tests are over."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="endpoints")
    thread.start()
    stack = AsyncExitStack()
    clients: list[Running] = []

    def make(
        target: Target,
        tokenizer: Tokenizer,
        drafter: Drafter | None = None,
        *,
        policy: Policy | None = None,
        keys: Any = None,
        sessions: int = 32,
        parallel: int = 8,
        url: str | None = None,
        edges: Tokenizer | None = None,
        **settings: Any,
    ) -> Running:
        entering = stack.enter_async_context(
            _serving(
                target,
                tokenizer,
                drafter,
                policy or Steady(Plan(2, 6)),
                keys=keys,
                sessions=sessions,
                parallel=parallel,
                url=url,
                edges=edges or tokenizer,
                **settings,
            )
        )
        running: Running = asyncio.run_coroutine_threadsafe(entering, loop).result(60)
        clients.append(running)
        return running

    yield make
    for running in clients:
        for client in running.opened:
            client.close()
    asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return load_tokenizer(MODELS / "drafter")


@pytest.fixture(scope="session")
def embedded(serve, tokenizer: Tokenizer) -> Running:
    """The embedded pair."""
    pytest.importorskip("llama_cpp")
    target = load_target(
        str(MODELS / "target" / "target-f16.gguf"), backend="llama", threads=1, slots=4
    )
    lm = load_lm(MODELS / "drafter", "llama", threads=1).lm
    drafter = Drafter(lm, tokenizer.size, tokenizer.eos)
    return serve(target, tokenizer, drafter, policy=Adaptive())


@pytest.fixture(scope="session")
def reference() -> Iterator[Target]:
    """The embedded target again, to be asked alone."""
    pytest.importorskip("llama_cpp")
    path = str(MODELS / "target" / "target-f16.gguf")
    target = load_target(path, backend="llama", threads=1, slots=1)
    yield target
    target.close()


@pytest.fixture(scope="session")
def written(serve, tokenizer: Tokenizer):
    """``written(text, step=...)``: an endpoint whose target says this, over and over."""

    def make(text: str | Sequence[int], *, step: float = 0.0, **more: Any) -> Running:
        words = more.pop("tokenizer", tokenizer)
        edges = more.pop("edges", words)
        ids = words.encode(text) if isinstance(text, str) else text
        prompt = more.pop("prompt", None) or len(words.encode_prompt(PROMPT))
        fixed = {"n_ctx": more.pop("n_ctx", 4096), "slots": more.pop("slots", 8)}
        fixed["eos"] = more.pop("eos", frozenset())
        target = Written(ids, prompt, tokenizer.size, **fixed)
        drafter = Drafter(Knowing(Written(ids, prompt, tokenizer.size)), tokenizer.size)
        return serve(PacedTarget(target, step), words, drafter, edges=edges, **more)

    return make
