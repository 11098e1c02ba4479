"""The draft model beside the target in the running service: over a socket, on the same thread."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

import pytest

from outrider.cloud_server.driver import ServiceSettings, Verifier
from outrider.cloud_server.planner import EngineSettings
from outrider.cloud_server.replay import plain
from outrider.cloud_server.targets.scripted import ScriptedTarget
from outrider.edge_client.answer import Answer
from outrider.edge_client.client import EdgeClient
from outrider.edge_client.policy import Fixed
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.errors import SettingError
from outrider.protocol.request import Request
from outrider.runtime.lm.drafter import Drafter
from outrider.runtime.text.tokenizer import Tokenizer
from outrider.simulator.lm import DrafterLM
from outrider.simulator.paced import PacedTarget
from outrider.simulator.settings import DrafterSettings

SIZE = 40
PROMPT = (1, 2, 3)
TOKENS = 60
SAMPLED = Sampling(temperature=1.0, seed=7)


class Letters(Tokenizer):
    """One byte a token."""

    def __init__(self, first: int = 48) -> None:
        self.name = "letters"
        self.entries = tuple(bytes([first + i]) for i in range(SIZE))
        self.specials = {}
        self.eos = frozenset()
        self.bos, self.adds_bos, self.chat, self.warnings = None, False, None, []

    def _encode(self, text: str, special: bool) -> list[int]:
        return [self.entries.index(bytes([byte])) for byte in text.encode()]


def script() -> ScriptedTarget:
    return ScriptedTarget(vocabulary=SIZE, seed=3, order=2, n_ctx=200)


def drafter(**settings) -> Drafter:
    return Drafter(DrafterLM(script(), DrafterSettings(**settings)), SIZE)


@dataclass
class Served:
    answer: Answer
    verifier: Verifier


def serve(own: Drafter, sampling: Sampling, **more) -> Served:
    """One answer of a verifier with this draft model, for an edge that has none."""

    async def run() -> Served:
        settings = ServiceSettings(port=0, engine=EngineSettings(lookup=0), **more)
        verifier = Verifier(PacedTarget(script(), 0.004), Letters(), settings, (own, Letters()))
        server = await verifier.start()
        try:
            async with EdgeClient(server.url, Letters(), None, Fixed(1)) as edge:
                request = Request(ids=PROMPT, max_tokens=TOKENS, sampling=sampling)
                async for event in edge.stream(edge.session(), request):
                    if isinstance(event, Answer):
                        return Served(event, verifier)
        finally:
            await verifier.stop()
        raise AssertionError("no answer")

    return asyncio.run(run())


@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED], ids=["greedy", "coupled"])
@pytest.mark.parametrize("kind", ["good", "bad"])
def test_the_text_is_the_targets(kind: str, sampling: Sampling) -> None:
    served = serve(drafter(kind=kind), sampling)
    assert list(served.answer.ids) == plain(script(), list(PROMPT), sampling, TOKENS)
    stats = served.verifier.engine.stats
    assert stats.own_drafts > 0
    if kind == "good":
        assert served.answer.passes < TOKENS / 2
        assert stats.own_accepted_tokens > TOKENS / 2
    assert stats.num_draft_tokens == 0


def test_one_that_dies_is_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="outrider.cloud"):
        served = serve(drafter(dies_after=8), Sampling())
    assert list(served.answer.ids) == plain(script(), list(PROMPT), Sampling(), TOKENS)
    assert [r.message for r in caplog.records if "draft model failed" in r.message] == [
        "the draft model failed and is off from now on: the drafter died"
    ]


def test_one_that_is_too_small_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="outrider.cloud"):
        served = serve(drafter(n_ctx=24), Sampling())
    assert list(served.answer.ids) == plain(script(), list(PROMPT), Sampling(), TOKENS)
    assert len([r for r in caplog.records if "has outgrown" in r.message]) == 1


def test_none_of_its_guesses_is_none() -> None:
    assert serve(drafter(), Sampling(), draft_max=0).verifier.engine.own is None


def test_another_tokenizer_is_refused() -> None:
    with pytest.raises(SettingError, match="id 0: '0' here, '1' there"):
        Verifier(script(), Letters(), ServiceSettings(), (drafter(), Letters(first=49)))
