"""What a user is told when the other end is not there, or is not what they think."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from websockets.exceptions import InvalidHeader, NegotiationError

from outrider.protocol.errors import HandshakeError, LinkError, OutriderError, SettingError
from outrider.runtime.net.address import Address
from outrider.runtime.net.client import connect
from outrider.runtime.net.errors import LinkBusyError, from_connect
from outrider.runtime.net.keys import KeyFile
from outrider.runtime.net.link import Link
from outrider.runtime.net.server import serve
from outrider.runtime.net.tls import client_context

KEY = "a-key-that-nobody-guesses"
Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def echo(link: Link) -> None:
    while True:
        await link.send(await link.recv())


def failure(peer: Peer, *, timeout: float = 10.0) -> OutriderError:
    """Give the error of a client that meets this peer."""

    async def main() -> OutriderError:
        async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await peer(reader, writer)
            finally:
                writer.close()

        server = await asyncio.start_server(listen, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            with pytest.raises(OutriderError) as caught:
                await connect(f"127.0.0.1:{port}", open_timeout=timeout)
        return caught.value

    return asyncio.run(main())


def answering(text: str) -> Peer:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(text.replace("\n", "\r\n").encode())
        await writer.drain()

    return peer


def status(line: str, body: str = "", headers: str = "") -> Peer:
    length = len(body.encode())
    return answering(f"HTTP/1.1 {line}\n{headers}Content-Length: {length}\n\n{body}")


def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(LinkError, match="nothing listens on"):
            asyncio.run(connect(f"127.0.0.1:{port}"))
        with pytest.raises(LinkError, match="nothing listens on"):
            asyncio.run(connect(f"localhost:{port}"))


def test_no_such_host() -> None:
    with pytest.raises(LinkError, match="no address was found for the host"):
        asyncio.run(connect("wss://host.invalid:1"))


def test_a_silent_peer() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    started = time.monotonic()
    error = failure(silent, timeout=0.2)
    assert isinstance(error, LinkError)
    assert "did not answer within 0.2 s" in str(error)
    assert time.monotonic() - started < 3


def test_a_peer_that_hangs_up() -> None:
    async def rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    error = failure(rude)
    assert isinstance(error, LinkError)
    assert "without an answer" in str(error)
    assert "wss://" in str(error)


def test_a_peer_that_speaks_something_else() -> None:
    error = failure(answering("220 mail.example ESMTP\n"))
    assert isinstance(error, HandshakeError)
    assert "does not speak HTTP" in str(error)


def test_a_web_server() -> None:
    error = failure(status("200 OK", "<html>hello</html>"))
    assert isinstance(error, HandshakeError)
    assert error.code == "not-websocket"
    assert "HTTP 200 OK" in str(error)
    assert "html" not in str(error)


def test_a_web_server_that_says_why() -> None:
    error = failure(status("404 Not Found", "no such thing"))
    assert "(no such thing)" in str(error)


def test_a_redirect_is_named_and_not_followed() -> None:
    error = failure(status("302 Found", headers="Location: ws://127.0.0.1:1/elsewhere\n"))
    assert isinstance(error, HandshakeError)
    assert "ws://127.0.0.1:1/elsewhere, which is not followed" in str(error)


@pytest.mark.parametrize("line", ["502 Bad Gateway", "504 Gateway Timeout", "429 Slow Down"])
def test_a_gateway_whose_server_is_away(line: str) -> None:
    error = failure(status(line))
    assert isinstance(error, LinkError)
    assert line in str(error)


@pytest.mark.parametrize(
    ("header", "wait"),
    [("", None), ("Retry-After: 7\n", 7.0), ("Retry-After: Wed, 21 Oct 2026 07:28:00 GMT\n", None)],
)
def test_a_busy_server(header: str, wait: float | None) -> None:
    error = failure(status("503 Service Unavailable", headers=header))
    assert isinstance(error, LinkBusyError)
    assert "busy or still loading" in str(error)
    assert error.retry_after == wait


def test_a_server_that_forbids() -> None:
    error = failure(status("403 Forbidden"))
    assert isinstance(error, HandshakeError)
    assert error.code == "key"


def test_another_websocket_server() -> None:
    from websockets.asyncio.server import serve as plain_serve

    async def main() -> None:
        async with plain_serve(lambda _: asyncio.sleep(0), "127.0.0.1", 0) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            with pytest.raises(HandshakeError, match=r"does not speak outrider\.v1") as caught:
                await connect(f"127.0.0.1:{port}")
            assert caught.value.code == "version"

    asyncio.run(main())


@pytest.mark.parametrize(("key", "says"), [(None, "a key is needed"), ("wrong", "is not valid")])
def test_keys(tmp_path: Path, key: str | None, says: str, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "keys"
    file.write_text(f"pi:{KEY}\n")
    file.chmod(0o600)
    names = []

    async def handler(link: Link) -> None:
        names.append(link.peer.key_name)

    async def main() -> None:
        async with await serve(handler, keys=KeyFile.load(file)) as server:
            with pytest.raises(HandshakeError, match=says) as caught:
                await connect(server.url, key=key)
            assert caught.value.code == "key"
            await (await connect(server.url, key=KEY)).wait_closed()

    asyncio.run(main())
    assert names == ["pi"]
    assert "no valid key" in caplog.text


def test_what_a_caller_may_not_combine() -> None:
    for url, key, context, says in [
        ("ws://cloud.example:1", KEY, None, "show the key"),
        ("127.0.0.1:1", None, client_context(pin="ab" * 32), "not encrypted"),
        ("127.0.0.1:1", "two words", None, "visible ASCII"),
        ("http://127.0.0.1", None, None, "not a WebSocket address"),
    ]:
        with pytest.raises(SettingError, match=says):
            asyncio.run(connect(url, key=key, context=context))


def test_a_proxy_of_the_environment_is_not_asked_about_loopback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)

    async def main() -> bytes:
        async with await serve(echo) as server, await connect(server.url) as link:
            await link.send(b"direct")
            return await link.recv()

    assert asyncio.run(main()) == b"direct"


def test_a_proxy_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            await writer.drain()
            writer.close()

        proxy = await asyncio.start_server(refuse, "127.0.0.1", 0)
        port = proxy.sockets[0].getsockname()[1]
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
        monkeypatch.delenv("no_proxy", raising=False)
        async with proxy:
            with pytest.raises(LinkError, match=r"proxy on the way to cloud\.example:1 failed"):
                await connect("wss://cloud.example:1")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (NegotiationError("x"), HandshakeError, r"does not speak outrider\.v1"),
        (InvalidHeader("Upgrade"), HandshakeError, "is not an Outrider server: missing Upgrade"),
        (ssl.SSLEOFError(8, "EOF"), LinkError, "dropped the connection before TLS"),
        (
            ssl.SSLError(1, "[SSL] no shared cipher"),
            HandshakeError,
            "TLS with h:1 failed: .*cipher",
        ),
        (ConnectionResetError(), LinkError, "dropped the connection .*: if the server does not"),
        (
            OSError(errno.EHOSTUNREACH, "No route to host"),
            LinkError,
            "be reached: No route to host",
        ),
        (
            OSError("Multiple exceptions: [Errno 111] x, [Errno 101] y"),
            LinkError,
            "cannot be reached: Multiple",
        ),
        (ValueError("odd"), SettingError, "cannot connect to wss://h:1/v1/stream: odd"),
    ],
)
def test_rare_failures_are_told_apart(error: Exception, kind: type[Exception], says: str) -> None:
    found = from_connect(error, Address("h", 1, secure=True), 10.0)
    assert type(found) is kind
    with pytest.raises(kind, match=says):
        raise found
