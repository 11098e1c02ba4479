"""A session's ids are the same alone and among many that come, go, cancel and roll back.

Real transformers target, real engine; the clock is a number.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import msgspec
import pytest

pytest.importorskip("transformers")

from outrider.cloud_server.engine import CloudEngine, Forward
from outrider.cloud_server.planner import EngineSettings
from outrider.cloud_server.replay import audit, plain
from outrider.cloud_server.targets.base import Target
from outrider.cloud_server.targets.transformers import TransformersTarget
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.messages import Draft, EpochStart, Open
from outrider.protocol.session import CloudSession
from outrider.protocol.table import SessionTable
from outrider.simulator.pair import LIMITS, config, letters

VOCABULARY = 60
OTHERS = 32
PASS = 0.03
SAMPLINGS = (
    Sampling(),
    Sampling(temperature=1.0, seed=11),
    Sampling(temperature=0.7, top_k=12, top_p=0.9, repetition_penalty=1.2, seed=5),
)


@dataclass
class Guest:
    """One session and what the target alone would answer."""

    name: bytes
    prompt: list[int]
    sampling: Sampling
    truth: list[int]
    session: CloudSession

    def said(self) -> list[int]:
        return self.session.ids[len(self.prompt) :]


class Crowd:
    """An engine over ``target``, and users who are chosen at random."""

    def __init__(self, target: Target, alone: Target, seed: int) -> None:
        self.target, self.alone = target, alone
        self.rng = random.Random(seed)
        limits = msgspec.structs.replace(LIMITS, max_sessions=1000)
        self.table = SessionTable(config(letters(VOCABULARY), limits))
        settings = EngineSettings(lookup=4, prefill_chunk=16)
        info = target.info
        self.engine = CloudEngine(self.table, info, frozenset(), lambda i: bytes([i]), settings)
        self.now = 0.0
        self.widest = 0

    def join(self, name: bytes, length: int, sampling: Sampling, tokens: int) -> Guest:
        prompt = [self.rng.randrange(VOCABULARY) for _ in range(length)]
        truth = plain(self.alone, prompt, sampling, tokens)
        session = self.table.obtain(name, b"secret", "", self.now)
        session.bind("link", session.n + 1, 0)
        request = Open(
            handle=0,
            session=name,
            secret=b"secret",
            n=session.n,
            answer=1,
            base=0,
            digest=session.digests.at(0),
            prompt_len=length,
            ids=tuple(prompt),
            max_tokens=tokens,
            sampling=sampling,
        )
        session.open(request, prompt, length, "latency")
        return Guest(name, prompt, sampling, truth, session)

    def guess(self, guest: Guest) -> None:
        """Guesses of which some are right: the rest is rolled back."""
        session, done = guest.session, len(guest.said())
        if not session.running:
            return
        tokens = guest.truth[done : done + self.rng.randint(1, 7)]
        tokens = [t if self.rng.random() < 0.8 else self.rng.randrange(VOCABULARY) for t in tokens]
        epoch, base = session.window.last_epoch + 1, len(session.ids)
        start = EpochStart(answer=session.answer & 0xFF, base=base, digest=session.digests.at(base))
        session.draft(Draft(epoch=epoch & 0xFF, start=start, tokens=tuple(tokens)), self.now, 64)

    def step(self) -> bool:
        work = self.engine.next(self.now)
        if not isinstance(work, Forward):
            until = getattr(work, "until", None)
            self.now = max(self.now + 0.001, until or 0.0)
            return False
        self.widest = max(self.widest, len(work.rows))
        result = self.target.forward(work.rows)
        self.now += PASS
        self.engine.done(work, result, self.now)
        return True


def run(target: Target, alone: Target, seed: int, *, others: int, tokens: int) -> list[Guest]:
    """Three watched sessions to their end, with ``others`` around them; all guests, those first."""
    crowd = Crowd(target, alone, seed)
    watched = [
        crowd.join(b"w%d" % i, 9 + 14 * i, sampling, tokens) for i, sampling in enumerate(SAMPLINGS)
    ]
    crowd.rng = random.Random(seed + 1)
    crowd_now: dict[int, Guest] = {}
    gone: list[Guest] = []
    while any(guest.session.active for guest in watched):
        for guest in (*watched, *crowd_now.values()):
            if crowd.rng.random() < 0.5:
                crowd.guess(guest)
        for seat in range(others):
            chance = crowd.rng.random()
            guest = crowd_now.get(seat)
            if guest is None:
                if chance < 0.5:
                    sampling = crowd.rng.choice(SAMPLINGS)
                    name, length = b"%d.%d" % (seat, len(gone)), crowd.rng.randint(1, 40)
                    crowd_now[seat] = crowd.join(name, length, sampling, crowd.rng.randint(3, 20))
            elif not guest.session.active or chance < 0.04:  # its end, or it leaves or cancels
                if chance < 0.02:
                    crowd.table.drop(guest.session, crowd.now)
                else:
                    guest.session.cancel(1)
                gone.append(crowd_now.pop(seat))
        crowd.step()
    assert crowd.widest > others * 0.7 or not others
    return [*watched, *gone, *crowd_now.values()]


@pytest.fixture(scope="module")
def crowded(toy):
    return TransformersTarget.load(str(toy), slots=OTHERS + 3, threads=1)


@pytest.fixture(scope="module")
def oracle(toy):
    return TransformersTarget.load(str(toy), slots=1, threads=1, batched=False)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_alone_and_in_a_crowd_float32(crowded, oracle, seed):
    alone = run(crowded, oracle, seed, others=0, tokens=60)
    among = run(crowded, oracle, seed, others=OTHERS, tokens=60)
    for guest, same in zip(alone, among[: len(alone)], strict=True):
        assert guest.prompt == same.prompt
        assert guest.said() == same.said() == guest.truth
    assert len(among) > 2 * OTHERS
    for guest in among:
        assert guest.said() == guest.truth[: len(guest.said())], guest.name


def test_in_a_crowd_bfloat16_only_near_ties_differ(toy):
    target = TransformersTarget.load(str(toy), dtype="bfloat16", slots=OTHERS + 3, threads=1)
    oracle = TransformersTarget.load(str(toy), dtype="bfloat16", slots=1, threads=1, batched=False)
    guests = run(target, oracle, 3, others=OTHERS, tokens=30)
    # The logits of this model spread by about 6; half of one is rounding of eight bits.
    audits = [
        audit(oracle, guest.prompt, guest.said(), guest.sampling, tolerance=0.5)
        for guest in guests
        if guest.sampling.temperature in (0.0, 1.0) and guest.said()
    ]
    assert all(found.exact for found in audits)
    ties, tokens = sum(a.near_ties for a in audits), sum(a.tokens for a in audits)
    assert ties < 0.05 * tokens, f"{ties} of {tokens}"
