"""The rules on arrays choose exactly what the plain ones do, one request after the other."""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.cloud_server.scheduling.batch import Caps, Rank, Request
from outrider.cloud_server.scheduling.policies import SchedulerName
from outrider.cloud_server.scheduling.step_time import StepTime
from outrider.cloud_server.scheduling.steps import Ask, StepScheduler

INF = float("inf")


def beside(name: str) -> ModuleType:
    """A module of this folder: tests are no package."""
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


POLICIES, STEPS = beside("plain_policies"), beside("plain_steps")


def drawn(rng: random.Random, count: int, ranks: list[Rank]) -> list[Ask]:
    """Sessions of some keys: prompts, guesses that are likely and not, answers early and late."""
    asks, weights = [], rng.choice(((1.0,), (1.0,), (0.5, 1.0, 3.0)))
    for _ in range(count):
        rank, alpha = rng.choice(ranks), rng.uniform(0.02, 0.99)
        guesses = rng.randrange(1, 17) if rank is Rank.VERIFY else 0
        request = Request(
            rank=rank,
            tokens=rng.randrange(1, 300) if rank is Rank.PREFILL else 1,
            reach=tuple(alpha ** (i + 1) for i in range(guesses)),
            context=rng.choice((0, 100, rng.randrange(1, 4000))),
            since=rng.choice((0.0, rng.uniform(0, 9))),
            weight=rng.choice(weights),
        )
        pace = rng.choice(((0.0, 0.0), (rng.uniform(0.01, 9), float(rng.randrange(1, 256)))))
        asks.append(Ask(request, rng.choice("abc"), pace, rng.choice((0.0, rng.uniform(0, 1)))))
    return asks


def target(rng: random.Random) -> StepTime:
    times = StepTime()
    times.fixed = rng.choice((0.0, 0.004, 0.022, 0.6))
    times.row = rng.choice((0.0, 0.00008, rng.uniform(0, 0.005)))
    times.each = rng.choice((0.0, 0.00003, 0.00024, rng.uniform(0, 0.01)))
    times.padded = rng.choice((0.0, 0.0, 4e-8, 4e-6))
    return times


@pytest.mark.parametrize("name", ["cosine", "fifo"])
@settings(max_examples=700, deadline=None)
@given(
    seed=st.integers(0, 2**64),
    count=st.integers(2, 12) | st.integers(2, 90),
    ranks=st.lists(st.sampled_from(list(Rank)), min_size=1, max_size=8),
)
def test_the_same_is_chosen(name: SchedulerName, seed: int, count: int, ranks: list[Rank]) -> None:
    rng = random.Random(seed)
    caps = Caps(
        tokens=rng.choice((1, 40, 300, 2048)),
        seconds=rng.choice((INF, 0.4, 0.03)),
        memory=rng.choice((INF, INF, 50)),
    )
    quick, plain = StepScheduler(name, caps), STEPS.PlainScheduler(POLICIES, name, caps)
    quick.control.allowed = plain.control.allowed = rng.choice((8, 50, 4096))
    used = {key: rng.uniform(0, 1) for key in "abc"[: rng.randrange(4)]}
    quick.shares.charge(used, 0.0)
    plain.shares.charge(used, 0.0)
    for _ in range(3):  # what is learned in a step decides in the next
        asks, times = drawn(rng, count, ranks), target(rng)
        # In order: rows are evaluated in it.
        chosen = list(quick.choose(asks, times).items())
        assert chosen == list(plain.choose(asks, times).items())
        assert quick.loads == pytest.approx(plain.loads, rel=1e-9)
        assert quick.load == pytest.approx(plain.load, rel=1e-9)
        assert quick.control.allowed == plain.control.allowed
