"""A verifier of each target on a real socket, its plain text, and drafters good and bad."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from outrider.cloud_server.driver import ServiceSettings, Verifier
from outrider.cloud_server.planner import EngineSettings
from outrider.cloud_server.replay import plain
from outrider.cloud_server.targets.base import Target
from outrider.cloud_server.targets.factory import load_target
from outrider.edge_client.answer import Answer
from outrider.edge_client.client import EdgeClient
from outrider.edge_client.policy import Policy
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.request import Request
from outrider.runtime.lm.base import ListedLM, Rows, check_feed
from outrider.runtime.lm.drafter import Drafter
from outrider.runtime.text.tokenizer import Tokenizer, load_tokenizer

MODELS = Path(str(files("outrider.models")))
PROMPT = "And it came to pass in those days, that"
TOKENS = 16


class ScriptLM(ListedLM):
    """A drafter's model that expects ``guess(ids)`` next, and nothing else. For pure logic."""

    def __init__(self, width: int, guess: Callable[[Sequence[int]], int]) -> None:
        super().__init__("script", width, 2048)
        self._guess = guess

    def feed(self, ids: Sequence[int], rows: int = 1) -> Rows:
        check_feed(self, ids, rows, len(self._ids))
        self._ids.extend(ids)
        out = np.zeros((rows, self.row_width), np.float32)
        for i in range(rows):
            end = len(self._ids) - rows + 1 + i
            out[i, self._guess(self._ids[:end]) % self.row_width] = 40.0  # noise cannot beat it
        return out

    def fork(self) -> ScriptLM:
        raise AssertionError("not needed here")


@dataclass
class Served:
    """A running verifier, and the same target again for the plain text."""

    url: str
    verifier: Verifier
    reference: Target
    tokenizer: Tokenizer
    loop: asyncio.AbstractEventLoop

    def prompt(self) -> list[int]:
        return self.tokenizer.encode_prompt(PROMPT)

    def plain(self, sampling: Sampling, tokens: int = TOKENS) -> list[int]:
        return plain(self.reference, self.prompt(), sampling, tokens)

    def answer(
        self, drafter: Drafter | None, policy: Policy, sampling: Sampling, **more: object
    ) -> Answer:
        """One answer over the socket."""
        return asyncio.run(self._answer(drafter, policy, sampling, dict(more)))

    async def _answer(
        self,
        drafter: Drafter | None,
        policy: Policy,
        sampling: Sampling,
        more: dict[str, object],
    ) -> Answer:
        request = Request(
            **{
                "ids": tuple(self.prompt()),
                "max_tokens": TOKENS,
                "sampling": sampling,
                "ignore_eos": True,
                **more,
            }  # type: ignore[arg-type]
        )
        async with EdgeClient(self.url, self.tokenizer, drafter, policy) as edge:
            async for piece in edge.stream(edge.session(), request):
                if isinstance(piece, Answer):
                    return piece
        raise AssertionError("the stream ended without an answer")

    def drafter(self, kind: str, text: Sequence[int], seed: int = 0) -> Drafter:
        """A drafter that knows the right text and uses that as its kind says."""
        size, right = self.tokenizer.size, list(text)
        rng = random.Random(seed)
        noise = [rng.randrange(size) for _ in range(4096)]

        def guess(ids: Sequence[int]) -> int:
            at = len(ids) - len(self.prompt())
            token = right[at] if 0 <= at < len(right) else 0
            if kind == "wrong" or (kind == "wrong once" and at == len(right) // 2):
                return (token + 1) % size
            return noise[len(ids)] if kind == "random" else token

        return Drafter(ScriptLM(size, guess), size)


def _serve(backend: str) -> Iterator[Served]:
    model = MODELS / "target"
    path = str(model / "target-f16.gguf") if backend == "llama" else str(model)
    tokenizer = load_tokenizer(model)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="verifier")
    thread.start()

    def on_loop(make: Callable[[], object]) -> object:
        async def run() -> object:
            made = make()
            return await made if asyncio.iscoroutine(made) else made

        return asyncio.run_coroutine_threadsafe(run(), loop).result(60)

    leaves = 12 if backend == "llama" else 1
    served = load_target(path, backend=backend, threads=1, slots=4, tree_leaves=leaves)
    # A busy machine must not look like a drafter that keeps the verifier waiting.
    patient = EngineSettings(patience_floor=2.0, patience_cap=5.0)
    settings = ServiceSettings(port=0, engine=patient)
    verifier = on_loop(lambda: Verifier(served, tokenizer, settings))
    assert isinstance(verifier, Verifier)
    server = on_loop(verifier.start)
    reference = load_target(path, backend=backend, threads=1, slots=1)
    yield Served(server.url, verifier, reference, tokenizer, loop)  # type: ignore[attr-defined]
    on_loop(lambda: verifier.stop(drain=False))
    reference.close()
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


@pytest.fixture(scope="session", params=["transformers", "llama"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    """The embedded target on each backend."""
    yield from _serve(request.param)
