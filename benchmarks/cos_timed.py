"""Collaborative decoding on the clock: real sockets and models, paced to class (a).

A verifier, a shaping proxy and an edge in one process, each with its own thread for its model: the
embedded pair, the target slowed down to its pass, the drafter to its step. Plain collaborative
decoding is the same with one row a round trip and no proposals of the cloud. Both ways take the
same prompts, one after the other.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Any

from outrider.benchmarks.cos import MIXTURES, Models, replayed, together_of
from outrider.benchmarks.embedded import models
from outrider.benchmarks.strategies import MACHINES
from outrider.cloud_server.driver import ServiceSettings, Verifier
from outrider.cloud_server.targets.factory import load_target
from outrider.edge_client.adaptive import Adaptive
from outrider.edge_client.answer import Answer, Piece
from outrider.edge_client.client import EdgeClient
from outrider.edge_client.policy import Plan, Policy, Steady
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.request import Request
from outrider.runtime.lm.factory import load_lm
from outrider.runtime.text.tokenizer import load_tokenizer
from outrider.simulator.paced import PacedDrafter, PacedTarget
from outrider.simulator.profiles import profile
from outrider.simulator.proxy import Proxy

WAYS: dict[str, Callable[[], Policy]] = {"plain": lambda: Steady(Plan(1, 1)), "ours": Adaptive}


def timed(found: Models, note: Callable[[str], None], links: tuple[str, ...], tokens: int) -> Any:
    """Rows as of the other places, with ``speedup`` measured."""
    return asyncio.run(_all(found, note, links, tokens))


async def _all(
    found: Models, note: Callable[[str], None], links: tuple[str, ...], tokens: int
) -> list[dict[str, Any]]:
    machine, tokenizer = MACHINES["a"], load_tokenizer(models() / "drafter")
    target = load_target(str(next((models() / "target").glob("*.gguf"))), n_ctx=1024, slots=2)
    paced = PacedTarget(target, machine.target_pass)
    verifier = Verifier(paced, tokenizer, ServiceSettings(port=0))
    server = await verifier.start()
    rows = []
    try:
        for name in links:
            proxy = Proxy(profile(name).link(1), ("127.0.0.1", server.port))
            await proxy.start()
            try:
                for kind, temperature in itertools.product(MIXTURES, (0.0, 1.0)):
                    note(f"on the clock over {name}: {kind}, temperature {temperature:g}")
                    sampling = Sampling(
                        temperature=temperature, seed=11, collaborate=together_of(kind, 2)
                    )
                    rows.append(await _row(found, proxy.port, name, sampling, tokens))
            finally:
                await proxy.close()
    finally:
        await verifier.stop(drain=False)
    return rows


async def _row(
    found: Models, port: int, name: str, sampling: Sampling, tokens: int
) -> dict[str, Any]:
    """One text both ways."""
    assert sampling.collaborate is not None
    speeds, exact = {}, True
    for way, policy in WAYS.items():
        speeds[way], good = await _speed(found, port, policy(), sampling, tokens)
        exact &= good
    return {
        "place": name,
        "kind": sampling.collaborate.kind.value,
        "models": 2,
        "temperature": sampling.temperature,
        "machine": "a, paced",
        "tokens_per_second": speeds["ours"],
        "plain_measured_tokens_per_second": speeds["plain"],
        "speedup": speeds["ours"] / speeds["plain"],
        "exact": exact,
    }


async def _speed(
    found: Models, port: int, policy: Policy, sampling: Sampling, tokens: int
) -> tuple[float, bool]:
    """Tokens a second after the first of each answer, and whether all are the combination's."""
    machine, tokenizer = MACHINES["a"], load_tokenizer(models() / "drafter")
    drafter = PacedDrafter(
        load_lm(models() / "drafter", "llama").lm, tokenizer.size, frozenset(),
        step=machine.draft_step, rate=machine.prefill_rate,
    )  # fmt: skip
    seconds, made, exact = 0.0, 0, True
    async with EdgeClient(f"ws://127.0.0.1:{port}", tokenizer, drafter, policy) as edge:
        for prompt in found.prompts:
            request = Request(
                ids=tuple(prompt), max_tokens=tokens, sampling=sampling, ignore_eos=True,
                objective="latency",
            )  # fmt: skip
            session, first = edge.session(), 0.0
            async for event in edge.stream(session, request):
                if isinstance(event, Piece) and event.tokens and not first:
                    first, began = time.perf_counter(), len(event.tokens)
                if isinstance(event, Answer):
                    seconds += time.perf_counter() - first
                    made += len(event.ids) - began
                    exact &= replayed(found, sampling, event.prompt_ids, event.ids)
            edge.machine.close(session)
    drafter.close()
    return made / seconds, bool(exact)
