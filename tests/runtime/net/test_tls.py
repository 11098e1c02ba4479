from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path

import pytest

from outrider.protocol.errors import HandshakeError, LinkError, SettingError
from outrider.runtime.net.client import connect
from outrider.runtime.net.link import Link
from outrider.runtime.net.server import serve
from outrider.runtime.net.tls import (
    PinMismatchError,
    certificate_fingerprint,
    client_context,
    format_fingerprint,
    parse_fingerprint,
    server_context,
)

PIN = "ab" * 32


async def echo(link: Link) -> None:
    while True:
        await link.send(await link.recv())


def visit(certificate, context: ssl.SSLContext | None) -> bytes:
    """Send one message to a server with this certificate and give what comes back."""

    async def main() -> bytes:
        served = server_context(certificate.certfile, certificate.keyfile)
        async with (
            await serve(echo, context=served) as server,
            await connect(server.url, context=context) as link,
        ):
            await link.send(b"hello")
            return await link.recv()

    return asyncio.run(main())


def test_a_pin_is_enough(make_certificate) -> None:
    made = make_certificate()
    pin = certificate_fingerprint(made.certfile)
    assert visit(made, client_context(pin=pin)) == b"hello"
    assert visit(made, client_context(pin=pin.replace(":", "").lower())) == b"hello"


def test_a_pin_accepts_an_expired_certificate(make_certificate, caplog) -> None:
    made = make_certificate(days=-1)
    assert visit(made, client_context(pin=certificate_fingerprint(made.certfile))) == b"hello"
    assert "expired" in caplog.text


def test_an_authority_file_is_enough(make_certificate) -> None:
    made = make_certificate()
    assert visit(made, client_context(ca=made.certfile)) == b"hello"


@pytest.mark.parametrize(
    ("host", "entry"), [("localhost", "DNS:localhost"), ("127.0.0.2", "IP:127.0.0.2")]
)
def test_a_certificate_for_another_name_needs_no_authority(
    make_certificate, host: str, entry: str
) -> None:
    made = make_certificate()

    async def main() -> None:
        served = server_context(made.certfile, made.keyfile)
        where = "127.0.0.1" if host == "localhost" else host
        async with await serve(echo, where, context=served) as server:
            port = server.url.split(":")[2].split("/")[0]
            await connect(f"wss://{host}:{port}", context=client_context(ca=made.certfile))

    with pytest.raises(HandshakeError, match=f"subjectAltName={entry}") as refused:
        asyncio.run(main())
    assert "pin its SHA-256 fingerprint" in str(refused.value)
    assert "authority" not in str(refused.value)


def test_a_wrong_pin_names_what_was_found(make_certificate) -> None:
    made = make_certificate()
    with pytest.raises(HandshakeError, match=certificate_fingerprint(made.certfile)) as caught:
        visit(made, client_context(pin=PIN))
    assert caught.value.code == "tls"


@pytest.mark.parametrize("days", [90, -1])
def test_system_roots_do_not_know_it(make_certificate, days: int) -> None:
    with pytest.raises(HandshakeError, match="pin its SHA-256"):
        visit(make_certificate(days=days), None)


def test_an_expired_certificate_of_a_known_authority(make_certificate) -> None:
    made = make_certificate(days=-1)
    with pytest.raises(HandshakeError, match="expired"):
        visit(made, client_context(ca=made.certfile))


def test_nothing_is_sent_to_a_wrong_pin(make_certificate) -> None:
    """The peer of a wrong pin gets no byte of the request, and so no key."""
    made = make_certificate()
    got = bytearray()

    async def main() -> None:
        async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                got.extend(await reader.read())
            except (OSError, ssl.SSLError):
                pass
            finally:
                writer.close()

        context = server_context(made.certfile, made.keyfile)
        server = await asyncio.start_server(listen, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(HandshakeError, match="nothing was sent"):
            await connect(f"wss://127.0.0.1:{port}", key="secret", context=client_context(pin=PIN))
        await asyncio.sleep(0.05)
        server.close()
        await server.wait_closed()

    asyncio.run(main())
    assert got == b""


def test_a_pinned_context_checks_blocking_sockets_too(make_certificate) -> None:
    made = make_certificate()

    def dial(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port)) as plain:
            client_context(pin=PIN).wrap_socket(plain)

    async def main() -> None:
        served = server_context(made.certfile, made.keyfile)
        async with await serve(echo, context=served) as server:
            with pytest.raises(PinMismatchError):
                await asyncio.to_thread(dial, server.port)

    asyncio.run(main())


def test_a_tls_client_at_a_plain_server() -> None:
    async def main() -> None:
        async with await serve(echo) as server:
            with pytest.raises(LinkError, match="if the server does not use TLS"):
                await connect(f"wss://127.0.0.1:{server.port}")

    asyncio.run(main())


def test_a_tls_client_at_a_web_server() -> None:
    async def main() -> None:
        async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()
            await reader.read()
            writer.close()

        server = await asyncio.start_server(listen, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(HandshakeError, match="does not speak TLS") as caught:
            await connect(f"wss://127.0.0.1:{port}")
        assert caught.value.code == "tls"
        server.close()
        await server.wait_closed()

    asyncio.run(main())


def test_settings_that_cannot_be_honoured(make_certificate, tmp_path: Path) -> None:
    made, other = make_certificate(), make_certificate("other")
    locked = make_certificate("locked", password=b"secret")
    none, text = tmp_path / "none", tmp_path / "text"
    text.write_text("not a certificate")
    for certfile, keyfile, says in [
        (none, made.keyfile, "certificate .*none: No such file"),
        (made.certfile, none, "private key .*none: No such file"),
        (text, made.keyfile, "no certificate in PEM form"),
        (made.certfile, text, "no usable private key"),
        (made.certfile, other.keyfile, "does not belong to certificate"),
        (locked.certfile, locked.keyfile, "encrypted"),
    ]:
        with pytest.raises(SettingError, match=says):
            server_context(certfile, keyfile)
    with pytest.raises(SettingError, match="not both"):
        client_context(pin=PIN, ca=made.certfile)
    with pytest.raises(SettingError, match="No such file"):
        client_context(ca=none)
    with pytest.raises(SettingError, match="no certificate in PEM form"):
        client_context(ca=text)


def test_a_damaged_certificate(make_certificate, tmp_path: Path) -> None:
    made = make_certificate()
    bad = tmp_path / "bad.crt"
    bad.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    with pytest.raises(SettingError, match="cannot be read"):
        server_context(bad, made.keyfile)


def test_dates_and_shared_keys_are_warned_about(make_certificate, caplog) -> None:
    made = make_certificate(days=3)
    made.keyfile.chmod(0o644)
    server_context(made.certfile, made.keyfile)
    assert "expires on" in caplog.text
    assert "chmod 600" in caplog.text


@pytest.mark.parametrize("text", ["", "ab", "xy" * 32, "ab" * 33])
def test_what_is_no_fingerprint(text: str) -> None:
    with pytest.raises(SettingError, match="64 hex digits"):
        parse_fingerprint(text)


def test_forms_of_a_fingerprint() -> None:
    value = bytes(range(32))
    assert parse_fingerprint(format_fingerprint(value)) == value
    assert parse_fingerprint("SHA256:" + value.hex()) == value
