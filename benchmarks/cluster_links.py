"""The third part of ``bench cluster``: policies and shares over replicas of different speed behind
links of different quality. Passes are paced, links are shaped by the proxy; both in real time.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any

from outrider.benchmarks.embedded import models
from outrider.cloud_server.cluster.driver import GatewayService, GatewaySettings
from outrider.cloud_server.cluster.live import LivePlacer
from outrider.cloud_server.cluster.shares import SHARES, LiveShares, ShareName
from outrider.cloud_server.placement.association import DEFAULT
from outrider.edge_client.adaptive import Adaptive
from outrider.edge_client.answer import Answer
from outrider.edge_client.client import EdgeClient
from outrider.edge_client.policy import Fixed, Policy
from outrider.protocol.errors import OutriderError
from outrider.protocol.packing import id_bits
from outrider.runtime.lm.drafter import Drafter
from outrider.runtime.lm.factory import load_lm
from outrider.runtime.net.address import parse
from outrider.simulator.links import Direction, Link
from outrider.simulator.proxy import Proxy

if TYPE_CHECKING:
    from outrider.benchmarks.cluster import Task
    from outrider.runtime.text.tokenizer import Tokenizer

BACKEND = "transformers"
"""What runs the target; its float32 answers do not depend on those beside them."""

REPLICAS = {"near": (0.002, 60.0), "middle": (0.030, 15.0), "far": (0.090, 15.0)}
"""Of each: seconds one way, and milliseconds of a pass."""

POLICIES = ("random", "max-sinr", "max-compute", "least-loaded", "greedy", "tma-moves")
SLOTS = 4

SHARED = ("random", DEFAULT)
"""Placements under which equal and optimised shares are compared."""

EACH_MS, STEP_TOKENS, BAND = 1.0, 10, 600.0
"""There the replicas are short of everything: a token in a pass costs time, a pass takes few, and
the edges of a replica may send so many bytes of guesses a second together."""


async def placement(
    tokenizer: Tokenizer, tasks: Sequence[Task], say: Callable[[str], None], *, quick: bool
) -> dict[str, Any]:
    """Seconds an answer takes under each policy, every replica's compute being shared equally."""
    edges, answers = (4, 2) if quick else (6, 4)
    rows = []
    async with _roster() as roster:
        for policy in POLICIES:
            row = await _policy(policy, roster, tokenizer, tasks, edges=edges, answers=answers)
            say(f"{policy}: {row['answer_s_mean']:.2f} s an answer")
            rows.append(row)
    base = next(row for row in rows if row["policy"] == "random")["answer_s_mean"]
    for row in rows:
        row["reduction_vs_random"] = 1 - row["answer_s_mean"] / base
    return {
        "paced": True,
        "replicas": {n: {"one_way_s": d, "pass_ms": p} for n, (d, p) in REPLICAS.items()},
        "edges": edges,
        "shares": "equal",
        "rows": rows,
    }


async def shares(
    tokenizer: Tokenizer, tasks: Sequence[Task], say: Callable[[str], None], *, quick: bool
) -> dict[str, Any]:
    """Placement alone, shares alone and both, against random placement with equal shares.

    Every other edge does not guess; those that do stream. All combinations take turns.
    """
    edges, answers, turns = (6, 1, 2) if quick else (8, 2, 4)
    took: dict[tuple[str, ShareName], list[float]] = {
        (policy, kind): [] for policy in SHARED for kind in SHARES
    }
    async with _roster("--each-ms", str(EACH_MS), "--step-tokens", str(STEP_TOKENS)) as roster:
        for turn in range(turns):
            for policy, kind in took:
                sharer = LiveShares(kind, id_bits(tokenizer.size) / 8, BAND)
                row = await _policy(
                    policy, roster, tokenizer, tasks[turn:], edges=edges, answers=answers,
                    sharer=sharer, seed=turn,
                )  # fmt: skip
                took[policy, kind] += row["seconds"]
                say(f"{policy}, {kind} shares: {row['answer_s_mean']:.2f} s an answer")
    mean = {what: statistics.fmean(every) for what, every in took.items()}
    base = mean[SHARED[0], "equal"]
    gain = {what: 1 - seconds / base for what, seconds in mean.items()}
    return {
        "paced": True,
        "each_ms": EACH_MS,
        "step_tokens": STEP_TOKENS,
        "draft_bytes_per_second": BAND,
        "edges": edges,
        "rows": [
            {
                "policy": policy,
                "shares": kind,
                "answer_s_mean": mean[policy, kind],
                "answer_s_p95": statistics.quantiles(every, n=20)[-1],
                "answers": len(every),
            }
            for (policy, kind), every in took.items()
        ],
        "reduction_placement": gain[DEFAULT, "equal"],
        "reduction_shares": gain[SHARED[0], "optimised"],
        "reduction_both": gain[DEFAULT, "optimised"],
    }


@contextlib.asynccontextmanager
async def _roster(*more: str) -> AsyncIterator[dict[str, str]]:
    """The replicas, each behind its link; ``more`` goes to them."""
    async with contextlib.AsyncExitStack() as stack:
        roster = {}
        for name, (delay, step) in REPLICAS.items():
            url = await stack.enter_async_context(_paced(step, *more))
            link = Link(name=name, up=Direction(delay=delay), down=Direction(delay=delay))
            proxy = Proxy(link, ("127.0.0.1", parse(url).port))
            await stack.enter_async_context(proxy)
            roster[name] = f"ws://127.0.0.1:{proxy.port}"
        yield roster


@contextlib.asynccontextmanager
async def _paced(step_ms: float, *more: str) -> AsyncIterator[str]:
    """A paced replica in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "outrider.benchmarks.paced_cloud", "--model",
        str(models() / "target"), "--backend", BACKEND, "--step-ms", str(step_ms),
        "--slots", str(SLOTS), "--lookup", "0", *more,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        url = (await process.stdout.readline()).decode().strip()
        if not url:
            raise OutriderError("a paced replica did not start")
        yield url
    finally:
        process.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), 10)
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _policy(
    policy: str,
    roster: dict[str, str],
    tokenizer: Tokenizer,
    tasks: Sequence[Task],
    *,
    edges: int,
    answers: int,
    sharer: LiveShares | None = None,
    seed: int = 1,
) -> dict[str, Any]:
    """So many edges at once, each with so many answers in a row, in lockstep.

    With a ``sharer`` they stream as far as it pays, and every other one does not guess.
    """
    equal = LiveShares("equal", id_bits(tokenizer.size) / 8)
    placer = LivePlacer(policy, seed=seed)
    service = GatewayService(tokenizer, GatewaySettings(port=0), placer, sharer or equal)
    server = await service.start()
    await service.roster(roster)
    try:
        there = service.gateway.replicas.values()
        while not all(replica.ready and replica.way for replica in there):
            await asyncio.sleep(0.05)
        streams: list[Policy | None] = [None if i % 2 else Adaptive() for i in range(edges)]
        plans = [Fixed(4)] * edges if sharer is None else streams
        turns = [[*tasks[i % len(tasks) :], *tasks[: i % len(tasks)]] for i in range(edges)]
        took = await asyncio.gather(
            *(
                _edge(server.url, tokenizer, turn, answers, plan)
                for turn, plan in zip(turns, plans, strict=True)
            )
        )
        moved = service.gateway.moved
    finally:
        await service.stop(drain=False)
    every = [seconds for row in took for seconds in row]
    return {
        "policy": policy,
        "answer_s_mean": statistics.fmean(every),
        "answer_s_max": max(every),
        "answers": len(every),
        "moved": moved,
        "seconds": every,
    }


async def _edge(
    url: str, tokenizer: Tokenizer, tasks: Sequence[Task], answers: int, policy: Policy | None
) -> list[float]:
    """Seconds of each answer; without a policy nothing is guessed."""
    lm = load_lm(models() / "drafter", "onnx", threads=1).lm
    drafter = Drafter(lm, tokenizer.size, tokenizer.eos)
    took: list[float] = []
    try:
        steady = policy or Fixed(0)
        objective = "cost" if isinstance(policy, Fixed) else "balanced"
        async with EdgeClient(url, tokenizer, drafter if policy else None, steady) as edge:
            for task in tasks[:answers]:
                session = edge.session()
                async for event in edge.stream(session, task.request(objective=objective)):
                    if isinstance(event, Answer):
                        if list(event.ids) != list(task.right):
                            raise OutriderError("an answer is not the target's")
                        took.append(event.seconds)
                edge.machine.close(session)
    finally:
        drafter.close()
    return took
