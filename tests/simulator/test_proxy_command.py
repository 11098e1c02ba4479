"""The proxy's settings, its commands, and the proxy as a process."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys

import pytest

from outrider.protocol.errors import LinkError, SettingError
from outrider.simulator import profiles, proxy
from outrider.simulator.proxy import Proxy, obey

NEAR = profiles.link("loopback")


def test_loopback_only() -> None:
    with pytest.raises(SettingError, match="loopback only"):
        Proxy(NEAR, ("192.0.2.1", 80))
    with pytest.raises(SettingError, match="loopback only"):
        Proxy(NEAR, ("localhost", 80), host="0.0.0.0")
    with pytest.raises(SettingError, match="at least 1"):
        Proxy(NEAR, ("127.0.0.1", 80), max_connections=0)
    with pytest.raises(SettingError, match="start it first"):
        _ = Proxy(NEAR, ("127.0.0.1", 80)).port


def test_a_port_that_is_taken() -> None:
    async def main() -> None:
        async with Proxy(NEAR, ("127.0.0.1", 9)) as first:
            with pytest.raises(LinkError, match="cannot listen"):
                await Proxy(NEAR, ("127.0.0.1", 9), port=first.port).start()

    asyncio.run(main())


def test_they_do_what_they_say() -> None:
    async def main() -> None:
        upstream = await asyncio.start_server(lambda _r, _w: None, "127.0.0.1", 0)
        to = upstream.sockets[0].getsockname()
        async with upstream, Proxy(NEAR, to) as near:
            reader, _ = await asyncio.open_connection("127.0.0.1", near.port)
            while near.counters.connections < 1:
                await asyncio.sleep(0.001)
            assert obey(near, "profile geo\n", profiles.link) == "ok: profile geo"
            assert near.link.name == "geo"
            assert obey(near, "stall 0.1", profiles.link) == "ok: stall 0.1"
            assert json.loads(obey(near, "counters", profiles.link))["connections"] == 1
            assert obey(near, "half-open", profiles.link) == "ok: half-open"
            assert obey(near, "drop", profiles.link) == "ok: drop"
            with pytest.raises(ConnectionResetError):
                await reader.read()
            assert "wifi" in obey(near, "profile pigeon", profiles.link)
            assert "0 to 3600" in obey(near, "stall nan", profiles.link)
            assert "0 to 3600" in obey(near, "stall long", profiles.link)
            assert "known are profile" in obey(near, "jump", profiles.link)

    asyncio.run(main())


def test_as_a_process() -> None:
    command = [sys.executable, "-m", "outrider.simulator.proxy", "--to", "127.0.0.1:9"]
    with subprocess.Popen(
        [*command, "--profile", "lte"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert 0 < int(process.stdout.readline()) < 1 << 16
        process.stdin.write("profile geo\n")
        process.stdin.flush()
        assert process.stdout.readline() == "ok: profile geo\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_it_ends_with_its_standard_input_if_told() -> None:
    """So it outlives nobody who started it and was killed."""
    command = [sys.executable, "-m", "outrider.simulator.proxy", "--to", "127.0.0.1:9"]
    with subprocess.Popen(
        [*command, "--with-stdin"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline()
        process.stdin.close()
        assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--to", "example.org:80"], "loopback only"),
        (["--to", "nowhere"], "HOST:PORT"),
        (["--to", "127.0.0.1:99999"], "HOST:PORT"),
        (["--to", "127.0.0.1:9", "--profile", "pigeon"], "known are"),
        (["--to", "127.0.0.1:9", "--port", "70000"], "cannot listen"),
        (["--to", "127.0.0.1:9", "--replay", "nowhere", "--profile", "lte"], "cannot be read"),
    ],
)
def test_wrong_settings_end_it(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert proxy.main(arguments) == 2
    assert said in capsys.readouterr().err
