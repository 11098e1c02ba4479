"""The public Python API of the edge: a client, synchronous or not, that streams or not.

    with Outrider("wss://gpu.example:8471", draft_model="qwen2.5-coder") as client:
        for piece in client.stream("def reverse(", max_tokens=64):
            print(piece.text, end="")

What stands here without an underscore, and the classes that it takes and gives, keep their meaning
within a major version: arguments and fields may be added, none is removed or renamed without having
been marked as deprecated for a minor version first. Other modules may change at any time.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
from collections.abc import AsyncGenerator, Awaitable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from importlib.resources import files
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from outrider.edge_client.adaptive import Adaptive
from outrider.edge_client.answer import Answer, Piece
from outrider.edge_client.client import EdgeClient
from outrider.edge_client.endpoint.sessions import SessionPool
from outrider.edge_client.policy import Policy
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.errors import SettingError
from outrider.protocol.request import Request
from outrider.runtime.hub.need import check_memory
from outrider.runtime.hub.resolve import resolve
from outrider.runtime.lm.drafter import Drafter
from outrider.runtime.lm.factory import load_lm
from outrider.runtime.net.courier import Persistence
from outrider.runtime.net.tls import client_context
from outrider.runtime.plugins import plugin
from outrider.runtime.text.tokenizer import Tokenizer, load_tokenizer

Prompt = str | Sequence[Mapping[str, Any]]
"""A text to be continued, or the messages of a chat as in the OpenAI API."""

POLICIES = "outrider.policies"
DRAFTERS = "outrider.drafters"

IDLE = 8
"""Sessions kept open for a prompt that goes on where one of them ended."""

T = TypeVar("T")


class AsyncOutrider:
    """A connected edge: ``async with AsyncOutrider(url, draft_model=...) as client``.

    ``draft_model`` is a path or the name of a model that was pulled, None the embedded drafter;
    without ``draft`` nothing is drafted, and it is only the tokenizer's place. ``drafter`` and
    ``policy`` name what others registered by entry point (groups ``outrider.drafters`` and
    ``outrider.policies``); a policy may also be given as it is. ``key`` is shown to the cloud.
    """

    def __init__(
        self,
        cloud: str = "ws://127.0.0.1:8471",
        *,
        draft_model: str | Path | None = None,
        draft: bool = True,
        drafter: str = "auto",
        policy: Policy | str | None = None,
        key: str | None = None,
        tls_fingerprint: str | None = None,
        tls_ca: Path | None = None,
        reconnect: float = 30.0,
        ctx_size: int = 0,
        threads: int = 1,
    ) -> None:
        self._cloud, self._key, self._reconnect = cloud, key, reconnect
        self._pins = tls_fingerprint, tls_ca
        self._draft, self._drafter_name = draft, drafter
        self._model, self._ctx_size, self._threads = draft_model, ctx_size, threads
        self._policy = plugin(POLICIES, policy)() if isinstance(policy, str) else policy
        self._stack = AsyncExitStack()
        self._client: EdgeClient | None = None
        self._pool: SessionPool | None = None

    async def __aenter__(self) -> Self:
        """Load the drafter and connect.

        Raises:
            SettingError, BackendError: a file, or what was asked for. LinkError, HandshakeError:
            no connection, or the two ends do not fit.
        """
        tokenizer, drafter = await asyncio.to_thread(self._load)
        fingerprint, authority = self._pins
        pinned = fingerprint is not None or authority is not None
        client = EdgeClient(
            self._cloud,
            tokenizer,
            drafter,
            self._policy or Adaptive(),
            key=self._key,
            context=client_context(fingerprint, authority) if pinned else None,
            persistence=Persistence(give_up=self._reconnect),
        )
        if drafter is not None:
            self._stack.callback(drafter.close)
        self._client = await self._stack.enter_async_context(client)
        self._pool = SessionPool(client, IDLE)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    def _load(self) -> tuple[Tokenizer, Drafter | None]:
        embedded = Path(str(files("outrider.models"))) / "drafter"
        pack = embedded if self._model is None else resolve(str(self._model))
        tokenizer = load_tokenizer(pack)
        if not self._draft:
            return tokenizer, None
        if self._drafter_name not in ("auto", "onnx", "llama"):
            made = plugin(DRAFTERS, self._drafter_name)(pack, tokenizer)
            return tokenizer, cast("Drafter", made)
        check_memory(pack, self._ctx_size, backend=self._drafter_name)
        loaded = load_lm(pack, self._drafter_name, n_ctx=self._ctx_size, threads=self._threads)
        return tokenizer, Drafter(loaded.lm, tokenizer.size, tokenizer.eos)

    @property
    def client(self) -> EdgeClient:
        """The client below, for what is not here. It may change at any time.

        Raises:
            SettingError: not connected.
        """
        if self._client is None:
            raise SettingError("not connected: use it in a with block")
        return self._client

    @property
    def model(self) -> str:
        """The target's name."""
        return self.client.welcome.model

    async def ask(self, prompt: Prompt, **settings: Any) -> Answer:
        """The whole answer. Settings and errors are those of :meth:`stream`."""
        async with aclosing(self.stream(prompt, **settings)) as events:
            async for event in events:
                if isinstance(event, Answer):
                    return event
        raise AssertionError("a stream ends with its answer or with an error")

    async def stream(
        self,
        prompt: Prompt,
        *,
        max_tokens: int = 256,
        temperature: float = 0.0,
        seed: int | None = None,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
        objective: str | None = None,
        logprobs: int | None = None,
        schema: Mapping[str, Any] | None = None,
        **sampling: Any,
    ) -> AsyncGenerator[Piece | Answer, None]:
        """The pieces of an answer as they are verified, and last the whole :class:`Answer`.

        Leaving the loop early cancels it. ``logprobs``: tell the target's log-probability of each
        token and of so many of the likeliest ones (at most 20). ``schema``: a JSON Schema that the
        text must be of, enforced by the cloud. ``sampling`` are further fields of
        :class:`Sampling`.

        Raises:
            SettingError: a setting that cannot be honoured. SessionError: the cloud refused it.
            LinkError: the connection was lost; what was yielded before is verified.
        """
        client, pool = self.client, self._pool
        assert pool is not None
        request = _request(
            client.tokenizer,
            prompt,
            max_tokens=max_tokens,
            stops=(stop,) if isinstance(stop, str) else tuple(stop),
            ignore_eos=ignore_eos,
            objective=objective,
            logprobs=logprobs,
            grammar=None if schema is None else json.dumps({"json": schema}),
            sampling=_sampling(temperature, seed, sampling),
        )
        session, base = pool.take(request["ids"])
        asked = Request(**{**request, "base": base, "ids": request["ids"][base:]})
        whole = False
        try:
            stream = cast("AsyncGenerator[Any, None]", client.stream(session, asked))
            async with aclosing(stream) as events:
                async for event in events:
                    whole = isinstance(event, Answer)
                    yield event
        finally:
            pool.give(session) if whole else pool.close(session)


class Outrider:
    """The same without ``async``: ``with Outrider(url, ...) as client``. One thread at a time."""

    def __init__(self, cloud: str = "ws://127.0.0.1:8471", **settings: Any) -> None:
        """The arguments are those of :class:`AsyncOutrider`."""
        self._inner = AsyncOutrider(cloud, **settings)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="outrider", daemon=True)

    def __enter__(self) -> Self:
        """Load the drafter and connect; errors are those of :class:`AsyncOutrider`."""
        self._thread.start()
        try:
            self._run(self._inner.__aenter__())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._run(self._inner.__aexit__(kind, value, trace))
        finally:
            self._end()

    @property
    def model(self) -> str:
        """The target's name."""
        return self._inner.model

    def ask(self, prompt: Prompt, **settings: Any) -> Answer:
        """The whole answer; see :meth:`AsyncOutrider.stream`."""
        return self._run(self._inner.ask(prompt, **settings))

    def stream(self, prompt: Prompt, **settings: Any) -> Iterator[Piece | Answer]:
        """Its pieces, and last the whole; see :meth:`AsyncOutrider.stream`."""
        events = self._inner.stream(prompt, **settings)
        try:
            while (event := self._run(anext(events, None))) is not None:
                yield event
        finally:
            self._run(events.aclose())

    def _run(self, work: Awaitable[T]) -> T:
        return asyncio.run_coroutine_threadsafe(_awaited(work), self._loop).result()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


async def _awaited(work: Awaitable[T]) -> T:
    return await work


def _sampling(temperature: float, seed: int | None, more: Mapping[str, Any]) -> Sampling:
    unknown = more.keys() - set(Sampling.__struct_fields__)
    if unknown:
        known = ", ".join(Sampling.__struct_fields__)
        raise SettingError(f"{', '.join(sorted(unknown))}: no such setting; there are {known}")
    fresh = secrets.randbits(64) if seed is None else seed
    return Sampling(temperature=temperature, seed=fresh, **more)


def _request(tokenizer: Tokenizer, prompt: Prompt, **settings: Any) -> dict[str, Any]:
    if isinstance(prompt, str):
        ids, messages = tokenizer.encode_prompt(prompt), None
    else:
        ids, messages = tokenizer.encode_chat(prompt), tuple(dict(m) for m in prompt)
    if not ids:
        raise SettingError("the prompt is empty")
    chat = {"messages": messages, "templated": messages is not None}
    return {"ids": tuple(ids), **chat, **settings}
