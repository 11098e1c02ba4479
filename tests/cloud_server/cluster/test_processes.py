"""Gateways and replicas as processes, killed in mid answer: the text stays the target's own.

The embedded pair is real, and so are the sockets and the signals.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import pytest

from outrider.cloud_server.cluster.controller import Controller
from outrider.cloud_server.cluster.launcher import ProcessLauncher
from outrider.cloud_server.replay import plain
from outrider.cloud_server.targets.factory import load_target
from outrider.edge_client.answer import Answer, Piece
from outrider.edge_client.client import EdgeClient
from outrider.edge_client.policy import Plan, Steady
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.errors import SettingError
from outrider.protocol.request import Request
from outrider.runtime.lm.drafter import Drafter
from outrider.runtime.lm.factory import load_lm
from outrider.runtime.net.pages import read_page
from outrider.runtime.text.tokenizer import load_tokenizer

pytestmark = pytest.mark.llama

MODELS = Path(str(files("outrider.models")))
GREEDY, WARM = Sampling(), Sampling(temperature=1.0, seed=11)
PROMPT = tuple(range(300, 330))
TOKENS, LATER = 300, 40
MODEL = ("--target-backend", "llama")
OUTRIDER = (sys.executable, "-m", "outrider.cli.main", "cloud")

Trouble = Callable[[str], None]


@dataclass
class Running:
    """A cluster of processes, and the loop that watches them while a test runs."""

    controller: Controller
    launcher: ProcessLauncher
    runner: asyncio.Runner
    answers: dict[bool, list[int]]

    def url(self, gateway: str) -> str:
        return self.controller.addresses[gateway]

    def kill(self, name: str) -> None:
        pid = self.launcher.pid(name)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    async def status(self, gateway: str) -> dict:
        return await asyncio.to_thread(read_page, self.url(gateway), "/status")

    async def whole(self) -> None:
        """Wait until everybody is up again, and all gateways know of all replicas."""
        async with asyncio.timeout(120):
            while True:
                await self.controller.ready(len(self.controller.replicas))
                said = [await self.status(g) for g in self.controller.gateways]
                if all(r["state"] == "ready" for s in said for r in s["replicas"].values()) and all(
                    len(s["replicas"]) == len(self.controller.replicas) for s in said
                ):
                    return
                await asyncio.sleep(0.05)

    async def ask(self, gateway: str, sampling: Sampling, trouble: Trouble | None = None) -> Answer:
        """One answer through a gateway; once some of it is there, trouble."""
        request = Request(ids=PROMPT, max_tokens=TOKENS, sampling=sampling, ignore_eos=True)
        answer = await self.answer(gateway, request, trouble)
        assert list(answer.ids) == self.answers[sampling is WARM]
        return answer

    async def answer(
        self, gateway: str, request: Request, trouble: Trouble | None = None
    ) -> Answer:
        """The same for any request; its pieces are the answer."""
        tokenizer = load_tokenizer(MODELS / "drafter")
        drafter = Drafter(load_lm(MODELS / "drafter", "onnx", threads=1).lm, tokenizer.size)
        said: list[int] = []
        async with EdgeClient(self.url(gateway), tokenizer, drafter, Steady(Plan(3, 8))) as edge:
            async for event in edge.stream(edge.session(), request):
                if isinstance(event, Piece):
                    said.extend(event.tokens)
                    if trouble is not None and len(said) >= LATER:
                        placed = (await self.status(gateway))["placement"]
                        assert placed, "the answer was over before there was trouble"
                        trouble(placed[0]["replica"])
                        trouble = None
                elif isinstance(event, Answer):
                    assert list(event.ids) == said
                    assert trouble is None, "the answer was over before there was trouble"
                    return event
        raise AssertionError("no answer")


def by_processes() -> ProcessLauncher:
    return ProcessLauncher(
        [*OUTRIDER, "serve", "--json", "--with-stdin", *MODEL, "--max-sessions", "4"],
        [*OUTRIDER, "gateway", *MODEL],
        quiet=True,
    )


def by_ray():
    from outrider.cli.cluster_plan import Plan as Settings
    from outrider.cloud_server.cluster.ray_launcher import RayLauncher, connect_ray

    connect_ray()
    plan = Settings(
        model=None,
        backend="llama",
        placement="tma-moves",
        host="127.0.0.1",
        api_key_file=None,
        ssl_certfile=None,
        ssl_keyfile=None,
        slots=4,
    )
    return RayLauncher(plan.replica_member, plan.gateway_member)


WITHOUT_RAY = importlib.util.find_spec("ray") is None
WITH_RAY = [pytest.mark.ray, pytest.mark.skipif(WITHOUT_RAY, reason="Ray is not installed")]


@pytest.fixture(
    scope="module", params=["processes", pytest.param("ray", marks=WITH_RAY)], ids=lambda p: p
)
def running(request):
    place = next((MODELS / "target").glob("*.gguf"))
    target = load_target(str(place), backend="llama", slots=1, threads=1)
    answers = {
        warm: plain(target, list(PROMPT), WARM if warm else GREEDY, TOKENS)
        for warm in (False, True)
    }
    target.close()
    with asyncio.Runner() as runner:
        launcher = by_ray() if request.param == "ray" else by_processes()
        controller = Controller(launcher)
        cluster = Running(controller, launcher, runner, answers)
        runner.run(controller.start(2, [0, 0]))
        try:
            runner.run(cluster.whole())
            yield cluster
        finally:
            runner.run(controller.close())


BOTH = pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "warm"])


@BOTH
def test_a_replica_is_killed(running: Running, sampling: Sampling) -> None:
    """Its answer goes on at the other one, and it is started again."""

    async def main() -> None:
        killed: list[str] = []

        def trouble(replica: str) -> None:
            killed.append(replica)
            running.kill(replica)

        before = {name: running.launcher.pid(name) for name in running.controller.replicas}
        answer = await running.ask("gateway-0", sampling, trouble)
        assert answer.reconnects == 0  # the edge's own link was whole all the time
        await running.whole()
        assert running.launcher.pid(killed[0]) not in (None, before[killed[0]])
        assert (await running.status("gateway-0"))["replicas_lost"] >= 1

    running.runner.run(main())


@BOTH
def test_a_gateway_is_killed(running: Running, sampling: Sampling) -> None:
    """Its edge goes on at the other one, whose address it was told before."""

    async def main() -> None:
        answer = await running.ask("gateway-0", sampling, lambda _: running.kill("gateway-0"))
        assert answer.reconnects == 1
        await running.whole()

    running.runner.run(main())


FORM = {
    "type": "object",
    "properties": {
        "words": {
            "type": "array",
            "items": {"type": "string", "maxLength": 9},
            "minItems": 8,
            "maxItems": 9,
        }
    },
    "required": ["words"],
    "additionalProperties": False,
}


def test_a_form_holds_when_a_replica_is_killed(running: Running) -> None:
    """The other one enforces it from the text alone, and the text is what it would have been."""
    pytest.importorskip("llguidance")
    request = Request(
        ids=PROMPT, max_tokens=1500, sampling=WARM, grammar=json.dumps({"json": FORM})
    )

    async def main() -> None:
        quiet = await running.answer("gateway-1", request)
        answer = await running.answer("gateway-0", request, running.kill)
        assert answer.text == quiet.text
        assert answer.reason == "stop"
        assert all(isinstance(word, str) for word in json.loads(answer.text)["words"])
        await running.whole()

    running.runner.run(main())


def test_replicas_come_and_go(running: Running) -> None:
    """One is added while it serves; the one with the answer is drained."""

    async def main() -> None:
        controller = running.controller
        await controller.add()
        await running.whole()
        tasks: list[asyncio.Task[None]] = []

        def trouble(replica: str) -> None:
            tasks.append(asyncio.create_task(controller.drain(replica)))

        await running.ask("gateway-1", WARM, trouble)
        await asyncio.gather(*tasks)
        await running.whole()
        assert len(controller.replicas) == 2
        with pytest.raises(SettingError, match="no replica 'nobody'"):
            await controller.drain("nobody")
        with pytest.raises(SettingError, match="at least one"):
            await controller.scale(0)

    running.runner.run(main())
