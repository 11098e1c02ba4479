"""Which rule is quickest at which uplink rate: whole sessions of real models in virtual time.

Both ends run as they are, engines, machines and policies; the models are the embedded pair,
evaluated for real, sampled at temperature 1. What a pass costs and the link are assumed: class (a),
60 ms round trip, headers of 80 bytes a packet, the same rate both ways. Ids travel as those of a
vocabulary of 151,936, so rows have the size that they have with the large models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from outrider.benchmarks.cos import Models, PairWorld
from outrider.benchmarks.strategies import MACHINES
from outrider.edge_client.policy import Plan
from outrider.protocol.decoding.sampling import Sampling
from outrider.simulator.links import Direction, Link
from outrider.simulator.settings import Costs, DrafterSettings, EdgeSettings, Turn, WorldSettings
from outrider.simulator.world import World

RATES = (50e3, 100e3, 250e3, 500e3, 1e6, 5e6, 20e6, 100e6)
"""Uplink rates, bits a second."""

DELAY = 0.03
HEADERS = 80
SIZE = 151_936

LOCKSTEP = Plan(4, 4)
WAYS: dict[str, tuple[bool, Plan | None]] = {
    "coupled, lockstep 4": (False, LOCKSTEP),
    "ratio, lockstep 4": (True, LOCKSTEP),
    "coupled": (False, None),
    "ratio": (True, None),
}
"""The rule, and the plan if it is not the policy's own."""


def measured(
    found: Models, note: Callable[[str], None], rates: Sequence[float] = RATES, tokens: int = 96
) -> list[dict[str, Any]]:
    """For each rate the tokens a second of every way, and the winner."""
    rows = []
    for rate in rates:
        note(f"rules at {rate / 1e3:g} kbit/s: real sessions in virtual time")
        speeds: dict[str, float] = {"cloud": _speed(found, rate, None, tokens=tokens)[0]}
        share: dict[str, float] = {}
        for name, (ratio, plan) in WAYS.items():
            speeds[name], share[name] = _speed(found, rate, plan, ratio=ratio, tokens=tokens)
        rows.append(
            {
                "uplink_bits_per_second": rate,
                "tokens_per_second": speeds,
                "accepted_per_token": share,
                "winner": max(speeds, key=lambda name: speeds[name]),
                "lockstep_winner": max(
                    (name for name in WAYS if "lockstep" in name), key=lambda name: speeds[name]
                ),
            }
        )
    return rows


def _speed(
    found: Models, rate: float, plan: Plan | None, *, ratio: bool | None = None, tokens: int
) -> tuple[float, float]:
    """Tokens a second after the first of each answer, and the share of tokens that were guesses.

    ``ratio`` None: without a drafter.
    """
    machine = MACHINES["a"]
    users = tuple(
        (
            Turn(
                ids=tuple(prompt),
                max_tokens=tokens,
                sampling=Sampling(temperature=1.0, seed=seed, ratio=bool(ratio)),
                objective="latency",
            ),
        )
        for seed, prompt in enumerate(found.prompts)
    )
    way = Direction(rate=rate / 8, delay=DELAY, overhead=HEADERS)
    edge = EdgeSettings(
        link=Link(name=f"{rate:g}", up=way, down=way),
        drafter=None if ratio is None else DrafterSettings(),
        sessions=users,
        starts=tuple(3.0 + 197.0 * i for i in range(len(users))),
    )
    settings = WorldSettings(
        vocabulary=SIZE,
        edges=(edge,),
        costs=Costs(
            target_pass=machine.target_pass,
            target_token=0.0,
            draft_step=machine.draft_step,
            draft_prefill=1 / machine.prefill_rate,
        ),
        limit=3600.0,
        max_steps=2_000_000,
    )
    world = World(settings, PairWorld(found, plan))
    if not world.run():
        raise RuntimeError(f"a world at {rate:g} bit/s did not come to an end")
    answers = [a for user in world.edges[0].conversations for a in user.answers]
    seconds = sum(a.times[-1] - a.times[0] for a in answers)
    tokens_made = sum(len(a.tokens) for a in answers)
    speed = sum(len(a.tokens) - 1 for a in answers) / seconds
    return speed, sum(a.accepted for a in answers) / tokens_made
