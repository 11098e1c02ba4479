"""A cloud among clients that stop, knock, lie and crowd: it answers the others as if they were not
there, and goes when it is told to without leaving anybody in the middle of a sentence."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import zstandard

from outrider.cli import exits
from outrider.edge_client.answer import Answer, Piece
from outrider.edge_client.client import EdgeClient
from outrider.edge_client.policy import Fixed
from outrider.protocol.codec import COLD, COMPRESSED
from outrider.protocol.edge import EdgeMachine, State
from outrider.protocol.errors import OutriderError, SessionError
from outrider.protocol.request import Request
from outrider.runtime.net.client import connect
from outrider.runtime.net.link import Link
from outrider.runtime.text.fingerprint import describe
from outrider.runtime.text.tokenizer import Tokenizer, load_tokenizer

PROMPT = "And it came to pass"
RUN = ["run", PROMPT, "--draft", "off", "--ignore-eos", "--json"]
PATIENCE = 60.0


@pytest.fixture(scope="module")
def tokenizer(models: Path) -> Tokenizer:
    return load_tokenizer(models / "drafter")


@pytest.fixture
def serve(start_cloud):
    pytest.importorskip("llama_cpp")

    def start(*args: str):
        return start_cloud("--target-backend", "llama", "--lookup", "0", *args)

    return start


def resident(cloud) -> int:
    pages = Path(f"/proc/{cloud.process.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGESIZE")


def status(cloud) -> dict:
    base = cloud.url.replace("ws:", "http:").removesuffix("/v1/stream")
    with urllib.request.urlopen(f"{base}/status", timeout=10) as answer:
        return json.load(answer)


async def greet(url: str, tokenizer: Tokenizer) -> Link:
    """A connection that has said hello, was welcomed, and now does nothing."""
    link = await connect(url)
    machine = EdgeMachine(describe(tokenizer), "test", os.urandom)
    machine.connect(0.0)
    while (message := machine.next_message(0.0)) is not None:
        await link.send(message)
    while machine.state is State.GREETING:
        machine.receive(await link.recv(), 0.0)
    return link


@contextlib.asynccontextmanager
async def edge(url: str, tokenizer: Tokenizer) -> AsyncIterator[EdgeClient]:
    async with EdgeClient(url, tokenizer, None, Fixed(1)) as client:
        yield client


async def answer(client: EdgeClient, tokenizer: Tokenizer, tokens: int, begun=None) -> Answer:
    session = client.session()
    ids = tuple(tokenizer.encode_prompt(PROMPT))
    try:
        async for event in client.stream(
            session, Request(ids=ids, max_tokens=tokens, ignore_eos=True)
        ):
            if isinstance(event, Answer):
                return event
            if begun is not None and isinstance(event, Piece):
                begun.set()
    finally:
        client.machine.close(session)
    raise AssertionError


def test_greeted_idle_sockets_do_not_fill_a_cloud(serve, invoke, tokenizer: Tokenizer) -> None:
    cloud = serve("--max-sessions", "2")

    async def crowd() -> list[Link]:
        links = [await greet(cloud.url, tokenizer) for _ in range(140)]
        assert status(cloud)["connections"] <= 130
        return links

    async def main() -> None:
        links = await crowd()
        result = await asyncio.to_thread(invoke, *RUN, "--cloud", cloud.url, "-n", "8")
        assert result.json["tokens"] == 8
        for link in links:
            link.abort()

    asyncio.run(main())


def test_an_idle_connection_ends_and_the_edge_comes_back(serve, tokenizer: Tokenizer) -> None:
    cloud = serve("--idle-seconds", "1")

    async def main() -> None:
        async with edge(cloud.url, tokenizer) as client:
            first = await answer(client, tokenizer, 8)
            while status(cloud)["connections"]:
                await asyncio.sleep(0.05)
            assert (await answer(client, tokenizer, 8)).ids == first.ids

    asyncio.run(asyncio.wait_for(main(), PATIENCE))


def bomb(declared: int | None) -> bytes:
    """A message of a few kilobytes that would be 64 MiB, whatever it says of itself."""
    packed = zstandard.ZstdCompressor(write_content_size=declared is None).compress(bytes(64 << 20))
    if declared is not None:  # a frame header of our own that claims something else
        header = packed[:4] + bytes([0xE0]) + declared.to_bytes(8, "little")
        packed = header + packed[6:]
    return bytes([COLD | COMPRESSED | 7]) + b"\x80\x40" + packed


ABUSE = {
    "2^60 tokens": bytes([0x04, 1]) + b"\x80" * 8 + b"\x10" + b"\0" * 50,
    "a bomb": bomb(None),
    "a bomb that claims little": bomb(100),
    "a bomb that claims much": bomb(2**60),
    "noise": bytes(range(256)) * 64,
    "too large": b"\x87" + b"\0" * (2 << 20),
}


def test_abuse_ends_its_own_connection_and_touches_nobody(
    serve, popen, invoke, read, tokenizer: Tokenizer
) -> None:
    cloud = serve()
    whole = invoke(*RUN, "--cloud", cloud.url, "-n", "400").json
    shown = popen(*RUN[:-1], "--cloud", cloud.url, "-n", "400")
    start = read(shown, 1)

    async def attack(data: bytes) -> None:
        link = await greet(cloud.url, tokenizer)
        with contextlib.suppress(OutriderError):
            await link.send(data)
            while True:
                await link.recv()
        await link.wait_closed()

    async def main(rounds: int) -> None:
        for _ in range(rounds):
            await asyncio.gather(*map(attack, ABUSE.values()))

    asyncio.run(asyncio.wait_for(main(2), PATIENCE))
    before = resident(cloud)
    asyncio.run(asyncio.wait_for(main(5), PATIENCE))
    assert resident(cloud) - before < 32 << 20
    out, _ = shown.communicate(timeout=PATIENCE)
    assert shown.returncode == exits.DONE
    assert (start + out).decode().strip() == whole["text"].strip()
    assert invoke(*RUN, "--cloud", cloud.url, "-n", "400").json["token_ids"] == whole["token_ids"]
    said = "".join(cloud.errors)
    assert "Traceback" not in said


def test_stopped_clients_hold_nobody_up(serve, popen, invoke, read) -> None:
    cloud = serve("--max-sessions", "8")
    whole = invoke(*RUN, "--cloud", cloud.url, "-n", "300").json
    stopped = [popen(*RUN[:-1], "--cloud", cloud.url, "-n", "700") for _ in range(3)]
    for process in stopped:
        assert read(process, 10)
        process.send_signal(signal.SIGSTOP)
    again = invoke(*RUN, "--cloud", cloud.url, "-n", "300").json
    assert again["token_ids"] == whole["token_ids"]
    for process in stopped:
        process.send_signal(signal.SIGCONT)
    texts = {process.communicate(timeout=PATIENCE)[0][-100:] for process in stopped}
    assert [process.returncode for process in stopped] == [exits.DONE] * 3
    assert len(texts) == 1  # each went on to the same end


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_client_that_stays_stopped_is_dropped(serve, popen, read) -> None:
    """After a ping that stays unanswered: 20 s until it is sent, 20 s of waiting."""
    cloud = serve()
    process = popen(*RUN[:-1], "--cloud", cloud.url, "-n", "1500")
    assert read(process, 10)
    process.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    while status(cloud)["connections"]:
        assert time.monotonic() - began < 60
        time.sleep(0.5)
    process.kill()


def test_a_full_cloud_says_when_and_the_edge_comes_back(serve, popen, invoke, read) -> None:
    cloud = serve("--max-sessions", "1", "--max-queue", "0")
    whole = invoke(*RUN, "--cloud", cloud.url, "-n", "20").json
    first = popen(*RUN[:-1], "--cloud", cloud.url, "-n", "1900")
    assert read(first, 5)
    refused = invoke(*RUN, "--cloud", cloud.url, "-n", "20", "--reconnect", "0")
    assert refused.status == exits.FAILED
    assert "the target is busy, and 0 answers are waiting already (try again in" in refused.err
    patient = invoke(*RUN, "--cloud", cloud.url, "-n", "20", "--reconnect", "60")
    assert patient.json["token_ids"] == whole["token_ids"]
    first.communicate(timeout=PATIENCE)
    assert first.returncode == exits.DONE
    assert status(cloud)["refused"]["busy"] >= 1


def test_a_stop_under_load_finishes_what_was_begun_and_refuses_the_rest(
    serve, tokenizer: Tokenizer
) -> None:
    """Those that wait for a slot were begun as well."""
    cloud = serve("--max-sessions", "3", "--drain-seconds", "50")

    async def main() -> None:
        async with edge(cloud.url, tokenizer) as client:
            begun = asyncio.Event()
            tasks = [asyncio.create_task(answer(client, tokenizer, 300, begun)) for _ in range(7)]
            await begun.wait()
            assert status(cloud)["waiting"] > 0
            cloud.process.send_signal(signal.SIGTERM)
            while not any("stopping" in line for line in cloud.errors):
                await asyncio.sleep(0.01)
            with pytest.raises(SessionError, match="shutting down") as caught:
                await answer(client, tokenizer, 5)
            assert caught.value.retry_after == 5.0
            base = cloud.url.replace("ws:", "http:").removesuffix("/v1/stream")
            with pytest.raises(urllib.error.HTTPError) as health:
                await asyncio.to_thread(urllib.request.urlopen, f"{base}/health", None, 5)
            assert health.value.code == 503
            assert json.load(health.value) == {"status": "draining"}
            answers = await asyncio.gather(*tasks)
            assert {len(found.ids) for found in answers} == {300}
            assert len({found.ids for found in answers}) == 1

    asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert cloud.process.wait(20) == exits.DONE


def test_prompts_are_logged_only_where_asked(serve, invoke) -> None:
    quiet, open_ = serve("--log-format", "json"), serve("--log-format", "json", "--log-prompts")
    for cloud in (quiet, open_):
        assert invoke(*RUN, "--cloud", cloud.url, "-n", "4").json["tokens"] == 4
        cloud.process.send_signal(signal.SIGTERM)
        assert cloud.process.wait(20) == exits.DONE
    time.sleep(0.2)
    assert "came to pass" not in "".join(quiet.errors)
    lines = [json.loads(line) for line in open_.errors]
    (opened,) = [line for line in lines if line["message"] == "answer opened"]
    assert opened["prompt"].endswith("And it came to pass")
    (ended,) = [line for line in lines if line["message"] == "answer ended"]
    assert (ended["tokens"], ended["reason"]) == (4, "length")
