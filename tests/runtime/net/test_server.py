"""Closed by default, every route, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path

import pytest

from outrider.protocol.errors import HandshakeError, LinkError, SettingError
from outrider.runtime.net.client import connect
from outrider.runtime.net.errors import LinkBusyError, LinkClosedError
from outrider.runtime.net.keys import KeyFile
from outrider.runtime.net.link import Link, Tuning
from outrider.runtime.net.server import serve
from outrider.runtime.net.tls import server_context

KEY = "a-key-that-nobody-guesses"
UPGRADE = (
    "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)


async def echo(link: Link) -> None:
    while True:
        await link.send(await link.recv())


async def ask(port: int, path: str, method: str = "GET", headers: str = "") -> tuple[int, str]:
    """Send one HTTP request by hand; give the status and all of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n".encode())
    text = (await asyncio.wait_for(reader.read(), 5)).decode()
    writer.close()
    return int(text.split()[1]), text


@pytest.fixture
def keys(tmp_path: Path) -> KeyFile:
    file = tmp_path / "keys"
    file.write_text(f"pi:{KEY}\n")
    file.chmod(0o600)
    return KeyFile.load(file)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "192.0.2.1", "cloud.example"])
def test_a_wide_bind_needs_both_a_key_and_a_certificate(
    host: str, keys: KeyFile, make_certificate
) -> None:
    made = make_certificate()
    context = server_context(made.certfile, made.keyfile)
    for given, missing in [
        ({}, "a key file and a certificate"),
        ({"keys": keys}, "that needs a certificate"),
        ({"context": context}, "that needs a key file"),
    ]:
        with pytest.raises(SettingError, match=missing):
            asyncio.run(serve(echo, host, **given))


def test_a_wide_bind_with_both(keys: KeyFile, make_certificate) -> None:
    made = make_certificate()
    context = server_context(made.certfile, made.keyfile)

    async def main() -> None:
        async with await serve(echo, "0.0.0.0", keys=keys, context=context) as server:
            assert server.port > 0

    asyncio.run(main())


def test_ports() -> None:
    async def main() -> None:
        async with await serve(echo, "localhost") as server:
            with pytest.raises(SettingError, match=f"port {server.port} on 127.0.0.1 is in use"):
                await serve(echo, port=server.port)
            with pytest.raises(SettingError, match="0 to 65535"):
                await serve(echo, port=70000)
            with pytest.raises(SettingError, match="cannot listen on"):
                await serve(echo, "::1%nowhere")

    asyncio.run(main())


def test_every_route(keys: KeyFile) -> None:
    """No path but the health check answers anything without a key."""
    loading = True

    async def main() -> None:
        nonlocal loading
        async with await serve(echo, keys=keys, loading=lambda: loading) as server:
            port = server.port
            status, text = await ask(port, "/health")
            assert status == 503
            assert '{"status": "loading"}' in text
            loading = False
            status, text = await ask(port, "/health?probe=1")
            assert status == 200
            assert json.loads(text.partition("\r\n\r\n")[2]) == {"status": "ok"}
            assert "application/json" in text
            for path in ("/", "/v1", "/v1/stream/", "/metrics", "/../health", "//health"):
                assert (await ask(port, path, headers=UPGRADE))[0] == 404, path
            for header in ("", "Authorization: Bearer no\r\n", f"Authorization: Basic {KEY}\r\n"):
                status, text = await ask(port, "/v1/stream", headers=UPGRADE + header)
                assert status == 401
                assert "WWW-Authenticate: Bearer" in text
            twice = f"Authorization: Bearer {KEY}\r\n" * 2
            assert (await ask(port, "/v1/stream", headers=UPGRADE + twice))[0] == 401
            assert (await ask(port, "/v1/stream", method="HEAD"))[0] == 405
            right = f"Authorization: Bearer {KEY}\r\n"
            assert (await ask(port, "/v1/stream", headers=right))[0] == 426
            status, text = await ask(port, "/v1/stream", headers=right + UPGRADE)
            assert status == 400
            assert "speaks outrider.v1, the client nothing" in text
            page = "Origin: https://page.example\r\nSec-WebSocket-Protocol: outrider.v1\r\n"
            assert (await ask(port, "/v1/stream", headers=right + UPGRADE + page))[0] == 403
            while server.connections > 0:
                await asyncio.sleep(0.01)

    asyncio.run(main())


def test_a_client_of_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.runtime.net.client.SUBPROTOCOL", "outrider.v9")

    async def main() -> None:
        async with await serve(echo) as server:
            with pytest.raises(HandshakeError, match=r"outrider\.v1, the client outrider\.v9") as c:
                await connect(server.url)
            assert c.value.code == "version"

    asyncio.run(main())


def test_a_server_that_is_loading() -> None:
    async def main() -> None:
        async with await serve(echo, loading=lambda: True) as server:
            with pytest.raises(LinkBusyError, match="still loading") as caught:
                await connect(server.url)
            assert caught.value.retry_after == 1.0

    asyncio.run(main())


def test_many_connections_up_to_the_limit() -> None:
    async def main() -> None:
        async with await serve(echo, max_connections=20) as server:
            tries = [connect(server.url) for _ in range(30)]
            results = await asyncio.gather(*tries, return_exceptions=True)
            links = [result for result in results if isinstance(result, Link)]
            busy = [result for result in results if isinstance(result, LinkBusyError)]
            assert (len(links), len(busy)) == (20, 10)
            for number, link in enumerate(links):
                await link.send(bytes([number]))
            for number, link in enumerate(links):
                assert await link.recv() == bytes([number])
            links[0].abort()
            await links[1].close()
            while server.connections > 18:
                await asyncio.sleep(0.01)
            await (await connect(server.url)).close()
            await asyncio.gather(*(link.close() for link in links))

    asyncio.run(main())


def test_closing_tells_everybody_and_waits_for_the_handlers() -> None:
    async def main() -> None:
        finished = []

        async def handler(link: Link) -> None:
            try:
                await echo(link)
            finally:
                await asyncio.sleep(0.05)
                finished.append(link.peer)

        server = await serve(handler)
        links = [await connect(server.url) for _ in range(3)]

        async def told(link: Link) -> None:
            with pytest.raises(LinkClosedError, match="is shutting down: new version") as caught:
                await link.recv()
            assert caught.value.code == 1001

        forever = asyncio.create_task(server.serve_forever())
        await asyncio.gather(server.close(reason="new version"), *(told(link) for link in links))
        await forever
        assert len(finished) == 3
        with pytest.raises(LinkError, match="nothing listens"):
            await connect(server.url)
        await server.close()

    asyncio.run(main())


def test_closing_does_not_wait_for_ever() -> None:
    async def main() -> None:
        ended = []

        async def stubborn(link: Link) -> None:
            try:
                await asyncio.sleep(60)
            finally:
                ended.append(link)

        server = await serve(stubborn, tuning=Tuning(close_timeout=0.1))
        link = await connect(server.url)
        async with asyncio.timeout(5):
            await server.close(grace=0.2)
        assert len(ended) == 1
        link.abort()
        await link.wait_closed()

    asyncio.run(main())


def test_a_handler_that_fails_is_our_fault(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(link: Link) -> None:
        raise ZeroDivisionError

    async def main() -> None:
        async with await serve(broken) as server:
            link = await connect(server.url)
            with pytest.raises(LinkClosedError) as caught:
                await link.recv()
            assert caught.value.code == 1011

    asyncio.run(main())
    assert "ZeroDivisionError" in caplog.text


def test_a_client_that_never_finishes_its_request() -> None:
    async def main() -> None:
        async with await serve(echo, open_timeout=0.2) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"GET /v1/stream HTTP/1.1\r\n")
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), 5) == b""
            writer.close()

    asyncio.run(main())
