"""A cloud that is not there, is something else, refuses, or dies: clear words, nothing lost."""

from __future__ import annotations

import asyncio
import http.server
import json
import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from outrider.cli import exits
from outrider.protocol import messages as m
from outrider.protocol.codec import Codec
from outrider.runtime.net.link import Link
from outrider.runtime.net.server import serve

PROMPT = "And it came to pass"
RUN = ["run", PROMPT, "--draft", "off"]


def refused(result, status: int = exits.UNREACHABLE) -> str:
    assert result.status == status, result
    assert result.out == ""
    assert result.err.startswith("error: ")
    assert "Traceback" not in result.err
    return result.err


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def test_nobody_listens(invoke, closed_port: int) -> None:
    result = invoke(*RUN, "--cloud", f"ws://127.0.0.1:{closed_port}")
    assert f"nothing listens on 127.0.0.1:{closed_port}" in refused(result)


def test_no_such_host(invoke) -> None:
    assert "no-such-host.invalid" in refused(invoke(*RUN, "--cloud", "no-such-host.invalid:1"))


class WebPage(http.server.BaseHTTPRequestHandler):
    """Some other program on that port."""

    def do_GET(self) -> None:
        body = b"<html>It works!</html>"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.mark.parametrize("version", ["HTTP/1.0", "HTTP/1.1"])
def test_a_web_server(invoke, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(WebPage, "protocol_version", version)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), WebPage)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        result = invoke(*RUN, "--cloud", f"ws://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    said = refused(result)
    assert str(server.server_port) in said
    if version == "HTTP/1.1":
        assert "not an Outrider server" in said


def test_another_protocol(invoke) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(100)
                peer.sendall(b"SSH-2.0-OpenSSH_9.2\r\n" * 4)

        thread = threading.Thread(target=answer)
        thread.start()
        result = invoke(*RUN, "--cloud", f"ws://127.0.0.1:{listener.getsockname()[1]}")
        thread.join()
    assert "does not speak HTTP" in refused(result)


@pytest.fixture
def fake_cloud():
    """``fake_cloud(handler)`` listens in a thread of its own and gives the address."""
    ends = []

    def start(handler) -> str:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        server = asyncio.run_coroutine_threadsafe(serve(handler), loop).result(10)
        ends.append((loop, thread, server))
        return server.url

    yield start
    for loop, thread, server in ends:
        asyncio.run_coroutine_threadsafe(server.close(0.1), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_an_older_wire_version(invoke, fake_cloud) -> None:
    async def old(link: Link) -> None:
        await link.recv()
        text = f"wire version {m.WIRE_VERSION}; this cloud speaks {m.WIRE_VERSION - 1}"
        await link.send(Codec(1, 1 << 20).encode(m.Goodbye(code="version", message=text)))
        await link.close()

    said = refused(invoke(*RUN, "--cloud", fake_cloud(old)))
    assert f"wire version {m.WIRE_VERSION}" in said


def test_bytes_that_are_no_message(invoke, fake_cloud) -> None:
    async def noise(link: Link) -> None:
        await link.recv()
        await link.send(b"\xffnoise" * 20)
        await link.recv()

    assert "protocol" in refused(invoke(*RUN, "--cloud", fake_cloud(noise)))


# --- keys and TLS ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for loopback and its key."""
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "outrider test")])
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=365))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
        )
        .sign(key, hashes.SHA256())
    )
    certfile, keyfile = folder / "cert.pem", folder / "key.pem"
    certfile.write_bytes(built.public_bytes(serialization.Encoding.PEM))
    keyfile.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    keyfile.chmod(0o600)
    return certfile, keyfile


def test_keys_and_tls_end_to_end(
    invoke, start_cloud, certificate: tuple[Path, Path], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from outrider.runtime.net.tls import certificate_fingerprint

    pytest.importorskip("llama_cpp")
    certfile, keyfile = certificate
    keys = tmp_path / "keys"
    keys.write_text("# edges\nattic:correct-horse-battery\n")
    keys.chmod(0o600)
    cloud = start_cloud(
        "--target-backend", "llama", "--host", "0.0.0.0", "--api-key-file", keys,
        "--ssl-certfile", certfile, "--ssl-keyfile", keyfile,
    )  # fmt: skip
    url = cloud.url.replace("0.0.0.0", "127.0.0.1")
    pin = certificate_fingerprint(certfile)
    good = ["--api-key-file", str(keys), "--tls-fingerprint", pin]
    common = [*RUN, "-n", "4", "--cloud", url]

    assert invoke(*common, *good).status == exits.DONE
    by_authority = ["--tls-ca", str(certfile)]
    monkeypatch.setenv("OUTRIDER_API_KEY", "correct-horse-battery")
    assert invoke(*common, *by_authority).status == exits.DONE
    monkeypatch.setenv("OUTRIDER_API_KEY", "wrong-horse-battery")
    said = refused(invoke(*common, *by_authority))
    assert "key" in said
    assert "horse" not in said
    monkeypatch.delenv("OUTRIDER_API_KEY")
    assert "a key is needed" in refused(invoke(*common, *by_authority))
    assert "not trusted" in refused(invoke(*common))
    other = "00" * 32
    assert pin in refused(invoke(*common, "--tls-fingerprint", other))
    in_the_clear = url.replace("wss://", "ws://")
    assert "wss://" in refused(invoke(*RUN, "--cloud", in_the_clear))

    cloud.process.terminate()
    assert cloud.process.wait(20) == exits.DONE
    said = "".join(cloud.errors)
    assert pin in said
    assert "keys: 1 accepted; TLS: on" in said
    assert "correct-horse" not in said


# --- serving --------------------------------------------------------------------------------


def test_a_port_in_use_is_told_before_a_model_is_loaded(invoke) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = invoke("cloud", "serve", "--port", str(port), "--model", "/nonexistent")
    assert f"port {port} on 127.0.0.1 is in use" in refused(result, exits.USAGE)


def test_the_ready_line_and_the_banner(llama_cloud) -> None:
    ready = llama_cloud.ready
    assert ready["event"] == "ready"
    assert ready["url"].startswith("ws://127.0.0.1:")
    assert (ready["backend"], ready["slots"], ready["n_ctx"]) == ("llama", 8, 2048)
    deadline = time.monotonic() + 10
    while "ready: " not in (said := "".join(llama_cloud.errors)) and time.monotonic() < deadline:
        time.sleep(0.01)
    for word in (ready["model"], "llama", "context 2048", "8 slots", ready["url"],
                 "keys: none (loopback only)"):  # fmt: skip
        assert word in said


@pytest.fixture
def own_cloud(start_cloud):
    """A cloud that the test may harm."""
    pytest.importorskip("llama_cpp")
    return start_cloud("--target-backend", "llama", "--drain-seconds", "20", "--lookup", "0")


def long_answer(popen, cloud, *args: str, tokens: int = 1500) -> subprocess.Popen[bytes]:
    """An answer under way that lasts for seconds; its first characters have been read."""
    return popen("run", PROMPT, "--cloud", cloud.url, "-n", str(tokens), "--ignore-eos",
                 "--draft", "off", "--reconnect", "0.5", *args)  # fmt: skip


def until_connected(process: subprocess.Popen[bytes]) -> None:
    """Wait for the line that --verbose gives once the handshake is done."""
    while b"plain cloud streaming" not in (line := process.stderr.readline()):
        assert line


def test_a_cloud_killed_in_mid_answer(popen, own_cloud, read) -> None:
    shown = long_answer(popen, own_cloud)
    start = read(shown, 20)
    told = long_answer(popen, own_cloud, "--json", "--verbose")
    until_connected(told)
    start += read(shown, 200)
    own_cloud.process.send_signal(signal.SIGKILL)
    rest, err = shown.communicate(timeout=20)
    assert shown.returncode == exits.FAILED
    assert len(start + rest) >= 220
    (start + rest).decode()
    assert "\nerror: " in err.decode()
    out, err = told.communicate(timeout=20)
    found = json.loads(out)
    assert told.returncode == exits.FAILED
    assert found["error"]
    assert found["error"] in err.decode()
    assert found["finish_reason"] == "error"
    assert found["tokens"] == len(found["token_ids"])
    # Both asked the same: what one kept begins like the other.
    short, long = sorted([found["text"].encode(), start + rest], key=len)
    assert long.startswith(short)


def test_a_cloud_that_comes_back_goes_on_with_the_answer(
    popen, start_cloud, invoke, closed_port: int, read
) -> None:
    pytest.importorskip("llama_cpp")
    place = ["--target-backend", "llama", "--port", str(closed_port)]
    first = start_cloud(*place)
    process = long_answer(popen, first, "--json", "--verbose", "--reconnect", "60", tokens=400)
    until_connected(process)
    first.process.kill()
    first.process.wait()
    second = start_cloud(*place)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == exits.DONE
    whole = invoke(*RUN, "-n", "400", "--ignore-eos", "--cloud", second.url, "--json").json
    assert json.loads(out)["token_ids"] == whole["token_ids"]
    second.process.terminate()


def test_a_stop_lets_the_answer_under_way_finish(popen, own_cloud, read) -> None:
    process = long_answer(popen, own_cloud, "--json", "--verbose", tokens=150)
    until_connected(process)
    late = long_answer(popen, own_cloud)
    assert read(late, 5)
    own_cloud.process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == exits.DONE
    assert json.loads(out)["tokens"] == 150
    late.kill()
    assert own_cloud.process.wait(30) == exits.DONE
    assert "stopping" in "".join(own_cloud.errors)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_at_once(popen, start_cloud, read, number: int) -> None:
    pytest.importorskip("llama_cpp")
    cloud = start_cloud("--target-backend", "llama", "--drain-seconds", "60")
    assert read(long_answer(popen, cloud), 5)
    cloud.process.send_signal(number)
    with pytest.raises(subprocess.TimeoutExpired):
        cloud.process.wait(0.5)
    cloud.process.send_signal(number)
    assert cloud.process.wait(5) == 128 + number


def test_an_engine_that_dies_takes_the_service_down(models: Path) -> None:
    from outrider.cli import targets
    from outrider.cli.exits import WorkFailedError
    from outrider.cli.serving import announce_cloud, serve_until_told
    from outrider.cloud_server.driver import ServiceSettings, Verifier
    from outrider.cloud_server.service import Service

    pytest.importorskip("llama_cpp")
    target, tokenizer, _ = targets.load(None, "llama")
    settings = ServiceSettings(port=0, drain_seconds=60)
    verifier = Verifier(target, tokenizer, settings)

    def broken(now: float) -> None:
        raise ZeroDivisionError("the engine is broken")

    verifier.engine.next = broken  # type: ignore[method-assign,assignment]
    facts = {"backend": "llama", "certificate": None, "drafter": None}
    serving = serve_until_told(
        Service(settings),
        lambda: (verifier, facts),
        announce_cloud,
        as_json=False,
        with_stdin=False,
    )
    with pytest.raises(WorkFailedError, match="the engine is broken"):
        asyncio.run(serving)


def test_a_cloud_that_came_with_a_parent_goes_with_it(popen) -> None:
    pytest.importorskip("llama_cpp")
    read, write = os.pipe()
    process = popen("cloud", "serve", "--port", "0", "--json", "--with-stdin",
                    "--target-backend", "llama", stdin=read)  # fmt: skip
    os.close(read)
    assert b"ready" in process.stdout.readline()
    os.close(write)
    assert process.wait(20) == exits.DONE
