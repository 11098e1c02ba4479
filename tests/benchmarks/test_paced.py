"""A paced drafter takes its time, and can be stopped between two guesses."""

from __future__ import annotations

import time
from collections.abc import Callable

from outrider.protocol.decoding.sampling import Sampling
from outrider.runtime.lm.drafter import Drafter
from outrider.simulator.lm import DrafterLM, RememberedTarget
from outrider.simulator.paced import PacedDrafter
from outrider.simulator.settings import DrafterSettings, WorldSettings

STEP = 0.02


def lm() -> DrafterLM:
    return DrafterLM(RememberedTarget(WorldSettings()), DrafterSettings())


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def test_it_guesses_what_it_would_and_takes_its_time() -> None:
    plain = Drafter(lm(), 16)
    paced = PacedDrafter(lm(), 16, frozenset(), step=STEP, rate=100.0)
    ids = [1, 2, 3]
    expected = plain.draft(ids, 3, Sampling(), 3)
    started = time.perf_counter()
    assert paced.draft(ids, 3, Sampling(), 3) == expected
    assert time.perf_counter() - started >= 2 / 100.0 + 3 * STEP  # two ids to read, three guesses
    assert seconds(lambda: paced.draft([*ids, *expected.tokens[:2]], 3, Sampling(), 1)) >= STEP


def test_it_reads_at_its_rate() -> None:
    paced = PacedDrafter(lm(), 16, frozenset(), step=STEP, rate=100.0)
    ids = [1, 2, 3, 4, 5, 6]
    assert seconds(lambda: paced.prefill(ids, 4)) >= 0.04
    assert paced.behind(ids) == 2


def test_it_stops_between_guesses() -> None:
    paced = PacedDrafter(lm(), 16, frozenset(), step=STEP, rate=1e6)
    asked: list[float] = []

    def stop() -> bool:
        asked.append(time.perf_counter())
        return len(asked) == 2

    assert len(paced.draft([1, 2], 2, Sampling(), 8, stop=stop).tokens) == 2
    assert len(asked) == 2
