"""Links that die in every way, over real sockets: the answer goes on at the exact token."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path

import pytest

from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.errors import LinkError, SessionError
from outrider.runtime.net import server
from outrider.runtime.net.courier import Persistence
from outrider.runtime.net.link import Link as NetLink
from outrider.simulator.links import Direction, Link

MODELS = Path(str(files("outrider.models")))
GREEDY, WARM = Sampling(), Sampling(temperature=1.0, seed=11)
BOTH = pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "warm"])
QUICK = Persistence(first=0.02, longest=0.1, give_up=0.6, silence=0.3)


@BOTH
@pytest.mark.parametrize("wrong", [None, 4], ids=["plain", "drafted"])
def test_a_dropped_link_is_made_again(scene, take, ask, sampling, wrong) -> None:
    async def main() -> None:
        async with scene() as world, world.edge(wrong) as edge:
            heard = await take(edge, edge.session(), ask(sampling), world.proxy.drop)
            assert heard.tokens == world.plain(sampling)
            assert list(heard.whole.ids) == heard.tokens
            assert (heard.whole.reconnects, edge.courier.reconnects) == (1, 1)
            assert any("lost" in notice for notice in edge.notices)

    asyncio.run(main())


def test_again_and_again(scene, take, ask) -> None:
    async def main() -> None:
        async with scene() as world, world.edge() as edge:

            async def trouble() -> None:
                asyncio.get_running_loop().create_task(drops())

            async def drops() -> None:
                for _ in range(4):
                    world.proxy.drop()
                    await asyncio.sleep(0.15)

            heard = await take(edge, edge.session(), ask(WARM, 150), trouble, after=3)
            assert heard.tokens == world.plain(WARM, 150)
            assert heard.whole.reconnects >= 2

    asyncio.run(main())


def test_a_short_stall_is_no_loss(scene, take, ask) -> None:
    async def main() -> None:
        async with scene() as world, world.edge() as edge:
            heard = await take(edge, edge.session(), ask(GREEDY), lambda: world.proxy.stall(0.3))
            assert heard.tokens == world.plain(GREEDY)
            assert heard.whole.reconnects == 0

    asyncio.run(main())


@BOTH
def test_a_link_that_dies_without_a_word_is_noticed_in_time(scene, take, ask, sampling) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with scene() as world, world.edge() as edge:
            times = []
            edge.courier._interrupted = lambda error: times.append((loop.time(), str(error)))

            def trouble() -> None:
                times.append((loop.time(), ""))
                world.proxy.half_open()

            heard = await take(edge, edge.session(), ask(sampling), trouble)
            assert heard.tokens == world.plain(sampling)
            assert heard.whole.reconnects == 1
            (began, _), (noticed, why) = times
            # Twice the silence, and the machine's own delays.
            assert noticed - began < 2 * 0.5 + 0.5
            assert "no longer answers" in why

    asyncio.run(main())


def test_a_cloud_that_answers_pings_and_says_nothing_is_left(scene, take, ask) -> None:
    impatient = Persistence(first=0.02, longest=0.1, give_up=8.0, silence=0.1, mute=0.3)

    async def main() -> None:
        async with scene() as world, world.edge(persistence=impatient) as edge:
            lost = []
            edge.courier._interrupted = lambda error: lost.append(str(error))

            def trouble() -> None:
                """The target is stuck for a while, the cloud's loop is not."""
                world.verifier._thread._calls.put(lambda: time.sleep(1.5))

            heard = await take(edge, edge.session(), ask(WARM), trouble)
            assert heard.tokens == world.plain(WARM)
            assert "has said nothing for 0.3 s, though it answers pings" in lost[0]

    asyncio.run(main())


def test_a_long_stall_is_survived(scene, take, ask) -> None:
    async def main() -> None:
        async with scene() as world, world.edge(persistence=QUICK) as edge:
            heard = await take(edge, edge.session(), ask(GREEDY), lambda: world.proxy.stall(1.0))
            assert heard.tokens == world.plain(GREEDY)
            assert heard.whole.reconnects >= 1

    asyncio.run(main())


def test_a_slow_upload_is_not_taken_for_a_dead_link(scene, take, ask) -> None:
    """Pings wait behind it for longer than a silence may last."""
    slow = Link(name="slow", up=Direction(rate=12_000.0, queue=1500), down=Direction())
    patient = Persistence(first=0.02, longest=0.1, give_up=1.0, silence=1.2)
    text = random.Random(1).randbytes(40_000).hex()

    async def main() -> None:
        async with scene(slow) as world, world.edge(None, persistence=patient) as edge:
            with pytest.raises(SessionError, match="at most 4095"):  # it has been read in full
                await take(edge, edge.session(), ask(GREEDY, 3, ids=(), text=text))
            assert edge.courier.reconnects == 0

    asyncio.run(main())


def test_two_sessions_on_one_link(scene, take, ask) -> None:
    async def main() -> None:
        async with scene() as world, world.edge() as edge:
            sessions = edge.session(), edge.session()
            first, second = await asyncio.gather(
                take(edge, sessions[0], ask(GREEDY), world.proxy.drop),
                take(edge, sessions[1], ask(WARM, 80)),
            )
            assert first.tokens == world.plain(GREEDY)
            assert second.tokens == world.plain(WARM, 80)
            assert edge.courier.reconnects == 1

    asyncio.run(main())


def test_giving_up_keeps_what_was_verified(scene, take, ask) -> None:
    async def main() -> None:
        async with scene() as world, world.edge(persistence=QUICK) as edge:
            session = edge.session()
            began = asyncio.get_running_loop().time()
            with pytest.raises(LinkError, match=r"tried again for 0.6 s"):
                await take(edge, session, ask(WARM), world.away)
            assert asyncio.get_running_loop().time() - began < 5
            kept = session.ids[session.prompt_len :]
            assert len(kept) >= 20
            assert kept == world.plain(WARM)[: len(kept)]
            # Whoever asks again is served, once there is a link.
            await world.back()
            heard = await take(edge, edge.session(), ask(WARM))
            assert heard.tokens == world.plain(WARM)

    asyncio.run(main())


def test_a_peer_that_never_welcomes_is_given_up(scene, take, ask) -> None:
    """It takes connections and drops them: that must not begin the count again each time."""

    async def main() -> None:
        async with scene() as world, world.edge(persistence=QUICK) as edge:
            attempts = 0

            async def handler(link: NetLink) -> None:
                nonlocal attempts
                attempts += 1
                link.abort()

            flapping = None

            async def trouble() -> None:
                nonlocal flapping
                await world.away()
                flapping = await server.serve(handler, port=world._kept)

            with pytest.raises(LinkError, match="tried again"):
                await take(edge, edge.session(), ask(GREEDY), trouble)
            assert 2 <= attempts <= 30
            await flapping.close(0.1)

    asyncio.run(main())


# --- the verifier as a process ----------------------------------------------------------------

SERVE = """
import asyncio, signal, sys
from outrider.cloud_server.driver import ServiceSettings, Verifier
from outrider.cloud_server.targets.scripted import ScriptedTarget
from outrider.runtime.text.tokenizer import load_tokenizer
from outrider.simulator.paced import PacedTarget

async def main():
    tokenizer = load_tokenizer(sys.argv[1])
    target = ScriptedTarget(vocabulary=tokenizer.size, seed=5, order=2, peak=4.0)
    settings = ServiceSettings(port=int(sys.argv[2]), drain_seconds=0.05)
    verifier = Verifier(PacedTarget(target, 0.01), tokenizer, settings)
    asked = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asked.set)
    await verifier.start()
    print("ready", flush=True)
    await asked.wait()
    await verifier.stop()

asyncio.run(main())
"""


@pytest.fixture
def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def start(folder: str, port: int) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, folder, str(port)],
        stdout=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


@pytest.mark.parametrize(
    "number_and_sampling",
    [(signal.SIGKILL, GREEDY), (signal.SIGKILL, WARM), (signal.SIGTERM, WARM)],
    ids=["killed-greedy", "killed-warm", "drained-warm"],
)
def test_a_verifier_that_dies_and_comes_back(
    scene, take, ask, free_port: int, number_and_sampling: tuple[int, Sampling]
) -> None:
    number, sampling = number_and_sampling
    folder, running = str(MODELS / "drafter"), []

    async def main() -> None:
        async with scene() as world:  # only for its tokenizer and its plain text
            url = f"ws://127.0.0.1:{free_port}"
            running.append(await asyncio.to_thread(start, folder, free_port))

            async def trouble() -> None:
                running[0].send_signal(number)
                await asyncio.to_thread(running[0].wait)
                running.append(await asyncio.to_thread(start, folder, free_port))

            async with world.edge(url=url) as edge:
                heard = await take(edge, edge.session(), ask(sampling, 80), trouble, after=10)
            assert heard.tokens == world.plain(sampling, 80)
            assert heard.whole.reconnects >= 1

    try:
        asyncio.run(main())
    finally:
        for process in running:
            process.kill()
            process.wait()
            process.stdout.close()
