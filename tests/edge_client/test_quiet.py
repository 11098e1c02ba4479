"""A cloud that is there and says nothing."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from outrider.edge_client import client as client_module
from outrider.edge_client.client import EdgeClient


def test_silence_is_mentioned_once_counted_and_waited_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client_module, "QUIET", 0.01)
    edge = EdgeClient.__new__(EdgeClient)
    edge.notices = Counter()

    async def wait() -> str:
        queue: asyncio.Queue[str] = asyncio.Queue()
        asyncio.get_running_loop().call_later(0.1, queue.put_nowait, "a word")
        return await edge._heard_from(queue)

    assert asyncio.run(wait()) == "a word"
    (said,) = edge.notices
    assert said == "the cloud has said nothing for 0.01 s, still waiting"
    assert edge.notices[said] > 1
    assert [record.getMessage() for record in caplog.records][:1] == [said]
    assert len(caplog.records) < edge.notices[said]
