"""``outrider bench cluster``: what a gateway costs a round, what failures cost, placement.

Everything is processes on loopback and real sockets. The first two parts run the embedded pair as
it is; texts are compared with the plain target's, token by token. So the target is in float32: in
16 bits a near-tie may fall otherwise beside other answers. In the third the embedded target is
*paced* to different pass times, and its replicas stand behind shaped links.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from outrider.benchmarks.cluster_links import BACKEND, placement, shares
from outrider.benchmarks.embedded import DOMAINS, models, prompts
from outrider.cloud_server.cluster.controller import Controller
from outrider.cloud_server.cluster.launcher import ProcessLauncher
from outrider.cloud_server.replay import plain
from outrider.cloud_server.targets.factory import load_target
from outrider.edge_client.answer import Answer, Piece
from outrider.edge_client.client import EdgeClient
from outrider.edge_client.policy import Plan, Steady
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.edge import EdgeMachine
from outrider.protocol.errors import OutriderError
from outrider.protocol.events import AnswerEnded, Committed
from outrider.protocol.request import Request
from outrider.runtime.lm.drafter import Drafter
from outrider.runtime.lm.factory import load_lm
from outrider.runtime.net.client import connect
from outrider.runtime.net.pages import read_page
from outrider.runtime.text.fingerprint import describe
from outrider.runtime.text.tokenizer import Tokenizer, load_tokenizer

Say = Callable[[str], None]
OUTRIDER = (sys.executable, "-m", "outrider.cli.main", "cloud")
MODEL = ("--target-backend", BACKEND)
SEED = 20_258
TOKENS = 96
GUESSES = 4
IN_FLIGHT = 0.2
"""Seconds after a kill in which tokens may still arrive that were sent before it."""


@dataclass(frozen=True, slots=True)
class Task:
    """An answer to ask for, and what the target alone says to it."""

    ids: tuple[int, ...]
    sampling: Sampling
    right: tuple[int, ...]

    def request(self, **more: Any) -> Request:
        return Request(
            ids=self.ids,
            max_tokens=len(self.right),
            sampling=self.sampling,
            ignore_eos=True,
            **more,
        )


async def cluster(say: Say, *, quick: bool) -> dict[str, Any]:
    """All parts; the JSON object of the command."""
    tokenizer = load_tokenizer(models() / "drafter")
    say("texts of the plain target")
    tasks = _tasks(tokenizer, 1 if quick else 2)
    launcher = ProcessLauncher(
        [*OUTRIDER, "serve", "--json", "--with-stdin", *MODEL, "--max-sessions", "4"],
        [*OUTRIDER, "gateway", *MODEL],
        quiet=True,
    )
    controller = Controller(launcher)
    try:
        await controller.start(3, [0, 0])
        await _whole(controller)
        say("a round with and without a gateway")
        rounds = await _overhead(controller, tokenizer, tasks, 3 if quick else 10)
        kills = 3 if quick else 20
        say(f"{kills} replicas and {kills} gateways are killed under load")
        died = await _failures(controller, launcher, tokenizer, tasks, kills=kills, say=say)
    finally:
        await controller.close()
    say("placement over shaped links")
    placed = await placement(tokenizer, tasks, say, quick=quick)
    say("shares where replicas are short of time and band")
    shared = await shares(tokenizer, tasks, say, quick=quick)
    return {
        "target": f"embedded ({BACKEND}, float32)",
        "replicas": 3,
        "gateways": 2,
        "kills_each": kills,
        **rounds,
        **died,
        "placement": placed,
        "shares": shared,
    }


def _tasks(tokenizer: Tokenizer, each: int) -> list[Task]:
    target = load_target(str(models() / "target"), backend=BACKEND, slots=1, threads=1)
    samplings = (Sampling(), Sampling(temperature=1.0, seed=SEED))
    try:
        return [
            Task(ids, sampling, tuple(plain(target, list(ids), sampling, TOKENS)))
            for domain in DOMAINS
            for text in prompts(domain)[:each]
            for ids in [tuple(tokenizer.encode_prompt(text))]
            for sampling in samplings
        ]
    finally:
        target.close()


# --- the gateway's time -------------------------------------------------------------------------


async def _overhead(
    controller: Controller, tokenizer: Tokenizer, tasks: Sequence[Task], repeats: int
) -> dict[str, Any]:
    """The same rounds directly and through a gateway, in turn; medians and their difference.

    Lockstep with guesses that are right, so that nothing but the rounds takes time at the edge. All
    but one replica are of no use here: the gateway and the direct edge must ask the same one.
    """
    gateway = controller.addresses[controller.gateways[0]]
    replica = controller.addresses[controller.replicas[0]]
    await controller.launcher.tell(controller.gateways[0], _only(controller.replicas[0], replica))
    await asyncio.sleep(1.0)
    direct: list[float] = []
    through: list[float] = []
    paired: list[float] = []
    for _ in range(repeats):
        for task in tasks:
            straight = await _rounds(replica, tokenizer, task)
            around = await _rounds(gateway, tokenizer, task)
            paired += [b - a for a, b in zip(straight, around, strict=False)]
            direct += straight
            through += around
    controller.forget(controller.gateways[0])  # it is told of all replicas again
    return {
        "gateway_ms_p50": 1e3 * statistics.median(paired),
        "round_direct_ms_p50": 1e3 * statistics.median(direct),
        "round_gateway_ms_p50": 1e3 * statistics.median(through),
        "rounds": len(paired),
    }


def _only(name: str, url: str) -> Any:
    from outrider.cloud_server.cluster.launcher import Roster

    return Roster({name: url})


async def _rounds(url: str, tokenizer: Tokenizer, task: Task) -> list[float]:
    """Seconds from each frame to its verdict, in one answer; the first, which reads, left out."""
    loop = asyncio.get_running_loop()
    machine = EdgeMachine(describe(tokenizer), "bench", os.urandom)
    took: list[float] = []
    async with await connect(url) as link:
        machine.connect(loop.time())
        session = machine.session()
        machine.open(session, task.request(objective="cost"))
        sent: float | None = None
        over = False
        while not over:
            while (message := machine.next_message(loop.time())) is not None:
                await link.send(message)
            machine.receive(await link.recv(), loop.time())
            for event in machine.events():
                if isinstance(event, Committed):
                    if sent is not None:
                        took.append(loop.time() - sent)
                    done = len(session.ids) - len(task.ids)
                    ahead = task.right[done : done + GUESSES]
                    if ahead:
                        session.guess(ahead, full=True)
                    sent = loop.time()
                over = over or isinstance(event, AnswerEnded)
        if list(session.ids[len(task.ids) :]) != list(task.right):
            raise OutriderError("an answer is not the target's: the figures mean nothing")
    return took[1:]


# --- failures -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Caller:
    """An edge that asks one answer after the other, and when its tokens came."""

    edge: EdgeClient
    tasks: Sequence[Task]
    at: list[float] = field(default_factory=list)
    key: str = ""
    answers: int = 0
    lost: int = 0
    changed: int = 0

    async def ask(self, first: int) -> None:
        """Until cancelled."""
        for i in range(first, sys.maxsize):
            task = self.tasks[i % len(self.tasks)]
            said: list[int] = []
            session = self.edge.session()
            self.key = session.key.hex()
            try:
                async for event in self.edge.stream(session, task.request()):
                    if isinstance(event, Piece) and event.tokens:
                        self.at.append(asyncio.get_running_loop().time())
                        said += event.tokens
                    elif isinstance(event, Answer):
                        self.answers += 1
                        self.changed += said != list(task.right)
            except OutriderError:
                self.lost += 1
                await asyncio.sleep(0.5)
            self.edge.machine.close(session)

    def pause(self, since: float) -> float | None:
        """The longest wait for a token that something at ``since`` can have caused."""
        before = max((t for t in self.at if t <= since), default=since)
        later = [before, *(t for t in self.at if t > since)]
        gaps = [b - max(a, since) for a, b in itertools.pairwise(later) if a <= since + IN_FLIGHT]
        return max(gaps, default=None)


async def _failures(
    controller: Controller,
    launcher: ProcessLauncher,
    tokenizer: Tokenizer,
    tasks: Sequence[Task],
    *,
    kills: int,
    say: Say,
) -> dict[str, Any]:
    dice = random.Random(SEED)
    pauses: dict[str, list[float]] = {"replica": [], "gateway": []}
    async with contextlib.AsyncExitStack() as stack:
        callers = []
        for i in range(4):
            gateway = controller.addresses[controller.gateways[i % len(controller.gateways)]]
            drafter = Drafter(
                load_lm(models() / "drafter", "onnx", threads=1).lm, tokenizer.size, tokenizer.eos
            )
            stack.callback(drafter.close)
            edge = EdgeClient(gateway, tokenizer, drafter if i % 2 else None, Steady(Plan(3, 8)))
            callers.append(Caller(await stack.enter_async_context(edge), tasks))
        asking = [asyncio.create_task(c.ask(i)) for i, c in enumerate(callers)]
        try:
            for i in range(kills):
                for what in pauses:
                    await asyncio.sleep(dice.uniform(0.5, 1.5))
                    pauses[what] += await _kill(what, controller, launcher, callers, dice)
                    await _whole(controller)
                usual = {what: _median(found) for what, found in pauses.items()}
                say(f"{i + 1} of {kills}; seconds to the next token, medians: {usual}")
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
    every = pauses["replica"] + pauses["gateway"]
    return {
        "failover_s_p50": _median(every),
        "failover_replica_s_p50": _median(pauses["replica"]),
        "failover_gateway_s_p50": _median(pauses["gateway"]),
        "failover_s_max": max(every, default=None),
        "failovers": len(every),
        "answers": sum(c.answers for c in callers),
        "answers_lost": sum(c.lost for c in callers),
        "answers_changed": sum(c.changed for c in callers),
    }


async def _kill(
    what: str,
    controller: Controller,
    launcher: ProcessLauncher,
    callers: Sequence[Caller],
    dice: random.Random,
) -> list[float]:
    """Kill one that is at work; the pauses of the edges that it served."""
    served: dict[str, list[Caller]] = {}
    while not served:
        for gateway in controller.gateways:
            url = controller.addresses.get(gateway)
            if url is None:
                continue
            said = await asyncio.to_thread(read_page, url, "/status")
            for place in said["placement"]:
                there = [c for c in callers if c.key == place["session"]]
                name = gateway if what == "gateway" else place["replica"]
                if there and name is not None:
                    served.setdefault(name, []).extend(there)
    name = dice.choice(sorted(served))
    pid = launcher.pid(name)
    if pid is None:
        return []
    now = asyncio.get_running_loop().time()
    os.kill(pid, signal.SIGKILL)
    await asyncio.sleep(3.0)
    found = [caller.pause(now) for caller in served[name]]
    return [pause for pause in found if pause is not None]


async def _whole(controller: Controller) -> None:
    """Everybody is up, and all gateways use all replicas."""
    while True:
        await controller.ready(len(controller.replicas))
        states: list[str] = []
        for gateway in controller.gateways:
            with contextlib.suppress(OutriderError, KeyError):
                said = await asyncio.to_thread(read_page, controller.addresses[gateway], "/status")
                states += [r["state"] for r in said["replicas"].values()]
        if states == ["ready"] * (len(controller.gateways) * len(controller.replicas)):
            return
        await asyncio.sleep(0.1)


def _median(values: Sequence[float]) -> float | None:
    return round(statistics.median(values), 4) if values else None
