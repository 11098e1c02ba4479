"""What passes cost before anybody came: real passes of a target, and a slot left as it was."""

from __future__ import annotations

import asyncio
from importlib.resources import files
from pathlib import Path

from outrider.cloud_server.driver import ServiceSettings, Verifier
from outrider.cloud_server.rehearsal import SIZES, rehearse
from outrider.cloud_server.replay import plain
from outrider.cloud_server.targets.scripted import ScriptedTarget
from outrider.protocol.decoding.sampling import Sampling
from outrider.runtime.text.tokenizer import load_tokenizer
from outrider.simulator.paced import PacedTarget

MODELS = Path(str(files("outrider.models")))


def test_all_sizes_are_timed() -> None:
    target = ScriptedTarget(vocabulary=64, n_ctx=256)
    found = rehearse(PacedTarget(target, 0.002), 5.0)
    assert [size for size, _ in found] == list(SIZES)
    assert all(0.002 <= seconds < 1.0 for _, seconds in found)
    prompt = [1, 2, 3]
    assert plain(target, prompt, Sampling(), 8) == plain(
        ScriptedTarget(vocabulary=64, n_ctx=256), prompt, Sampling(), 8
    )


def test_a_slow_target_is_not_timed_for_long() -> None:
    found = rehearse(PacedTarget(ScriptedTarget(vocabulary=64, n_ctx=256), 0.02), 0.001)
    assert [size for size, _ in found] == list(SIZES[:2])


def test_a_small_context() -> None:
    assert rehearse(ScriptedTarget(vocabulary=64, n_ctx=16), 1.0) == []


def test_the_figures_are_told_to_whoever_connects() -> None:
    tokenizer = load_tokenizer(MODELS / "drafter")

    async def told() -> tuple[tuple[float, float], ...]:
        target = PacedTarget(ScriptedTarget(vocabulary=tokenizer.size), 0.001)
        verifier = Verifier(target, tokenizer, ServiceSettings(port=0, rehearse=1.0))
        await verifier.start()
        try:
            return verifier.table.pass_times
        finally:
            await verifier.stop(drain=False)

    assert [tokens for tokens, _ in asyncio.run(told())] == list(SIZES)
