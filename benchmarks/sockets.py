"""Strategies over real sockets: a verifier, a shaping proxy and an edge, each a process of its own.

The embedded pair is *paced*: the target to a stated time a pass, the drafter to a stated time a
token and a stated rate of reading. Exact means equal, id by id, to the target decoding alone, here.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from outrider.benchmarks.embedded import DOMAINS, Cloud, cloud, models, prompts
from outrider.benchmarks.rows import Answer, Setting, row
from outrider.benchmarks.strategies import Machine, Strategy
from outrider.cloud_server.replay import plain
from outrider.cloud_server.targets.factory import load_target
from outrider.edge_client.answer import Answer as WholeAnswer
from outrider.edge_client.answer import Piece
from outrider.edge_client.client import EdgeClient
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.errors import BackendError
from outrider.protocol.request import Request
from outrider.runtime.lm.drafter import Drafter
from outrider.runtime.lm.factory import load_lm
from outrider.runtime.text.tokenizer import Tokenizer, load_tokenizer
from outrider.simulator.paced import PacedDrafter

SEED = 20_251
WARM_UP = 50

PROBES, PROBE = 6, 4
"""Answers, and tokens of each, for the time to first token alone."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One answer to ask for, and what the target alone gives."""

    prompt: tuple[int, ...]
    sampling: Sampling
    expected: tuple[int, ...]


def asked(answers: int, tokens: int) -> list[Asked]:
    """Answers over all domains in turn, greedy and sampled in turn, as the plain target gives them.

    The prompts are the embedded pair's own, from the last one back: the demo uses the first.
    """
    tokenizer = load_tokenizer(models() / "target")
    target = load_target(str(models() / "target"), backend="transformers", threads=1)
    found = []
    try:
        for i in range(answers):
            texts = prompts(DOMAINS[i % len(DOMAINS)])
            ids = tuple(tokenizer.encode_prompt(texts[-1 - i // len(DOMAINS) % len(texts)]))
            sampling = Sampling(temperature=float(i % 2), seed=SEED + i)
            found.append(Asked(ids, sampling, tuple(plain(target, ids, sampling, tokens))))
    finally:
        target.close()
    return found


@contextlib.contextmanager
def proxy(link: str, url: str) -> Iterator[str]:
    """The address of ``url`` behind a link, through a proxy process.

    Raises:
        BackendError: the proxy did not start.
    """
    command = [sys.executable, "-m", "outrider.simulator.proxy", "--profile", link]
    command += ["--to", urlsplit(url).netloc, "--with-stdin"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None  # asked for above
        port = process.stdout.readline().strip()
        if not port:
            _, errors = process.communicate(timeout=10)
            raise BackendError(f"the proxy did not start: {errors.strip()[-2000:]}")
        yield f"ws://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.communicate()


@dataclass(frozen=True, slots=True)
class Pair:
    """Models in their places, and what is asked of them.

    ``cloud(strategy)`` starts a verifier for it; ``same(ask, ids)``: an answer is the target's.
    """

    machine: Machine
    record: str
    paced: bool
    tokenizer: Tokenizer
    drafter: Drafter
    load: Sequence[Asked]
    cloud: Callable[[Strategy], contextlib.AbstractContextManager[Cloud]]
    same: Callable[[Asked, tuple[int, ...]], bool]

    @property
    def prompt(self) -> str:
        """The prompts, in words."""
        lengths = [len(each.prompt) for each in self.load]
        return f"{min(lengths)} to {max(lengths)} ids"


@contextlib.contextmanager
def embedded_pair(machine: Machine, load: Sequence[Asked]) -> Iterator[Pair]:
    """The embedded pair, slowed down to a machine's speeds."""
    tokenizer = load_tokenizer(models() / "drafter")
    drafter = PacedDrafter(
        load_lm(models() / "drafter").lm,
        tokenizer.size,
        tokenizer.eos,
        step=machine.draft_step,
        rate=machine.prefill_rate,
    )

    def start(strategy: Strategy) -> contextlib.AbstractContextManager[Cloud]:
        own = models() / "drafter" if strategy.own_drafter else None
        return cloud(
            machine.target_pass * 1e3,
            lookup=strategy.lookup,
            own=own,
            own_step_ms=machine.cloud_step * 1e3,
        )

    try:
        yield Pair(
            machine,
            "embedded pair, T=0 and T=1 in turn",
            True,
            tokenizer,
            drafter,
            load,
            start,
            lambda ask, ids: ids == ask.expected[: len(ids)],
        )
    finally:
        drafter.close()


async def rows(
    pair: Pair, links: Sequence[str], strategies: Sequence[Strategy], say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """All strategies on all links; the verifiers that they need run all along."""
    found = []
    clouds: dict[tuple[int, bool], Cloud] = {}
    with contextlib.ExitStack() as stack:
        for link in links:
            for strategy in strategies:
                kind = strategy.lookup, strategy.own_drafter
                if kind not in clouds:
                    clouds[kind] = stack.enter_context(pair.cloud(strategy))
                with proxy(link, clouds[kind].url) as url:
                    drafter = pair.drafter if strategy.drafts else None
                    policy = strategy.policy()
                    async with EdgeClient(url, pair.tokenizer, drafter, policy) as edge:
                        answers, probes = await _answers(edge, strategy, pair)
                setting = Setting(
                    "socket", link, pair.machine, strategy, pair.record, pair.prompt, pair.paced
                )
                found.append(row(setting, answers, probes))
                say(f"sockets, {link}, {strategy.name}: {found[-1]['tokens_per_second']:.1f}")
    return found


async def _answers(
    edge: EdgeClient, strategy: Strategy, pair: Pair
) -> tuple[list[Answer], list[Answer]]:
    """The warm-up, then the counted answers and the probes, a session each."""
    load = pair.load
    await _answer(edge, strategy, pair, load[-1], WARM_UP)
    whole = [await _answer(edge, strategy, pair, each, len(each.expected)) for each in load]
    rounds = (PROBES + len(load) - 1) // len(load)
    short = [
        await _answer(edge, strategy, pair, each, PROBE) for _ in range(rounds) for each in load
    ]
    return whole, short


async def _answer(
    edge: EdgeClient, strategy: Strategy, pair: Pair, ask: Asked, tokens: int
) -> Answer:
    request = Request(
        ids=ask.prompt,
        max_tokens=tokens,
        sampling=ask.sampling,
        ignore_eos=True,
        objective=strategy.objective,
    )
    session = edge.session()
    began = time.perf_counter()
    times: list[float] = []
    ids: list[int] = []
    passes = up = down = 0
    async for piece in edge.stream(session, request):
        if isinstance(piece, Piece):
            times += [time.perf_counter()] * len(piece.tokens)
            ids += piece.tokens
        elif isinstance(piece, WholeAnswer):
            passes, up, down = piece.passes or 0, piece.bytes_up, piece.bytes_down
    edge.machine.close(session)
    whole = len(ids) == tokens and pair.same(ask, tuple(ids))
    return Answer(began, tuple(times), passes, up, down, whole)
