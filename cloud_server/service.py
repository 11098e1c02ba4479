"""A verifier as an operator sees it: it listens while it loads, reloads keys, tells how it is."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.cloud_server.journal import Journal
from outrider.cloud_server.metrics import CloudMetrics
from outrider.cloud_server.status import Status
from outrider.protocol.errors import OutriderError
from outrider.runtime.net.keys import KeyFile
from outrider.runtime.net.server import Server, serve

if TYPE_CHECKING:
    from outrider.cloud_server.driver import ServiceSettings, Verifier
    from outrider.cloud_server.engine import Forward
    from outrider.runtime.net.link import Link

SWEEP = 1.0
"""Seconds between two looks for links whose key has expired."""

METRICS_PATH, STATUS_PATH = "/metrics", "/status"

_log = logging.getLogger("outrider.cloud")


class Service:
    """Owns the sockets; the verifier comes when its model is loaded.

    ``metrics_port``: a second one, on loopback alone and without a key, for the pages.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        *,
        key_file: Path | None = None,
        metrics_port: int | None = None,
        log_prompts: bool = False,
    ) -> None:
        self.settings = settings
        self.verifier: Verifier | None = None
        self._key_file, self._metrics_port = key_file, metrics_port
        self._log_prompts = log_prompts
        self._server: Server | None = None
        self._pages: Server | None = None
        self._metrics: CloudMetrics | None = None
        self._status: Status | None = None
        self._sweeper: asyncio.Task[None] | None = None

    # --- life -------------------------------------------------------------------------------

    async def listen(self) -> Server:
        """Answer from now on: 503 until :meth:`begin`.

        Raises:
            SettingError: the address is in use, or open to the world without key and certificate.
        """
        settings = self.settings
        self._server = await serve(
            self._handle,
            settings.host,
            settings.port,
            keys=settings.keys,
            context=settings.tls,
            max_connections=settings.max_connections,
            loading=self._loading,
            draining=self._draining,
            make_room=self._make_room,
            pages={METRICS_PATH: self._metrics_page, STATUS_PATH: self._status_page},
        )
        if self._metrics_port is not None:
            self._pages = await serve(
                self._handle,
                port=self._metrics_port,
                loading=self._loading,
                draining=self._draining,
                pages={METRICS_PATH: self._metrics_page, STATUS_PATH: self._status_page},
                stream=False,
            )
        return self._server

    async def begin(self, verifier: Verifier) -> None:
        """The model is loaded: let edges in.

        Raises:
            BackendError: a library for the metrics is missing.
        """
        assert self._server is not None
        loop = asyncio.get_running_loop()
        self._metrics = CloudMetrics(verifier, self._server)
        self._status = Status(verifier, self._server, loop.time())
        verifier.passed = self._passed
        journal = Journal(verifier.tokenizer.decode if self._log_prompts else None)
        verifier.table.on_open, verifier.table.on_end = journal.opened, journal.ended
        self._server.limit(verifier.max_message)
        await verifier.start(self._server)
        self.verifier = verifier
        self._sweeper = asyncio.create_task(self._sweep(), name="sweeper")

    @property
    def failed(self) -> BaseException | None:
        """What the engine died of, if it did."""
        return self.verifier.failed if self.verifier is not None else None

    async def ended(self) -> None:
        """Wait until it has."""
        if self.verifier is not None:
            await self.verifier.ended()

    async def stop(self, *, drain: bool = True) -> None:
        """Finish what is under way, as :meth:`Verifier.stop`; then close the sockets."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        if self.verifier is not None:
            await self.verifier.stop(drain=drain)
        elif self._server is not None:
            await self._server.close()
        if self._pages is not None:
            await self._pages.close(grace=0.5)

    # --- keys -------------------------------------------------------------------------------

    def reload(self) -> None:
        """Read the key file again. One that cannot be read changes nothing, and is said."""
        if self._key_file is None or self._server is None:
            _log.warning("there is no key file to read again")
            return
        try:
            keys = KeyFile.load(self._key_file, empty=True)
        except OutriderError as error:
            _log.error("the keys stay as they were: %s", error)
            return
        self.settings = replace(self.settings, keys=keys)
        if self.verifier is not None:
            self.verifier.table.quotas = keys.quotas
        dropped = self._server.replace_keys(keys)
        _log.warning("keys were read again: %d accepted, %d links dropped", len(keys), dropped)

    async def _sweep(self) -> None:
        assert self._server is not None
        while True:
            await asyncio.sleep(SWEEP)
            if dropped := self._server.sweep():
                _log.warning("%d links of expired keys were dropped", dropped)

    # --- what the door asks -----------------------------------------------------------------

    async def _handle(self, link: Link) -> None:
        if self.verifier is not None:
            await self.verifier.handle(link)

    def _loading(self) -> bool:
        return self.verifier is None

    def _draining(self) -> bool:
        return self.verifier is not None and self.verifier.table.closing

    def _make_room(self, key_name: str | None) -> bool:
        return self.verifier is not None and self.verifier.make_room(key_name)

    def _passed(self, work: Forward) -> None:
        now = asyncio.get_running_loop().time()
        if self._metrics is not None and self._status is not None:
            self._metrics.passed(work, now)
            self._status.passed(work, now)

    def _metrics_page(self) -> tuple[str, str]:
        return self._metrics.page() if self._metrics else ("text/plain", "")

    def _status_page(self) -> tuple[str, str]:
        if self._status is None:
            facts: dict[str, object] = {"state": "loading"}
        else:
            facts = self._status.facts(asyncio.get_running_loop().time())
        return "application/json", json.dumps(facts) + "\n"
