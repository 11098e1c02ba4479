"""A cloud that is full, and streams that are left early: nobody waits for nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from outrider.edge_client.answer import Answer
from outrider.edge_client.client import EdgeClient
from outrider.edge_client.patience import stream_patiently
from outrider.edge_client.policy import Fixed
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.errors import SessionError
from outrider.protocol.queue import Capacity


def full(world, usual: float) -> None:
    """One answer at a time, and nobody waits; answers take so long, it is thought."""
    table = world.verifier.table
    capacity = Capacity(answers=1, ids=1 << 20, waiting=0, n_ctx=1 << 16)
    table.config = replace(table.config, capacity=capacity)
    table.queue.capacity, table.queue.usual = capacity, usual


def test_an_answer_that_was_refused_is_asked_for_again(scene, ask, tokenizer) -> None:
    async def main() -> None:
        async with scene() as world:
            full(world, 1.0)
            async with EdgeClient(world.url, tokenizer, None, Fixed(1)) as edge:
                first = edge.stream(edge.session(), ask(Sampling(), tokens=200))
                await anext(first)
                second = edge.session()
                with pytest.raises(SessionError, match="try again in 1 s") as caught:
                    async for _ in stream_patiently(edge, second, ask(Sampling()), seconds=0.5):
                        pass
                assert (caught.value.code, caught.value.retry_after) == ("busy", 1.0)
                patient = stream_patiently(edge, second, ask(Sampling()), seconds=20.0)
                waiting = asyncio.create_task(whole(patient))
                await whole(first)
                assert list((await waiting).ids) == world.plain(Sampling())

    asyncio.run(main())


async def whole(stream) -> Answer:
    async for event in stream:
        last = event
    assert isinstance(last, Answer)
    return last


def test_a_stream_left_early_takes_nothing_from_the_next_on_its_handle(
    scene, ask, tokenizer
) -> None:
    async def main() -> None:
        async with scene() as world, EdgeClient(world.url, tokenizer, None, Fixed(1)) as edge:
            old = edge.session()
            left = edge.stream(old, ask(Sampling()))
            await anext(left)
            edge.machine.close(old)
            new = edge.session()
            assert new.handle == old.handle
            following = edge.stream(new, ask(Sampling()))
            await anext(following)
            await left.aclose()  # as late as the collector of garbage may do it
            await asyncio.wait_for(whole(following), 10)

    asyncio.run(main())
