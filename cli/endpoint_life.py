"""The endpoint's life: it listens at once, loads, connects, serves, and ends when it is told."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from outrider.cli.edge import Edge, EdgeOptions, connected, load_edge, make_policy
from outrider.cli.serving import ends_at_once
from outrider.edge_client.endpoint.app import Endpoint, LinkControl, build
from outrider.edge_client.endpoint.service import Service
from outrider.edge_client.endpoint.turns import Turns
from outrider.protocol.errors import SettingError
from outrider.runtime.net.address import is_loopback
from outrider.runtime.net.keys import KeyFile

DRAIN_SECONDS = 10
"""How long a stop waits for answers under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where to listen, whom to let in, and how much."""

    host: str = "127.0.0.1"
    port: int
    keys: KeyFile | None = None
    certificate: tuple[Path, Path | None] | None = None
    origins: tuple[str, ...] = ()
    alias: str | None = None
    model: str | None = None
    parallel: int = 8
    max_body: int = 8 << 20
    as_json: bool = False
    with_stdin: bool = False
    link: LinkControl | None = None


class Server(uvicorn.Server):
    """uvicorn's server; signals are the command's matter."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them alone."""
        yield


def serve_until_told(options: EdgeOptions, settings: Settings) -> None:
    """Listen, then load and connect, then answer until a signal comes.

    Raises:
        SettingError: the address cannot be used. OutriderError: loading or connecting failed.
    """
    listener = _listen(settings)
    try:
        with ends_at_once():  # until the loop has handlers of its own
            asyncio.run(_Life(options, settings, listener).run())
    finally:
        listener.close()


def _listen(settings: Settings) -> socket.socket:
    """The socket, before anything is loaded: a port that is taken is told at once."""
    loopback = is_loopback(settings.host)
    if not loopback and (settings.keys is None or settings.certificate is None):
        raise SettingError(
            f"--host {settings.host} can be reached from outside: give apps a key (--api-key-file) "
            "and the endpoint a certificate (--ssl-certfile, --ssl-keyfile), or listen on 127.0.0.1"
        )
    try:
        family, _, _, _, place = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # The protocol by its name: asyncio turns Nagle's delay off only where it reads TCP there.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
    except OSError as error:
        said = error.strerror or error
        raise SettingError(f"cannot listen on {settings.host}:{settings.port}: {said}") from error
    return listener


class _Life:
    """One run of the server."""

    def __init__(self, options: EdgeOptions, settings: Settings, listener: socket.socket) -> None:
        self._options, self._settings, self._listener = options, settings, listener
        self._endpoint = Endpoint(
            alias=settings.alias,
            keys=settings.keys,
            origins=settings.origins,
            loopback=is_loopback(settings.host),
            max_body=settings.max_body,
            link=settings.link,
        )
        certificate, key = settings.certificate or (None, None)
        self._server = Server(
            uvicorn.Config(
                build(self._endpoint),
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",
                server_header=False,
                timeout_graceful_shutdown=DRAIN_SECONDS,
                ssl_certfile=certificate,
                ssl_keyfile=key,
            )
        )
        self._stopping = asyncio.Event()
        self._signal: int = signal.SIGTERM

    async def run(self) -> None:
        """Until told, or until loading or the server fails."""
        self._watch()
        if self._settings.with_stdin:
            asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._on_stdin)
        serving = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        told = asyncio.create_task(self._stopping.wait())
        working = asyncio.create_task(self._work(told, serving))
        try:
            await asyncio.wait({serving, working, told}, return_when=asyncio.FIRST_COMPLETED)
            if told.done() and self._endpoint.service is None:
                os.write(2, b"\nstopped while loading\n")
                os._exit(128 + self._signal)  # what is loading is not waited for
            await working
        finally:
            self._server.should_exit = True
            await asyncio.gather(serving, return_exceptions=True)
            told.cancel()

    async def _work(self, told: asyncio.Task[bool], serving: asyncio.Task[None]) -> None:
        """Load, connect, say so, and keep the link until the server is to stop."""
        edge = await asyncio.to_thread(load_edge, self._options)
        turns = Turns(make_policy(self._options), chosen=self._endpoint.metrics.length.observe)
        async with self._connected(edge, turns) as service:
            self._endpoint.service = service
            self._announce(service)
            await told
            self._server.should_exit = True
            await asyncio.wait({serving})  # it lets answers under way finish

    @contextlib.asynccontextmanager
    async def _connected(self, edge: Edge, turns: Turns) -> AsyncIterator[Service]:
        async with connected(edge, model=self._settings.model, policy=turns) as client:
            yield Service(
                client,
                turns,
                self._endpoint.metrics,
                parallel=self._settings.parallel,
                drafts=edge.drafter is not None,
                about=edge.mode,
            )

    # --- how it ends ------------------------------------------------------------------------

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._asked, number)

    def _asked(self, number: int) -> None:
        if self._stopping.is_set():
            os._exit(128 + number)  # asked twice: at once means at once
        self._signal = number
        self._stopping.set()

    def _on_stdin(self) -> None:
        """Whoever started us holds the other end: when it goes, however it goes, so do we."""
        if not os.read(sys.stdin.fileno(), 4096):
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            self._stopping.set()

    # --- what it says -----------------------------------------------------------------------

    @property
    def _url(self) -> str:
        host, port = self._listener.getsockname()[:2]
        place = f"[{host}]" if ":" in host else host
        return f"{'http' if self._settings.certificate is None else 'https'}://{place}:{port}"

    def _announce(self, service: Service) -> None:
        settings = self._settings
        keys = "none (loopback only)" if settings.keys is None else f"{len(settings.keys)} accepted"
        lines = [
            f"target {service.model} at {service.client.url}",
            service.about,
            f"keys: {keys}; TLS: {'off' if settings.certificate is None else 'on'}; "
            f"{service.parallel} answers at a time",
            f"live view: {self._url}/",
            f"ready: {self._url}/v1",
        ]
        print("\n".join(lines), file=sys.stderr, flush=True)
        if settings.as_json:
            from outrider.cli.report import print_json

            facts: dict[str, Any] = {
                "event": "ready",
                "url": f"{self._url}/v1",
                "page": f"{self._url}/",
                "model": service.model,
                "cloud": service.client.url,
                "mode": service.about,
                "pid": os.getpid(),
            }
            print_json(facts)
