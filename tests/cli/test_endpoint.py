"""``outrider serve`` as a process: it says when it is ready, guards its address, and ends well."""

from __future__ import annotations

import asyncio
import http.client
import json
import shutil
import signal
import socket
import subprocess
from typing import Any

import pytest

from outrider.cli import endpoint_life, exits

KEY = "a-key-for-apps-0123456789"
BODY = '{"messages": [{"role": "user", "content": "And it came to pass"}], "max_tokens": 4}'


@pytest.fixture
def start_endpoint(popen, llama_cloud):
    """``start_endpoint(*args)``: (process, what it said when it was ready)."""

    def start(*args: str, env: dict[str, str] | None = None) -> tuple[Any, dict[str, Any]]:
        process = popen(
            "serve", "--cloud", llama_cloud.url, "--port", "0", "--json", *args, env=env
        )
        line = process.stdout.readline()
        assert line, process.stderr.read().decode()
        return process, json.loads(line)

    return start


def get(ready: dict[str, Any], path: str, **headers: str) -> tuple[int, bytes]:
    place = ready["url"].removeprefix("http://").removesuffix("/v1")
    link = http.client.HTTPConnection(place, timeout=20)
    link.request("GET", path, headers=headers)
    response = link.getresponse()
    found = response.status, response.read()
    link.close()
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_it_is_told(start_endpoint, number) -> None:
    process, ready = start_endpoint()
    assert (ready["event"], ready["model"]) == ("ready", "embedded-target")
    assert get(ready, "/health")[0] == 200
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "Traceback" not in err.decode()
    assert f"ready: {ready['url']}" in err.decode()


def test_curl(start_endpoint) -> None:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("curl is not installed")
    _, ready = start_endpoint("--api-key", KEY)

    def call(*args: str) -> str:
        made = [curl, "-sS", f"{ready['url']}/chat/completions", *args]
        return subprocess.run(made, capture_output=True, text=True, check=True, timeout=30).stdout

    auth = ("-H", f"Authorization: Bearer {KEY}")
    assert json.loads(call(*auth, "-d", BODY))["usage"]["completion_tokens"] == 4
    assert call("-d", BODY).startswith('{"error":')
    streamed = call(*auth, "-N", "-d", BODY.replace("{", '{"stream": true, ', 1))
    assert streamed.endswith("data: [DONE]\n\n")
    assert get(ready, "/v1/models")[0] == 401
    assert get(ready, "/health")[0] == 200


def test_the_environments_key_is_the_clouds(start_endpoint) -> None:
    """OUTRIDER_API_KEY means the same for every command; apps have a key of their own."""
    _, ready = start_endpoint(env={"OUTRIDER_API_KEY": "the-clouds-key-0123456789"})
    assert get(ready, "/v1/models")[0] == 200
    _, ready = start_endpoint(env={"OUTRIDER_ENDPOINT_KEY": KEY})
    assert get(ready, "/v1/models")[0] == 401
    assert get(ready, "/v1/models", Authorization=f"Bearer {KEY}")[0] == 200


@pytest.mark.parametrize(
    ("args", "status", "said"),
    [
        (("--host", "0.0.0.0"), exits.USAGE, "give apps a key"),
        (("--host", "0.0.0.0", "--api-key", KEY), exits.USAGE, "a certificate"),
        (("--api-key", "two words"), exits.USAGE, "key: expected"),
        (("--api-key", KEY, "--api-key-file", "x"), exits.USAGE, "contradict"),
        (("--api-key-file", "/nowhere/keys"), exits.USAGE, "key file"),
        (("--ssl-certfile", "x"), exits.USAGE, "belong together"),
        (("--draft-max", "99"), exits.USAGE, "draft-max"),
        (("--cloud", "ws://127.0.0.1:9"), exits.UNREACHABLE, "127.0.0.1:9"),
        (("--draft-model", "/nowhere/model.gguf"), exits.FAILED, "/nowhere/model.gguf"),
    ],
)
def test_what_cannot_be(process, args, status, said) -> None:
    found = process("serve", "--port", "0", *args)
    assert (found.status, said in found.err) == (status, True), found.err
    assert "Traceback" not in found.err


def test_a_port_that_is_taken(process, start_endpoint) -> None:
    _, ready = start_endpoint()
    port = ready["url"].split(":")[2].removesuffix("/v1")
    found = process("serve", "--port", port)
    assert (found.status, "in use" in found.err) == (exits.USAGE, True)


def test_another_target_is_refused(process, llama_cloud) -> None:
    found = process("serve", "--port", "0", "--cloud", llama_cloud.url, "--model", "other")
    assert found.status == exits.UNREACHABLE
    assert "'embedded-target', not 'other'" in found.err


def test_a_chunk_does_not_wait_for_the_receipt_of_the_one_before() -> None:
    """With Nagle's algorithm the second of two would leave up to 40 ms late."""

    async def look() -> int:
        accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
        listener = endpoint_life._listen(endpoint_life.Settings(port=0))
        server = await asyncio.start_server(lambda _, w: accepted.put_nowait(w), sock=listener)
        async with server, asyncio.timeout(30):
            await asyncio.open_connection(*listener.getsockname())
            served = await accepted.get()
            told = served.get_extra_info("socket")
            return int(told.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    assert asyncio.run(look()) == 1


def test_the_cloud_dies_in_mid_stream_and_comes_back(start_cloud, popen) -> None:
    """Killed and started again at the same place: the stream goes on at the exact token."""
    first = start_cloud("--target-backend", "llama")
    port = str(first.url.rsplit(":", 1)[1].split("/")[0])
    serving = popen("serve", "--cloud", first.url, "--port", "0", "--json")
    line = serving.stdout.readline()
    assert line, serving.stderr.read().decode()
    place = json.loads(line)["url"].removeprefix("http://").removesuffix("/v1")
    body = {"prompt": "And it came to pass", "temperature": 0, "max_tokens": 1500}

    def ask(**more: Any) -> http.client.HTTPResponse:
        link = http.client.HTTPConnection(place, timeout=120)
        link.request("POST", "/v1/completions", json.dumps(body | more))
        response = link.getresponse()
        assert response.status == 200, response.read()
        return response

    text, ended = "", False
    stream = ask(stream=True)
    while said := stream.readline():
        if said.startswith(b"data: {"):
            (choice,) = json.loads(said[6:])["choices"]
            text, ended = text + choice["text"], ended or choice["finish_reason"] == "length"
            if first.process.poll() is None and len(text) > 200:
                first.process.kill()
                first.process.wait()
                start_cloud("--target-backend", "llama", "--port", port)
    assert first.process.poll() is not None, "the answer was over before there was trouble"
    assert ended
    assert json.loads(ask().read())["choices"][0]["text"] == text
