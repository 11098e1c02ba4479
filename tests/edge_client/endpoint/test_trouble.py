"""Clients that leave, many at once, and a cloud that goes away."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from outrider.simulator.links import Direction, Link
from outrider.simulator.proxy import Proxy

PROMPT = "And it came to pass"
NEAR = Link(name="near", up=Direction(), down=Direction())


def begun(running, body: dict, wait: bytes = b"data:") -> socket.socket:
    """A connection on which an answer has begun to come."""
    link = socket.create_connection(("127.0.0.1", running.port), timeout=20)
    data = json.dumps(body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    link.sendall(head.encode() + data)
    came = b""
    while wait not in came and wait:
        found = link.recv(4096)
        assert found, came
        came += found
    return link


def until(condition, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.005)
    return False


def at_work(running) -> int:
    """Answers that the cloud works on."""
    table = running.verifier.table
    return running.on_loop(lambda: sum(s.running for s in table.sessions.values()))


@pytest.fixture(scope="module")
def slow(written):
    return written("a text that goes on and on, ", step=0.03, parallel=4)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_client_that_leaves_ends_the_work(slow, stream) -> None:
    body = {"prompt": PROMPT, "max_tokens": 2000, "stream": stream}
    link = begun(slow, body, b"data:" if stream else b"")
    assert until(lambda: at_work(slow) == 1)
    passes = slow.verifier.engine.stats.passes
    link.close()
    assert until(lambda: at_work(slow) == 0)
    # The pass that was running, the one after it at most, and what the message took to get there.
    assert slow.verifier.engine.stats.passes - passes <= 6
    assert until(lambda: slow.service.status()["running"] == 0)


def aborted(running, count: int) -> None:
    def one(i: int) -> None:
        link = begun(
            running,
            {"prompt": PROMPT, "max_tokens": 900, "stream": i % 3 != 0},
            b"" if i % 3 == 0 else b"data:",
        )
        time.sleep(0.01 * (i % 5))
        link.close()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(count)))
    assert until(lambda: at_work(running) == 0)
    assert until(lambda: running.service.status()["running"] == 0)
    assert running.service.status()["waiting"] == 0
    status, came = running.chat(max_tokens=5)
    assert status == 200
    assert came["usage"]["completion_tokens"] == 5
    # Neither end keeps what nobody will come back for.
    assert len(running.verifier.table.sessions) <= 32


def test_aborted_streams(slow) -> None:
    aborted(slow, 10)


@pytest.mark.slow
def test_many_aborted_streams(slow) -> None:
    aborted(slow, 100)


def test_many_requests_at_once(embedded) -> None:
    """More than the cloud has slots and the endpoint places; every text is the right one."""
    client = embedded.client()
    prompts = [f"Chapter {i}. And it came to pass" for i in range(32)]

    def one(prompt: str) -> str:
        made = client.completions.create(
            model=embedded.service.model, prompt=prompt, temperature=0, max_tokens=12
        )
        return made.choices[0].text

    alone = [one(prompt) for prompt in prompts]
    with ThreadPoolExecutor(32) as pool:
        together = list(pool.map(one, prompts))
    assert together == alone
    assert all(alone)


def test_too_many_wait(written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.edge_client.endpoint.service.MOST_WAITING", 1)
    running = written("words ", step=0.03, parallel=1)
    first = begun(running, {"prompt": PROMPT, "max_tokens": 900, "stream": True})
    second = begun(running, {"prompt": PROMPT, "max_tokens": 900, "stream": True}, b"")
    assert until(lambda: running.service.status()["waiting"] == 1)
    status, headers, came = running.call("POST", "/v1/completions", {"prompt": PROMPT})
    assert (status, came["error"]["code"]) == (429, "too_many_requests")
    assert int(headers["retry-after"]) >= 1
    first.close()
    second.close()
    assert until(lambda: running.service.status()["running"] == 0)


def test_a_conversation_whose_session_the_cloud_gave_away(written) -> None:
    ours = written("words that go on, ", sessions=2, parallel=2)
    theirs = written("words ", url=f"ws://127.0.0.1:{ours.verifier._server.port}")

    def ask(running, ids: list[int]) -> dict:
        body = {"prompt": ids, "max_tokens": 6, "temperature": 0}
        status, _, came = running.call("POST", "/v1/completions", body)
        assert status == 200, came
        return came

    first = ours.tokenizer.encode_prompt(PROMPT) * 4
    ask(ours, first)
    for token in range(400, 404):  # the cloud has room for two sessions
        ask(theirs, [token] * 8)
    more = [*first, *ours.tokenizer.encode(" and more")]
    again = ask(ours, more)
    # The edge has that session still; the cloud reads its text again, and says so.
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    fresh = written("words that go on, ")
    assert again["choices"][0]["text"] == ask(fresh, more)["choices"][0]["text"]


def test_the_drafter_is_shared(written) -> None:
    """Who gets it when is in test_parts.py; here it only has to change nothing."""
    running = written("a text that the drafter knows well, ", step=0.004, parallel=4)

    def one(i: int) -> dict:
        ids = running.tokenizer.encode_prompt(PROMPT)
        body = {"prompt": ids, "max_tokens": 300, "temperature": 0}
        return running.call("POST", "/v1/completions", body)[2]["choices"][0]

    with ThreadPoolExecutor(3) as pool:
        made = list(pool.map(one, range(3)))
    assert len({choice["text"] for choice in made}) == 1
    assert sum(choice["outrider"]["accepted"] for choice in made) > 0


def test_the_cloud_restarts_in_mid_stream(written, tokenizer) -> None:
    """Through a proxy that is cut while the cloud forgets everything: no token is lost."""
    running = written("one two three four five six seven, ", step=0.01)
    cloud = ("127.0.0.1", running.verifier._server.port)
    proxy = Proxy(NEAR, cloud)
    asyncio.run_coroutine_threadsafe(proxy.start(), running.loop).result(10)
    through = written(
        "one two three four five six seven, ", step=0.01, url=f"ws://127.0.0.1:{proxy.port}"
    )
    client = through.client()
    stream = client.completions.create(
        model=through.service.model, prompt=PROMPT, temperature=0, max_tokens=120, stream=True
    )
    parts, cut = [], False
    for chunk in stream:
        parts.append(chunk.choices[0].text)
        if len(parts) == 5 and not cut:
            cut = True

            def restart() -> None:
                running.verifier.table.sessions.clear()  # as a new process would be
                proxy.drop()

            running.on_loop(restart)
    whole = client.completions.create(
        model=through.service.model, prompt=PROMPT, temperature=0, max_tokens=120
    )
    assert cut
    assert "".join(parts) == whole.choices[0].text
    assert through.service.client.courier.reconnects >= 1
    asyncio.run_coroutine_threadsafe(proxy.close(), running.loop).result(10)


def test_a_cloud_that_stays_away(written, monkeypatch: pytest.MonkeyPatch) -> None:
    running = written("words that nobody reads, ", step=0.02)
    courier = running.service.client.courier
    monkeypatch.setattr(
        courier, "_persistence", type(courier._persistence)(first=0.02, give_up=0.3)
    )
    link = begun(running, {"prompt": PROMPT, "max_tokens": 2000, "stream": True})
    asyncio.run_coroutine_threadsafe(running.verifier.stop(drain=False), running.loop).result(20)
    came = b""
    while not came.endswith(b"0\r\n\r\n"):
        came += link.recv(4096)
    link.close()
    assert b"[DONE]" not in came
    assert b'"code":"link"' in came
    status, headers, came = running.call("POST", "/v1/completions", {"prompt": PROMPT})
    assert (status, came["error"]["code"]) == (503, "link")
    assert "retry-after" in headers
    assert running.call("GET", "/health")[2] == {"status": "ok", "link": "down"}
    with pytest.raises(openai.APIError):
        list(
            running.client().completions.create(
                model=running.service.model, prompt=PROMPT, stream=True
            )
        )
