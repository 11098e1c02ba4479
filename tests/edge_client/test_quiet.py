"""A cloud that is there and says nothing."""

from __future__ import annotations

import asyncio

import pytest

from outrider.edge_client import client as client_module
from outrider.edge_client.client import EdgeClient


def test_silence_is_mentioned_once_and_waited_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "QUIET", 0.01)
    edge = EdgeClient.__new__(EdgeClient)
    edge.notices = []

    async def wait() -> str:
        queue: asyncio.Queue[str] = asyncio.Queue()
        asyncio.get_running_loop().call_later(0.1, queue.put_nowait, "a word")
        return await edge._heard_from(queue)

    assert asyncio.run(wait()) == "a word"
    assert edge.notices == ["the cloud has said nothing for 0.01 s, still waiting"]
