"""``outrider bench cosine``: cooperating drafters beside single ones, in virtual time.

The real engines, group, router and fusion run over scripted models of an assumed acceptance
(:mod:`outrider.benchmarks.specialists`); passes, steps and links take the time that they are told.
Every text is compared with the target's alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from outrider.benchmarks.specialists import (
    DOMAINS,
    SCRIPTED,
    SIZE,
    DomainTarget,
    Kit,
    SpecialistLM,
    domain,
)
from outrider.cloud_server.planner import EngineSettings
from outrider.cloud_server.replay import audit, plain, tolerance_of
from outrider.cloud_server.targets.base import Target
from outrider.edge_client.adaptive import Adaptive
from outrider.edge_client.group.group import GroupSettings
from outrider.edge_client.group.members import Member
from outrider.edge_client.group.routing import Route
from outrider.edge_client.policy import Plan, Policy, Steady
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.messages import Limits
from outrider.runtime.lm.drafter import Drafter, Standing
from outrider.simulator.group import Habits, SimGroup, SimTable
from outrider.simulator.settings import (
    LIMITS,
    Costs,
    DrafterSettings,
    EdgeSettings,
    LinkSettings,
    Turn,
    WorldSettings,
)
from outrider.simulator.world import World

Say = Callable[[str], object]

ALL: tuple[int | None, ...] = (None, *range(DOMAINS))
TOKENS = 120
DEPTH, NODES = 6, 16
STEP, PASS = 0.008, 0.03
"""Seconds of a member's step and of a target pass: a small board beside a GPU."""

TOKEN = 0.0003
"""Seconds that each further token in a pass costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to draft: who is in the group, how it works, and how far it rides ahead."""

    name: str
    members: tuple[int | None, ...] = ALL
    most: int = 3
    width: int = 4
    route: str = "scores"
    fuse: bool = True
    fixed: bool = True
    step: float = STEP
    plan: Plan | None = Plan(DEPTH, DEPTH)  # noqa: RUF009 - frozen

    @property
    def settings(self) -> GroupSettings:
        """What the group is told."""
        return GroupSettings(
            most=min(self.most, len(self.members)),
            width=self.width,
            route=self.route != "first",
            fuse=self.fuse,
            fixed=self.fixed,
        )


class BenchGroup(SimGroup):
    """A group whose route may be drawn at random or be told by an oracle."""

    route_by = "scores"

    def _chosen(self, route: Route, size: int) -> list[int]:
        ready = self.steps.ready()
        members = self.steps.members
        if self.route_by == "random":
            return random.Random(len(self._text)).sample(ready, min(size, len(ready)))
        if self.route_by == "oracle":

            def share(member: int) -> float:
                lm = members[member].lm
                assert isinstance(lm, SpecialistLM)
                return lm.share(self._text)

            return sorted(ready, key=lambda m: -share(m))[:size]
        return super()._chosen(route, size)

    _text: Sequence[int] = ()

    def draft(self, *arguments: Any, **settings: Any) -> Any:
        """Remember the text for those who look."""
        self._text = arguments[0]
        return super().draft(*arguments, **settings)


@dataclass(slots=True)
class CosineModels:
    """The models of a world for one way."""

    way: Way
    lan: float
    seed: int
    kit: Kit
    groups: list[BenchGroup] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)

    def target(self, settings: WorldSettings) -> Target:
        """The target."""
        self.targets.append(self.kit.target(self.seed, settings.slots))
        return self.targets[-1]

    def drafter(self, _world: WorldSettings, _settings: DrafterSettings) -> BenchGroup:
        """A group on one edge."""
        members = self.kit.members(self.seed, self.way.members)
        habits = [Habits(step=self.way.step)] * len(members)
        table = SimTable(members, habits, lan=self.lan, seed=self.seed)
        group = BenchGroup(table, frozenset(), self.way.settings, similarity=self.kit.similarity())
        group.route_by = self.way.route
        self.groups.append(group)
        return group

    def policy(self, _settings: DrafterSettings) -> Policy:
        """One plan, or whatever pays."""
        return Steady(self.way.plan) if self.way.plan else Adaptive()

    def close(self) -> None:
        """Free the models."""
        for group in self.groups:
            group.close()
        for target in self.targets:
            target.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests: ``edges`` machines with ``each`` sessions one after another, arriving like that."""

    edges: int
    turns: int = 2
    spacing: float = 0.0
    bursts: bool = False

    def starts(self, rng: random.Random) -> list[float]:
        """When each edge begins."""
        times, now = [], 0.0
        for i in range(self.edges):
            times.append(now)
            mean = self.spacing * (4.0 if self.bursts and (i // 4) % 2 else 1.0)
            now += rng.expovariate(1 / mean) if mean else 0.0
        return times


def run(
    way: Way,
    load: Load,
    *,
    lan: float,
    seed: int = 1,
    temperature: float = 0.0,
    tokens: int = TOKENS,
    kit: Kit = SCRIPTED,
) -> dict[str, Any]:
    """One way under one load: figures, and whether every text was the target's."""
    rng = random.Random(seed)
    models = CosineModels(way, lan, seed, kit)
    sampling = Sampling(temperature=temperature, seed=seed)
    limits = Limits(**{**_fields(LIMITS), "max_nodes_per_frame": 64, "max_nodes_in_flight": 256})
    objective = "cost" if way.plan and way.plan.frame == way.plan.window else "latency"
    edges = tuple(
        EdgeSettings(
            link=LinkSettings(delay=0.005, up=1e6, down=1e6),
            sessions=(
                tuple(
                    Turn(
                        ids=kit.prompt(rng, at),
                        keep=0.0,
                        max_tokens=tokens,
                        sampling=sampling,
                        objective=objective,
                    )
                    for at in range(load.turns)
                ),
            ),
            starts=(start,),
        )
        for start in load.starts(rng)
    )
    world = World(
        WorldSettings(
            seed=seed,
            vocabulary=kit.vocabulary,
            slots=load.edges,
            edges=edges,
            costs=Costs(
                target_pass=PASS, target_token=TOKEN, draft_step=STEP, draft_prefill=0.0005
            ),
            engine=EngineSettings(lookup=0),
            limits=limits,
            rehearsed=(1, 4, 16, 64),
            limit=3600.0,
        ),
        models,
    )
    finished = world.run()
    answers = [a for edge in world.edges for c in edge.conversations for a in c.answers]
    reference = kit.target(seed, 1)
    checks = [
        audit(reference, a.prompt, a.tokens, sampling, tolerance_of(reference)) for a in answers
    ]
    exact = finished and all(check.exact and check.tokens == tokens for check in checks)
    reference.close()
    models.close()
    count = sum(len(a.tokens) for a in answers)
    seconds = [a.ended - a.started for a in answers]
    stats = world.cloud.engine.stats
    return {
        "way": way.name,
        "edges": load.edges,
        "lan_ms": lan * 1e3,
        "exact": bool(exact),
        "near_ties": sum(check.near_ties for check in checks),
        "accept_len": count / sum(a.passes for a in answers),
        "latency_ms_per_token": 1e3 * sum(seconds) / count,
        "tokens_per_second": count
        / (max(a.ended for a in answers) - min(a.started for a in answers)),
        "passes": stats.passes,
        "verified_tokens": stats.num_draft_tokens,
    }


def _fields(limits: Limits) -> dict[str, Any]:
    return {name: getattr(limits, name) for name in limits.__struct_fields__}


SINGLES = tuple(
    Way(name="general" if m is None else f"specialist {m}", members=(m,), most=1, width=1)
    for m in ALL
)
ABLATION = (
    Way(name="single with a tree", members=(None,), most=1, width=4),
    Way(name="random group", route="random"),
    Way(name="without routing", route="first"),
    Way(name="without fusion", fuse=False),
    Way(name="whole"),
    Way(name="oracle route", route="oracle"),
)


def cosine(say: Say, *, quick: bool = False) -> dict[str, Any]:
    """All tables; the JSON object of the command."""
    rows: list[dict[str, Any]] = []

    def measured(way: Way, load: Load, lan: float, **more: Any) -> dict[str, Any]:
        row = run(way, load, lan=lan, **more)
        say(f"{way.name}, {load.edges} edges: {row['accept_len']:.2f} tokens a pass")
        rows.append(row)
        return row

    one = Load(edges=3, turns=2 if quick else 4)
    ablation = {}
    for way in (*SINGLES, *ABLATION):
        ablation[way.name] = measured(way, one, 0.001)["accept_len"]
    best = max((w for w in SINGLES), key=lambda w: ablation[w.name])
    streamed = Way(name="single, streaming", members=best.members, most=1, width=1, plan=None)
    group = Way(name="group, streaming", plan=None, fixed=False)
    lockstep = Way(name="group, no pipelining", fixed=False)
    whole_compute = Way(
        name="single with all compute", members=best.members, most=1, width=1, plan=None,
        step=STEP / group.settings.most,
    )  # fmt: skip
    table, equal = [], []
    loads = [
        ("offline", Load(edges=n, turns=6 if n < 4 else 3))
        for n in ((1, 8) if quick else (1, 2, 4, 8, 16))
    ]
    loads += [
        ("low", Load(edges=6, turns=3, spacing=4.0)),
        ("high", Load(edges=6, turns=3, spacing=0.5)),
    ]
    loads.append(("fluctuating", Load(edges=8, turns=3, spacing=1.0, bursts=True)))
    for kind, load in loads:
        for lan in (0.001, 0.01):
            alone = measured(streamed, load, lan)
            for way in (group, lockstep):
                row = measured(way, load, lan)
                table.append({"arrivals": kind, "way": way.name, **_change(row, alone)})
                if way is group and lan == 0.001:
                    fast = measured(whole_compute, load, lan)
                    equal.append({"arrivals": kind, "way": way.name, **_change(row, fast)})
    warm = measured(Way(name="whole, T 1"), one, 0.001, temperature=1.0)
    scores = following(say)
    ours = [t for t in table if t["way"] == group.name]
    return {
        "accept_len_over_best_single": ablation["whole"]
        / max(ablation["single with a tree"], ablation[best.name]),
        "accept_len_over_general": ablation["whole"] / ablation["general"],
        "latency_change_best": min(t["latency_change"] for t in ours),
        "throughput_change_best": max(t["throughput_change"] for t in ours),
        "worst_change": min(t["throughput_change"] for t in ours),
        "best_single": best.name,
        "accept_len_warm": warm["accept_len"],
        "ablation": ablation,
        "table": table,
        "equal_compute": equal,
        "scores": scores,
        "all_exact": all(r["exact"] for r in rows),
        "models": "scripted, of an assumed acceptance; time is virtual",
    }


def _change(row: dict[str, Any], alone: dict[str, Any]) -> dict[str, Any]:
    """A row against that of a single drafter under the same load."""
    latency, throughput = "latency_ms_per_token", "tokens_per_second"
    return {
        "edges": row["edges"],
        "lan_ms": row["lan_ms"],
        "latency_change": row[latency] / alone[latency] - 1,
        "throughput_change": row[throughput] / alone[throughput] - 1,
    }


def following(say: Say) -> list[dict[str, Any]]:
    """The routing scores along one text that changes its domain."""
    way = Way(name="scores", plan=Plan(2, 2))
    found: list[dict[str, Any]] = []

    class Watching(BenchGroup):
        def draft(self, *arguments: Any, **settings: Any) -> Any:
            guess = super().draft(*arguments, **settings)
            route = self.router.route(settings["standing"].request)
            ids = arguments[0]
            found.append({"length": len(ids), "domain": domain(ids), "scores": list(route.scores)})
            return guess

    target = DomainTarget(1, 1)
    members = [
        Member(f"m{own}", Drafter(SpecialistLM(target, own, -3 - i), SIZE))
        for i, own in enumerate(ALL)
    ]
    group = Watching(
        SimTable(members, [Habits()] * len(members), lan=0.0, seed=1), frozenset(), way.settings
    )
    ids = [3, 7]
    text = [*ids, *plain(target, ids, Sampling(), 360)]
    for length in range(2, len(text) - 4, 2):
        group.draft(text[:length], 2, Sampling(), 4, standing=Standing(verified=length, price=0.0))
    say(f"scores along a text of {len(text)} ids")
    return found[::4]
