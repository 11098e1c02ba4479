"""Drafters for others in this process, on real sockets, and members that meet them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from outrider.edge_client.group.remote import Lan, RemoteMember, RemoteSettings
from outrider.edge_client.group.sequences import Sequences, sequences
from outrider.edge_client.group.service import DrafterService, DrafterSettings
from outrider.protocol.errors import OutriderError
from outrider.protocol.fingerprint import Vocabulary
from outrider.runtime.lm.factory import load_lm
from outrider.runtime.text.fingerprint import describe
from outrider.runtime.text.tokenizer import load_tokenizer

PACK = Path(str(files("outrider.models"))) / "drafter"


def until(true: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for what comes about by itself."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)


class Network:
    """Services on a loop in a thread, and members that were made to meet them."""

    def __init__(self) -> None:
        self.tokenizer = load_tokenizer(PACK)
        self.vocabulary = describe(self.tokenizer)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="drafters")
        self._thread.start()
        self.services: list[DrafterService] = []
        self.members: list[RemoteMember] = []

    def run(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def serve(
        self,
        made: Sequences | None = None,
        vocabulary: Vocabulary | None = None,
        backend: str = "llama",
        count: int = 4,
        **settings: object,
    ) -> tuple[DrafterService, str]:
        """A service with the embedded drafter, and its address."""
        service = DrafterService(DrafterSettings(**settings))  # type: ignore[arg-type]
        server = self.run(service.listen())
        made = made or sequences(load_lm(PACK, backend, n_seq=count).lm, count)
        self.run(service.begin((made, vocabulary or self.vocabulary)))
        self.services.append(service)
        return service, server.url

    def stop(self, service: DrafterService) -> None:
        self.services.remove(service)
        self.run(service.stop(drain=False))

    def meet(self, url: str, lan: Lan | None = None, key: str | None = None) -> RemoteMember:
        """A member, connected if it is there."""
        settings = RemoteSettings(
            url=url,
            key=key,
            fingerprint=self.vocabulary.fingerprint(),
            usable=self.tokenizer.size,
        )
        member = RemoteMember(settings, lan or Lan())
        self.members.append(member)
        try:
            member.wait(20)
        except OutriderError:
            self.leave(member)
            raise
        return member

    def leave(self, member: RemoteMember) -> None:
        self.members.remove(member)
        member.close()

    def close(self) -> None:
        for member in list(self.members):
            self.leave(member)
        for service in list(self.services):
            self.stop(service)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


@pytest.fixture
def network() -> Iterator[Network]:
    found = Network()
    yield found
    found.close()
