"""Every route asks for the key; places are shared; whoever is slow, idle or revoked has to go."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from outrider.protocol.errors import HandshakeError
from outrider.runtime.net import door
from outrider.runtime.net.client import connect
from outrider.runtime.net.errors import LinkBusyError, LinkClosedError
from outrider.runtime.net.keys import KeyFile
from outrider.runtime.net.link import Link
from outrider.runtime.net.server import serve
from outrider.runtime.net.tls import client_context, server_context

PI, HUT = "a-key-that-nobody-guesses", "another-key-that-nobody-guesses"
PAGES = {
    "/metrics": lambda: ("text/plain", "up 1\n"),
    "/status": lambda: ("application/json", "{}"),
}


async def wait(link: Link) -> None:
    while True:
        await link.recv()


async def ask(port: int, path: str, key: str | None = None, method: str = "GET") -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    header = f"Authorization: Bearer {key}\r\n" if key else ""
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\n{header}\r\n".encode())
    text = (await asyncio.wait_for(reader.read(), 5)).decode()
    writer.close()
    return int(text.split()[1]), text


def key_file(path: Path, *lines: str) -> KeyFile:
    file = path / "keys"
    file.write_text("\n".join(lines))
    file.chmod(0o600)
    return KeyFile.load(file, empty=True)


def test_every_route_but_health_asks_for_the_key(tmp_path: Path) -> None:
    keys = key_file(tmp_path, f"pi:{PI}", f"old:{HUT} expires=2020-01-01")

    async def main() -> None:
        async with await serve(wait, keys=keys, pages=PAGES) as server:
            for path in ("/v1/stream", "/metrics", "/status", "/metrics?x=1"):
                for key, says in ((None, "needed"), ("wrong", "not valid"), (HUT, "has expired")):
                    status, text = await ask(server.port, path, key)
                    assert (status, says in text) == (401, True), (path, key)
            assert await ask(server.port, "/health") != 401
            assert (await ask(server.port, "/metrics", PI))[1].endswith("\r\n\r\nup 1\n")
            assert (await ask(server.port, "/metrics", PI, method="POST"))[0] in (405, 400)
            for path in ("/metrics/", "/Metrics", "/metrics/../status", "//status", "/status%00"):
                assert (await ask(server.port, path, PI))[0] == 404, path
            assert server.refused["key"] == 12

    asyncio.run(main())


def test_pages_alone_have_no_stream() -> None:
    async def main() -> None:
        async with await serve(wait, pages=PAGES, stream=False) as server:
            assert (await ask(server.port, "/metrics"))[0] == 200
            assert (await ask(server.port, "/v1/stream"))[0] == 404
            with pytest.raises(HandshakeError):
                await connect(server.url)

    asyncio.run(main())


def test_a_server_that_drains_says_so() -> None:
    async def main() -> None:
        async with await serve(wait, draining=lambda: True) as server:
            status, text = await ask(server.port, "/health")
            assert (status, '{"status": "draining"}' in text) == (503, True)
            with pytest.raises(LinkBusyError, match="shutting down") as caught:
                await connect(server.url)
            assert caught.value.retry_after == 1.0

    asyncio.run(main())


def test_revoked_and_expired_keys_lose_their_links(tmp_path: Path) -> None:
    soon = (datetime.now(UTC) + timedelta(seconds=0.6)).isoformat()
    both = key_file(tmp_path, f"pi:{PI}", f"hut:{HUT}", f"brief:{PI}{HUT} expires={soon}")

    async def main() -> None:
        async with await serve(wait, keys=both) as server:
            pi, hut, brief = [await connect(server.url, key=key) for key in (PI, HUT, PI + HUT)]
            assert server.sweep() == 0
            assert server.replace_keys(key_file(tmp_path, f"hut:{HUT}")) == 2
            for link in (pi, brief):
                with pytest.raises(LinkClosedError):
                    await link.recv()
            await hut.ping()
            with pytest.raises(HandshakeError, match="not valid"):
                await connect(server.url, key=PI)
            server.replace_keys(both)
            await asyncio.sleep(0.7)
            with pytest.raises(HandshakeError, match="expired"):
                await connect(server.url, key=PI + HUT)
            assert server.replace_keys(key_file(tmp_path)) == 1  # the last one, too
            await hut.wait_closed()
            assert server.connections == 0

    asyncio.run(main())


def test_a_key_that_expires_while_it_is_connected(tmp_path: Path) -> None:
    soon = (datetime.now(UTC) + timedelta(seconds=0.5)).isoformat()
    keys = key_file(tmp_path, f"pi:{PI} expires={soon}")

    async def main() -> None:
        async with await serve(wait, keys=keys) as server:
            link = await connect(server.url, key=PI)
            assert server.sweep() == 0
            await asyncio.sleep(0.6)
            assert server.sweep() == 1
            await link.wait_closed()

    asyncio.run(main())


def test_one_key_cannot_take_all_places(tmp_path: Path) -> None:
    keys = key_file(tmp_path, f"pi:{PI}", f"hut:{HUT}")

    async def main() -> None:
        async with await serve(wait, keys=keys, max_connections=10) as server:
            links = [await connect(server.url, key=PI) for _ in range(5)]
            with pytest.raises(LinkBusyError, match="this key holds 5 of 10"):
                await connect(server.url, key=PI)
            links += [await connect(server.url, key=HUT) for _ in range(5)]
            await asyncio.gather(*(link.close() for link in links))

    asyncio.run(main())


def test_an_idle_link_makes_room() -> None:
    inside: list[Link] = []

    async def note(link: Link) -> None:
        inside.append(link)
        await wait(link)

    def make_room(key_name: str | None) -> bool:
        if not inside:
            return False
        inside.pop(0).abort()
        return True

    async def main() -> None:
        async with await serve(note, max_connections=2, make_room=make_room) as server:
            links = [await connect(server.url) for _ in range(4)]
            for link in links[:2]:
                await link.wait_closed()
            for link in links[2:]:
                await link.ping()
                link.abort()

    asyncio.run(main())


@pytest.mark.parametrize("secure", [False, True])
def test_sockets_that_ask_nothing_do_not_keep_others_out(
    secure: bool, make_certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half-open ones: accepted, and then not a byte; with TLS they never get that far."""
    monkeypatch.setattr(door, "MAX_ARRIVING", 8)
    made = make_certificate()
    context = server_context(made.certfile, made.keyfile) if secure else None
    trust = client_context(ca=made.certfile) if secure else None

    async def main() -> None:
        async with await serve(wait, context=context, open_timeout=1.0) as server:
            raw = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(30)]
            for _ in range(3):
                with contextlib.suppress(Exception):
                    link = await connect(server.url, context=trust)
                    break
                await asyncio.sleep(1.1)  # those that do not even speak TLS are out by then
            await link.ping()
            await link.close()
            assert server.refused["arriving"] >= 22
            for _, writer in raw:
                writer.close()

    asyncio.run(main())


def test_knocking_fills_no_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = key_file(tmp_path, f"pi:{PI}")

    async def main() -> None:
        async with await serve(wait, keys=keys) as server:
            for _ in range(40):
                await ask(server.port, "/v1/stream", "wrong")
            assert server.refused["key"] == 40

    asyncio.run(main())
    lines = [r for r in caplog.records if "was refused" in r.getMessage()]
    assert len(lines) == 1
    assert "wrong" not in caplog.text
