"""The public API: what it gives, what it refuses, and what others can add to it."""

from __future__ import annotations

import asyncio
from importlib.metadata import EntryPoint

import numpy as np
import pytest

from outrider.edge_client import api
from outrider.edge_client.answer import Answer
from outrider.edge_client.api import AsyncOutrider, Outrider
from outrider.edge_client.policy import Fixed
from outrider.protocol.errors import BackendError, LinkError, SessionError, SettingError
from outrider.runtime import plugins


class OwnPolicy(Fixed):
    """What a package might register."""

    def __init__(self) -> None:
        super().__init__(3)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entry points of a package that is not there."""
    here = EntryPoint("own", f"{__name__}:OwnPolicy", api.POLICIES)
    broken = EntryPoint("broken", "no.such.module:Thing", api.POLICIES)
    found = [here, broken]
    monkeypatch.setattr(
        plugins, "entry_points", lambda group: [e for e in found if e.group == group]
    )
    monkeypatch.setattr(EntryPoint, "load", _load)


def _load(entry: EntryPoint) -> object:
    if entry.name == "broken":
        raise ImportError("no module named no")
    return OwnPolicy


def test_a_policy_by_its_registered_name(registered) -> None:
    assert isinstance(AsyncOutrider(policy="own")._policy, OwnPolicy)
    with pytest.raises(SettingError, match=r"'other' is not registered .*: broken, own"):
        AsyncOutrider(policy="other")
    with pytest.raises(BackendError, match="'broken' of outrider.policies does not load"):
        AsyncOutrider(policy="broken")


def test_a_drafter_that_nobody_registered() -> None:
    with (
        pytest.raises(SettingError, match="not registered in outrider.drafters"),
        Outrider("ws://127.0.0.1:9", drafter="magic"),
    ):
        raise AssertionError("it must not come to this")


def test_mistakes_are_told_before_anything_is_sent(scene) -> None:
    async def main() -> None:
        async with scene() as world, AsyncOutrider(world.url, draft=False) as client:
            for more, said in (
                ({"temp": 1}, "temp: no such setting"),
                ({"temperature": -1}, "temperature is -1"),
            ):
                with pytest.raises(SettingError, match=said):
                    await client.ask("text", **more)
            with pytest.raises(SettingError, match="the prompt is empty"):
                await client.ask("")
            with pytest.raises(SettingError, match="messages is empty"):
                await client.ask([])
            assert (await client.ask("text", max_tokens=3, ignore_eos=True)).reason == "length"

    asyncio.run(main())


def test_texts_and_chats_and_what_a_session_keeps(scene) -> None:
    async def main() -> None:
        async with scene(step=0.0) as world, AsyncOutrider(world.url, draft=False) as client:
            first = await client.ask("some words", max_tokens=8, ignore_eos=True)
            assert client._pool is not None
            session = client._pool._idle[0]
            await client.ask("some words" + first.text, max_tokens=4, ignore_eos=True)
            assert client._pool._idle == [session]
            chat = [{"role": "user", "content": "some words"}]
            answer = await client.ask(chat, max_tokens=4, ignore_eos=True)
            assert answer.prompt_ids == tuple(world.tokenizer.encode_chat(chat))
            sampled = [
                (await client.ask("x", temperature=1, seed=5, top_k=9, max_tokens=6)).ids
                for _ in range(2)
            ]
            assert sampled[0] == sampled[1]

    asyncio.run(main())


def test_log_probabilities(scene) -> None:
    async def main() -> None:
        async with scene(step=0.0) as world, AsyncOutrider(world.url, draft=False) as client:
            settings = {"max_tokens": 6, "ignore_eos": True, "temperature": 1.0, "seed": 3}
            plain = await client.ask("some words", **settings)
            told = await client.ask("some words", logprobs=2, **settings)
            assert plain.logprobs is None
            assert told.ids == plain.ids
            assert told.logprobs is not None
            assert len(told.logprobs) == 6
            pieces = [e async for e in client.stream("some words", logprobs=2, **settings)]
            assert [v for p in pieces[:-1] for v in p.logprobs] == list(told.logprobs)
            text = [*told.prompt_ids]
            for token, value in zip(told.ids, told.logprobs, strict=True):
                row = world.verifier.target.inner.row(text)[: world.tokenizer.size]
                row = row.astype(np.float64)
                expected = row - np.log(np.exp(row - row.max()).sum()) - row.max()
                assert value.logprob == pytest.approx(expected[token], abs=1e-5)
                assert value.top[0][0] == int(row.argmax())
                text.append(token)

    asyncio.run(main())


def test_text_of_a_schema(scene) -> None:
    pytest.importorskip("llguidance")

    async def main() -> None:
        async with scene(step=0.0) as world, AsyncOutrider(world.url, draft=False) as client:
            answer = await client.ask("some words", max_tokens=40, schema={"enum": [7, True]})
            assert answer.text in ("7", "true")
            assert answer.reason == "stop"
            with pytest.raises(SessionError, match="uniqueItems") as refused:
                await client.ask("x", schema={"type": "array", "uniqueItems": True})
            assert refused.value.code == "grammar"

    asyncio.run(main())


def test_leaving_a_stream_early_cancels_it(scene) -> None:
    async def main() -> None:
        async with scene(step=0.01) as world, AsyncOutrider(world.url, draft=False) as client:
            stream = client.stream("some words", max_tokens=500, ignore_eos=True)
            async for _ in stream:
                break
            await stream.aclose()
            for _ in range(100):
                if not any(s.running for s in world.verifier.table.sessions.values()):
                    break
                await asyncio.sleep(0.02)
            assert not any(s.running for s in world.verifier.table.sessions.values())
            assert client._pool is not None
            assert client._pool.idle == 0

    asyncio.run(main())


def test_without_async(scene) -> None:
    async def main() -> None:
        async with scene(step=0.0) as world:
            await asyncio.to_thread(blocking, world.url)

    def blocking(url: str) -> None:
        with Outrider(url, draft=False) as client:
            assert client.model == "scripted"
            whole = client.ask("some words", max_tokens=8, ignore_eos=True)
            events = list(client.stream("some words", max_tokens=8, ignore_eos=True))
            assert isinstance(events[-1], Answer)
            assert "".join(e.text for e in events[:-1]) == whole.text == events[-1].text
            for _ in client.stream("some words", max_tokens=500, ignore_eos=True):
                break
            assert client.ask("some words", max_tokens=8, ignore_eos=True).ids == whole.ids
        with pytest.raises(LinkError), Outrider("ws://127.0.0.1:9", draft=False):
            pass
        with pytest.raises(SettingError, match="not connected"):
            _ = AsyncOutrider().model

    asyncio.run(main())
