"""The link: there or not, equal, nearly equal or refused, and how far away."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.cloud_server.driver import ServiceSettings, Verifier
from outrider.cloud_server.targets.scripted import ScriptedTarget
from outrider.runtime.doctor.cloud import check_cloud
from outrider.runtime.text.hf_tokenizer import HfTokenizer

DRAFTER = Path(__file__).parents[3] / "models" / "drafter"


@pytest.fixture
def tokenizer() -> HfTokenizer:
    return HfTokenizer(DRAFTER)


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Starts a verifier with a scripted target in a thread; gives its address."""
    import asyncio

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    running: list[Verifier] = []

    def start(tokenizer: Any, **settings: Any) -> str:
        async def begin() -> str:
            target = ScriptedTarget(vocabulary=tokenizer.size)
            verifier = Verifier(target, tokenizer, ServiceSettings(port=0, **settings))
            running.append(verifier)
            return str((await verifier.start()).url)

        return asyncio.run_coroutine_threadsafe(begin(), loop).result(30)

    yield start
    for verifier in running:
        asyncio.run_coroutine_threadsafe(verifier.stop(drain=False), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_a_cloud_that_fits(serve: Callable[..., str], tokenizer: HfTokenizer) -> None:
    found = {check.name: check for check in check_cloud(serve(tokenizer), tokenizer)}
    assert {check.state for check in found.values()} == {"ok"}
    assert found["handshake"].facts["model"] == "scripted"
    assert "equals the draft model's" in found["handshake"].says
    assert 0 < found["round trip"].facts["rtt_seconds"] < 5


def test_special_tokens_that_differ_are_named(
    serve: Callable[..., str], tokenizer: HfTokenizer
) -> None:
    url = serve(tokenizer)
    other = HfTokenizer(DRAFTER)
    token = next(iter(other.specials))
    other.specials = {**other.specials, token: b"<|something else|>"}
    found = {check.name: check for check in check_cloud(url, other)}
    assert found["handshake"].state == "warning"
    assert f"id {token}: '<|something else|>' here" in found["handshake"].says
    assert found["handshake"].facts["never_draft"] == [token]


def test_another_template(serve: Callable[..., str], tokenizer: HfTokenizer) -> None:
    url = serve(tokenizer)
    other = HfTokenizer(DRAFTER)
    other.chat = None
    found = {check.name: check for check in check_cloud(url, other)}
    assert found["template"].state == "warning"
    assert "the cloud renders chats" in (found["template"].do or "")


def test_another_tokenizer_is_refused_and_the_difference_named(
    serve: Callable[..., str], tokenizer: HfTokenizer
) -> None:
    url = serve(tokenizer)
    other = HfTokenizer(DRAFTER)
    other.entries = (*other.entries[:1500], b"changed", *other.entries[1501:])
    found = check_cloud(url, other)
    assert [check.state for check in found] == ["ok", "problem"]
    assert "id 1500: 'changed' here" in found[-1].says
    assert found[-1].facts["code"] == "tokenizer"
    assert "same family" in (found[-1].do or "")


def test_without_a_draft_model_only_the_way_is_measured(
    serve: Callable[..., str], tokenizer: HfTokenizer
) -> None:
    found = check_cloud(serve(tokenizer), None)
    assert [check.name for check in found] == ["cloud", "round trip"]


def test_nobody_there(tokenizer: HfTokenizer) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (found,) = check_cloud(f"ws://127.0.0.1:{port}", tokenizer)
    assert found.state == "problem"
    assert "nothing listens" in found.says
    assert "outrider cloud serve" in (found.do or "")


def test_something_else_there(tokenizer: HfTokenizer) -> None:
    from http.server import BaseHTTPRequestHandler, HTTPServer

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.handle_request, daemon=True)
        thread.start()
        (found,) = check_cloud(f"ws://127.0.0.1:{server.server_port}", tokenizer)
        thread.join()
    assert found.facts["code"] == "not-websocket"
