"""Strategies over real sockets: a verifier, a shaping proxy and an edge, each a process of its own.

The embedded pair, *paced*: the target to a stated time a pass, the drafter to a stated time a token
and a stated rate of reading. Exact means equal, id by id, to the target decoding alone, here.
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

from outrider.benchmarks.embedded import DOMAINS, cloud, models, prompts
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
from outrider.runtime.lm.factory import load_lm
from outrider.runtime.text.tokenizer import load_tokenizer
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
    command += ["--to", urlsplit(url).netloc]
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


async def rows(
    machine: Machine,
    links: Sequence[str],
    strategies: Sequence[Strategy],
    load: Sequence[Asked],
    say: Callable[[str], None],
) -> list[dict[str, Any]]:
    """All strategies on all links; verifiers with and without their own look-up run all along."""
    tokenizer = load_tokenizer(models() / "drafter")
    lm = load_lm(models() / "drafter").lm
    drafter = PacedDrafter(
        lm,
        tokenizer.size,
        tokenizer.eos,
        step=machine.draft_step,
        rate=machine.prefill_rate,
    )
    found = []
    step = machine.target_pass * 1e3
    record = "embedded pair, T=0 and T=1 in turn"
    lengths = [len(each.prompt) for each in load]
    prompt = f"{min(lengths)} to {max(lengths)} ids"
    lookups = sorted({strategy.lookup for strategy in strategies})
    try:
        with contextlib.ExitStack() as stack:
            clouds = {n: stack.enter_context(cloud(step, lookup=n)) for n in lookups}
            for link in links:
                for strategy in strategies:
                    with proxy(link, clouds[strategy.lookup].url) as url:
                        chosen = drafter if strategy.drafts else None
                        async with EdgeClient(url, tokenizer, chosen, strategy.policy()) as edge:
                            answers, probes = await _answers(edge, strategy, load)
                    setting = Setting("socket", link, machine, strategy, record, prompt)
                    found.append(row(setting, answers, probes))
                    say(f"sockets, {link}, {strategy.name}: {found[-1]['tokens_per_second']:.1f}")
    finally:
        drafter.close()
    return found


async def _answers(
    edge: EdgeClient, strategy: Strategy, load: Sequence[Asked]
) -> tuple[list[Answer], list[Answer]]:
    """The warm-up, then the counted answers and the probes, a session each."""
    await _answer(edge, strategy, load[-1], WARM_UP)
    whole = [await _answer(edge, strategy, each, len(each.expected)) for each in load]
    rounds = (PROBES + len(load) - 1) // len(load)
    short = [await _answer(edge, strategy, each, PROBE) for _ in range(rounds) for each in load]
    return whole, short


async def _answer(edge: EdgeClient, strategy: Strategy, ask: Asked, tokens: int) -> Answer:
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
    return Answer(began, tuple(times), passes, up, down, tuple(ids) == ask.expected[:tokens])
