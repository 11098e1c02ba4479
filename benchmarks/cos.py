"""``outrider bench cos``: collaborative decoding against the plain one, in virtual time.

The models are the embedded pair, evaluated for real, so acceptance is theirs; what a pass costs is
assumed, as each row says. On one machine a pass of each model costs its ratio; over a link both
ends run whole in virtual time. Plain collaborative decoding makes each token with a pass of every
model; over a link that is a round trip a token with both models at work at once, as measured in the
same virtual time (one guess ahead, never more) or as computed from the link's delays without jitter
or headers, whichever is faster. One model after the other is slower by a pass.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from outrider.benchmarks.embedded import models, prompts
from outrider.benchmarks.strategies import MACHINES
from outrider.cloud_server.targets.base import Decided, Row, Target, TargetInfo
from outrider.cloud_server.targets.rows import decide_rows
from outrider.edge_client.adaptive import Adaptive
from outrider.edge_client.policy import Plan, Policy, Steady
from outrider.protocol.decoding.alternate import Alternation, Made, Mixture, Turn, plain
from outrider.protocol.decoding.combine import budget_of, combined
from outrider.protocol.decoding.mixed import spread_all
from outrider.protocol.decoding.noise import gumbel
from outrider.protocol.decoding.processors import F32
from outrider.protocol.decoding.sampling import Collaboration, Combination, Sampling
from outrider.runtime.lm.base import CausalLM, ListedLM, Rows, follow
from outrider.runtime.lm.drafter import Drafter
from outrider.runtime.lm.factory import load_lm
from outrider.runtime.lm.together import Together
from outrider.runtime.text.tokenizer import load_tokenizer
from outrider.simulator.profiles import profile
from outrider.simulator.settings import (
    Costs,
    DrafterSettings,
    EdgeSettings,
    WorldSettings,
)
from outrider.simulator.settings import (
    Turn as Asked,
)
from outrider.simulator.world import World

LINKS = ("lan", "wifi", "lte", "starlink", "geo")
TOLERANCE = 1e-3
"""In score: a token that is not r's first choice when replayed, but this near to it, is a tie."""

COSTS = {
    "equal": (1.0, 1.0, 1.0),
    "1B / 8B": (0.125, 0.125, 1.0),
    "125M / 13B": (0.01, 0.01, 1.0),
}
"""A pass of each model, the largest last, by the parameters of the paper's pairs."""

MIXTURES = {
    "ensemble": {2: Mixture(Combination.ENSEMBLE, (0.5, 0.5)),
                 3: Mixture(Combination.ENSEMBLE, (1 / 3, 1 / 3, 1 / 3))},
    "contrastive": {2: Mixture(Combination.CONTRASTIVE, (0.1,)),
                    3: Mixture(Combination.CONTRASTIVE, (0.05, 0.05))},
}  # fmt: skip


FLATTER = np.float32(0.8)


class Flatter(ListedLM):
    """A model at a higher temperature."""

    def __init__(self, inner: CausalLM) -> None:
        super().__init__(f"{inner.name}, flatter", inner.row_width, inner.n_ctx)
        self._inner = inner

    def feed(self, ids: Sequence[int], rows: int = 1) -> Rows:
        """As the model, its logits smaller."""
        found = follow(self._inner, [*self._ids, *ids], rows)
        self._ids.extend(ids)
        return np.asarray(found * FLATTER, np.float32)

    def fork(self) -> Flatter:
        """Nobody asks for another one."""
        raise NotImplementedError


@dataclass
class Models:
    """The embedded models. There are two; where three are wanted, the third is the drafter at a
    higher temperature (*flatter*). Rows are remembered by text."""

    drafter: CausalLM
    target: CausalLM
    second: CausalLM
    size: int
    prompts: list[list[int]]
    _known: dict[tuple[int, tuple[int, ...]], F32] = field(default_factory=dict)

    @classmethod
    def load(cls) -> Models:
        """From the package."""
        tokenizer = load_tokenizer(models() / "drafter")
        drafter, target, second = (
            load_lm(models() / name, "llama").lm for name in ("drafter", "target", "drafter")
        )
        size = min(tokenizer.size, drafter.row_width, target.row_width)
        texts = [prompts(domain)[0] for domain in ("scripture", "docs", "source")]
        return cls(
            drafter,
            target,
            Flatter(second),
            size,
            [list(tokenizer.encode_prompt(t)) for t in texts],
        )

    def row(self, name: str, ids: Sequence[int]) -> F32:
        """Logits after ids of ``drafter``, ``flatter`` or ``target``."""
        key = (name == "target", tuple(ids))
        row = self._known.get(key)
        if row is None:
            lm = self.target if key[0] else self.drafter
            row = self._known[key] = follow(lm, list(ids))[-1][: self.size].copy()
        return np.asarray(row * FLATTER) if name == "flatter" else row

    def logits(self, count: int) -> Callable[[int, Sequence[int]], F32]:
        """Of so many models, the target last."""
        names = ("drafter", "flatter", "target") if count == 3 else ("drafter", "target")
        return lambda model, ids: self.row(names[model], ids)


def cos(note: Callable[[str], None], *, quick: bool = False) -> dict[str, Any]:
    """Everything. ``quick``: shorter texts, fewer links."""
    found, tokens = Models.load(), 40 if quick else 96
    rows: list[dict[str, Any]] = []
    for kind, by_count in MIXTURES.items():
        for count in by_count:
            for temperature in (0.0, 1.0):
                note(f"one machine: {kind}, {count} models, temperature {temperature:g}")
                for ratio in COSTS:
                    rows.append(
                        _local(
                            found, kind, count, temperature=temperature, ratio=ratio, tokens=tokens
                        )
                    )
    for name in LINKS[:3] if quick else LINKS:
        for kind, count in itertools.product(MIXTURES, (2, 3)):
            for temperature in (0.0, 1.0):
                note(f"over {name}: {kind}, {count} models, temperature {temperature:g}")
                rows.append(
                    _linked(found, kind, count, temperature=temperature, name=name, tokens=tokens)
                )
    from outrider.benchmarks.cos_timed import timed

    clock = timed(found, note, ("lte",) if quick else ("wifi", "lte"), tokens)
    local = [row for row in rows if row["place"] == "one machine"]
    links = [row for row in rows if row["place"] != "one machine"]
    return {
        "virtual": True,
        "rows": rows,
        "speedup_local_max": max(row["speedup"] for row in local),
        "speedup_links_max": max(row["speedup"] for row in links),
        "speedup_min": min(row["speedup"] for row in rows),
        "timed": clock,
        "speedup_min_measured": min(row["speedup"] for row in clock),
        "all_exact": all(row["exact"] for row in (*rows, *clock)),
        "best": max(rows, key=lambda row: row["speedup"]),
        "worst": min(rows, key=lambda row: row["speedup"]),
    }


# --- one machine --------------------------------------------------------------------------------


def _local(
    found: Models, kind: str, count: int, *, temperature: float, ratio: str, tokens: int
) -> dict[str, Any]:  # fmt: skip
    mixture, costs = MIXTURES[kind][count], COSTS[ratio][-count:]
    spent = made = accepted = judged = 0.0
    exact = True
    run = Alternation(found.logits(count), mixture, Sampling(), costs)
    for seed, prompt in enumerate(found.prompts):
        run.sampling = sampling = Sampling(temperature=temperature, seed=seed)
        text = []
        for event in run.run(prompt, tokens):
            if isinstance(event, Turn):
                spent += costs[event.model]
            elif isinstance(event, Made):
                text.append(event.token)
                judged += 1
                accepted += event.accepted
        made += len(text)
        exact &= text == plain(found.logits(count), mixture, sampling, prompt, tokens)
    return {
        "place": "one machine",
        "kind": kind,
        "models": count,
        "temperature": temperature,
        "costs": list(costs),
        "pair": ratio,
        "acceptance": accepted / judged,
        "speedup": sum(costs) * made / spent,
        "exact": bool(exact),
    }


# --- over a link --------------------------------------------------------------------------------


class _Target(Target):
    """The embedded target in virtual time: rows as remembered."""

    def __init__(self, found: Models, settings: WorldSettings) -> None:
        self.found = found
        self.info = TargetInfo(
            "embedded", found.size, settings.n_ctx, settings.slots, frozenset(), "f32", "virtual"
        )

    def forward(self, rows: Sequence[Row]) -> list[Decided]:
        logits = [
            [
                self.found.row("target", row.ids[:end])
                for end in range(len(row.ids) - row.want + 1, len(row.ids) + 1)
            ]
            for row in rows
        ]
        return decide_rows(rows, logits, self.info.usable)

    def score(self, row: Row, candidates: Sequence[int]) -> list[tuple[float, float]]:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing to free: it is used again."""


@dataclass(frozen=True, slots=True)
class PairWorld:
    """The embedded pair for a world. ``plan`` None: the policy decides; ``models`` at the edge."""

    found: Models
    plan: Plan | None
    models: int = 1

    def target(self, settings: WorldSettings) -> Target:
        """The target, for a verifier that boots."""
        return _Target(self.found, settings)

    def drafter(self, world: WorldSettings, settings: DrafterSettings) -> Drafter:
        """The drafter, for an edge."""
        del world, settings
        if self.models == 1:
            return Drafter(self.found.drafter, self.found.size)
        return Together([self.found.drafter, self.found.second], self.found.size)

    def policy(self, settings: DrafterSettings) -> Policy:
        """How far an edge drafts ahead."""
        del settings
        return Steady(self.plan) if self.plan else Adaptive()


def together_of(kind: str, count: int) -> Collaboration:
    """All but the target sit at the edge."""
    mixture = MIXTURES[kind][count]
    weights = mixture.weights[: count - 1]
    several = weights if count > 2 else ()
    return Collaboration(kind=mixture.kind, weight=sum(weights), edge=several)


def _linked(
    found: Models, kind: str, count: int, *, temperature: float, name: str, tokens: int
) -> dict[str, Any]:
    sampling = Sampling(temperature=temperature, seed=11, collaborate=together_of(kind, count))
    machine, models = MACHINES["a"], count - 1
    step = machine.draft_step * models
    ours, answers = _run(found, sampling, None, name=name, tokens=tokens, models=models)
    measured, _ = _run(found, sampling, Plan(1, 1), name=name, tokens=tokens, models=models)
    computed = 1 / max(machine.target_pass, profile(name).rtt + step)
    base = max(measured, computed)
    judged = sum(len(answer.tokens) for answer in answers)
    return {
        "place": name,
        "kind": kind,
        "models": count,
        "temperature": temperature,
        "machine": "a",
        "acceptance": sum(answer.accepted for answer in answers) / judged,
        "tokens_per_second": ours,
        "plain_measured_tokens_per_second": measured,
        "plain_computed_tokens_per_second": computed,
        "speedup": ours / base,
        "bytes_up_per_token": sum(answer.bytes_up for answer in answers) / judged,
        "exact": all(
            answer.ends == ["length"] and replayed(found, sampling, answer.prompt, answer.tokens)
            for answer in answers
        ),
    }


def _run(
    found: Models, sampling: Sampling, plan: Plan | None, *, name: str, tokens: int, models: int
) -> tuple[float, list[Any]]:
    """Tokens a second after the first of each answer, and the answers.

    The edge's models work one after the other.
    """
    machine = MACHINES["a"]
    users = tuple(
        (Asked(ids=tuple(prompt), max_tokens=tokens, sampling=sampling, objective="latency"),)
        for prompt in found.prompts
    )
    settings = WorldSettings(
        vocabulary=found.size,
        edges=(
            EdgeSettings(
                link=profile(name).link(1),
                drafter=DrafterSettings(),
                sessions=users,
                starts=tuple(3.0 + 97.0 * i for i in range(len(users))),
            ),
        ),
        costs=Costs(
            target_pass=machine.target_pass,
            target_token=0.0,
            draft_step=machine.draft_step * models,
            draft_prefill=models / machine.prefill_rate,
        ),
        limit=3600.0,
        max_steps=1_000_000,
    )
    world = World(settings, PairWorld(found, plan, models))
    if not world.run():
        raise RuntimeError(f"a world over {name} did not come to an end")
    answers = [a for user in world.edges[0].conversations for a in user.answers]
    seconds = sum(a.times[-1] - a.times[0] for a in answers)
    return sum(len(a.tokens) - 1 for a in answers) / seconds, answers


def replayed(
    found: Models, sampling: Sampling, prompt: Sequence[int], answer: Sequence[int]
) -> bool:
    """Each token is r's choice, made by all models in one place, or within the tolerance of it."""
    together = sampling.collaborate
    assert together is not None
    text, start = list(prompt), len(prompt)
    for token in answer:
        rows = [found.row(name, text) for name in ("drafter", "flatter")[: together.models]]
        row = spread_all(rows, sampling, text, start, found.size, budget=budget_of(together)).row
        tokens, scores = combined(
            found.row("target", text), sampling, text, start, found.size, other=row
        )
        if sampling.temperature:
            scores = scores + gumbel(sampling.seed, sampling.choice, len(text), tokens)
        own = scores[np.searchsorted(tokens, token)]
        if float(scores.max() - own) > TOLERANCE:
            return False
        text.append(token)
    return bool(answer)
