"""The drafter goes on alone while the link is down; what it wrote is verified, or corrected."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from outrider.edge_client.answer import Piece
from outrider.edge_client.offline import UNVERIFIED, Unverified
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.errors import HandshakeError, LinkError, SettingError
from outrider.runtime.net.courier import Persistence

GREEDY, WARM = Sampling(), Sampling(temperature=1.0, seed=11)
BRIEF = Persistence(first=0.02, longest=0.1, give_up=0.4, silence=0.5)


def written(heard) -> list[Unverified]:
    return [event for event in heard.events if isinstance(event, Unverified)]


def away_for(world, seconds: float):
    """Trouble: no link for so long, while the answer goes on."""

    async def later() -> None:
        await asyncio.sleep(seconds)
        await world.back()

    async def trouble() -> None:
        await world.away()
        world.task = asyncio.create_task(later())

    return trouble


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "warm"])
@pytest.mark.parametrize("wrong", [0, 5], ids=["right", "sometimes wrong"])
def test_what_was_written_alone_is_verified_or_corrected(scene, take, ask, sampling, wrong) -> None:
    async def main() -> None:
        async with scene() as world, world.edge(wrong, offline=True) as edge:
            heard = await take(edge, edge.session(), ask(sampling), away_for(world, 0.3))
            assert heard.tokens == world.plain(sampling)
            answer, alone = heard.whole, written(heard)
            assert (answer.reason, answer.unverified, answer.unverified_tokens) == ("length", "", 0)
            assert answer.reconnects == 1
            assert answer.offline_tokens > 5
            assert (answer.corrected > 0) == bool(wrong)
            assert sum(event.corrected for event in alone) == answer.corrected
            assert not alone[0].linked
            assert alone[-1] == Unverified("", 0, True, alone[-1].over, alone[-1].corrected)

    asyncio.run(main())


def test_under_the_ratio_rule_the_cloud_writes_it_anew(scene, ask, caplog) -> None:
    """What was written alone has no rows: it is shown and corrected, but never sent as guesses."""

    async def main() -> None:
        async with scene() as world, world.edge(0, offline=True, rule="ratio") as edge:
            session, verified, alone = edge.session(), 0, 0
            async for event in edge.stream(session, ask(WARM)):
                if isinstance(event, Piece):
                    verified += len(event.tokens)
                    if verified >= 20 and not alone:
                        await world.away()
                        alone = -1
                elif isinstance(event, Unverified) and alone < 0 and event.tokens > 5:
                    alone = event.tokens
                    await world.back()
            assert (event.reason, event.rule, event.unverified) == ("length", "ratio", "")
            assert verified == len(event.ids) == len(session.ids) - session.prompt_len
            assert event.offline_tokens >= alone > 5

    asyncio.run(main())
    assert not [r for r in caplog.records if r.levelname == "ERROR"]


def test_right_text_is_verified_in_few_passes(scene, take, ask) -> None:
    """The cloud judges it like any other guesses: forty tokens do not take forty passes."""

    async def main() -> None:
        async with scene(step=0.02) as world, world.edge(0, offline=True) as edge:
            asked = ask(GREEDY, 60, objective="cost")
            heard = await take(edge, edge.session(), asked, away_for(world, 0.6), after=5)
            assert heard.tokens == world.plain(GREEDY)
            assert heard.whole.corrected == 0
            assert heard.whole.passes < 40
            assert max(len(e.tokens) for e in heard.events if isinstance(e, Piece)) > 6

    asyncio.run(main())


def test_verified_and_unverified_text_together_are_the_text(scene, take, ask) -> None:
    """At every moment, with a drafter that is right: no gap, nothing twice."""

    async def main() -> None:
        async with scene() as world, world.edge(0, offline=True) as edge:
            heard = await take(edge, edge.session(), ask(GREEDY), away_for(world, 0.3))
            whole, verified = heard.whole.text, ""
            for event in heard.events:
                if isinstance(event, Piece):
                    verified += event.text
                else:
                    shown = verified + event.text
                    assert whole.startswith(shown.rstrip("\N{REPLACEMENT CHARACTER}"))
            assert verified == whole
            grown = [event.tokens for event in written(heard) if not event.linked]
            assert all(a <= b for a, b in pairwise(grown))

    asyncio.run(main())


def test_from_the_start_where_nobody_listens(scene, take, ask) -> None:
    async def main() -> None:
        async with scene() as world:
            url = world.url
            await world.away()
            async with world.edge(5, offline=True, url=url) as edge:
                with pytest.raises(LinkError):
                    _ = edge.welcome
                asked = asyncio.create_task(take(edge, edge.session(), ask(WARM)))
                await asyncio.sleep(0.3)
                await world.back()
                heard = await asked
            assert heard.tokens == world.plain(WARM)
            assert heard.whole.offline_tokens > 5
            assert isinstance(heard.events[0], Unverified)

    asyncio.run(main())


@pytest.mark.parametrize("started", [True, False], ids=["lost", "never there"])
def test_a_link_that_never_returns(scene, take, ask, started: bool) -> None:
    async def main() -> None:
        async with scene() as world:
            url = world.url
            if not started:
                await world.away()
            async with world.edge(0, persistence=BRIEF, offline=True, url=url) as edge:
                session = edge.session()
                trouble = world.away if started else None
                heard = await take(edge, session, ask(GREEDY), trouble)
                answer, right = heard.whole, world.plain(GREEDY)
                assert answer.reason == UNVERIFIED
                assert list(answer.ids) == heard.tokens == right[: len(heard.tokens)]
                assert len(heard.tokens) + answer.unverified_tokens == len(right)
                decoded = b"".join(map(world.tokenizer.token_bytes, right))
                whole = decoded.decode("utf-8", "replace")
                assert whole.startswith(answer.text)
                assert whole.endswith(answer.unverified)
                assert written(heard)[-1].over

    asyncio.run(main())


def test_it_ends_where_the_answer_would(scene, take, ask) -> None:
    async def main() -> None:
        async with scene() as world, world.edge(0, persistence=BRIEF, offline=True) as edge:
            right = world.plain(GREEDY)
            whole = b"".join(map(world.tokenizer.token_bytes, right)).decode("utf-8", "replace")
            stop = b"".join(map(world.tokenizer.token_bytes, right[40:43])).decode()
            asked = ask(GREEDY, stops=(stop,))
            heard = await take(edge, edge.session(), asked, world.away, after=10)
            assert heard.whole.reason == UNVERIFIED
            assert heard.whole.text + heard.whole.unverified == whole[: whole.index(stop)]

    asyncio.run(main())


def test_two_sessions_at_once(scene, take, ask) -> None:
    async def main() -> None:
        async with scene() as world, world.edge(5, offline=True) as edge:
            first, second = await asyncio.gather(
                take(edge, edge.session(), ask(GREEDY), away_for(world, 0.4)),
                take(edge, edge.session(), ask(WARM, 90)),
            )
            assert first.tokens == world.plain(GREEDY)
            assert second.tokens == world.plain(WARM, 90)
            assert first.whole.offline_tokens > 0
            assert second.whole.offline_tokens > 0

    asyncio.run(main())


def test_a_link_that_comes_and_goes(scene, take, ask) -> None:
    async def main() -> None:
        async with scene() as world, world.edge(7, offline=True) as edge:

            async def flicker() -> None:
                for _ in range(4):
                    await world.back()
                    await asyncio.sleep(0.08)
                    await world.away()
                    await asyncio.sleep(0.1)
                await world.back()

            async def trouble() -> None:
                await world.away()
                world.task = asyncio.create_task(flicker())

            heard = await take(edge, edge.session(), ask(WARM, 150), trouble, after=5)
            assert heard.tokens == world.plain(WARM, 150)

    asyncio.run(main())


def test_the_next_answer_begins_clean(scene, take, ask) -> None:
    async def main() -> None:
        async with scene() as world, world.edge(5, persistence=BRIEF, offline=True) as edge:
            session = edge.session()
            lost = await take(edge, session, ask(GREEDY), world.away)
            assert lost.whole.reason == UNVERIFIED
            await world.back()
            heard = await take(edge, edge.session(), ask(WARM))
            assert heard.tokens == world.plain(WARM)
            again = await take(edge, session, ask(GREEDY))
            assert again.tokens == world.plain(GREEDY)
            assert again.whole.offline_tokens == 0

    asyncio.run(main())


def test_off_is_off(scene, take, ask) -> None:
    async def main() -> None:
        async with scene() as world, world.edge(0) as edge:
            heard = await take(edge, edge.session(), ask(GREEDY), away_for(world, 0.2))
            assert heard.tokens == world.plain(GREEDY)
            assert written(heard) == []
            with pytest.raises(SettingError, match="without a drafter"):
                world.edge(None, offline=True)

    asyncio.run(main())


def test_a_cloud_that_turns_out_wrong_is_refused(scene, take, ask) -> None:
    def refuse(welcome) -> None:
        raise HandshakeError(f"not {welcome.model}", code="model")

    async def main() -> None:
        async with scene() as world:
            url = world.url
            await world.away()
            async with world.edge(0, offline=True, url=url, accept=refuse) as edge:
                asked = asyncio.create_task(take(edge, edge.session(), ask(GREEDY)))
                await asyncio.sleep(0.1)
                await world.back()
                with pytest.raises(HandshakeError, match="not scripted"):
                    await asked

    asyncio.run(main())
