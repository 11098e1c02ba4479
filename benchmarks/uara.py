"""``outrider bench uara``: placement policies on the paper's grid, against the optimum, timed.

Everything is computed in the cell model (``simulator/cell``), nothing on a radio. The paper's three
baselines get equal shares, as there, and in rows of their own the same optimised shares as ours.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from outrider.cloud_server.placement import association, shares
from outrider.cloud_server.placement.association import BASELINES
from outrider.cloud_server.placement.optimum import optimum
from outrider.cloud_server.placement.problem import Placement, Problem, evaluate
from outrider.simulator.cell import experiment
from outrider.simulator.cell.experiment import Row, Rows, interval, reduction
from outrider.simulator.cell.model import Cell, Settings

Say = Callable[[str], None]
LEARNED = (12, 3)
SMALL = ((6, 4), (9, 3))
LEARNING_STEPS = {True: 1500, False: 6000}


def uara(say: Say, *, quick: bool, keep: Path | None = None, learn: bool = True) -> dict[str, Any]:
    """The JSON object of the command. ``keep``: a folder where rows are kept and gone on from."""
    rows = Rows(keep / "rows.jsonl" if keep else None)
    points = experiment.QUICK_GRID if quick else experiment.GRID
    seeds, slots = (3, 8) if quick else (experiment.SEEDS, experiment.SLOTS)
    experiment.grid(rows, points, seeds=seeds, slots=slots, report=say)
    experiment.thrift(
        rows, name=association.DEFAULT, seeds=seeds, slots=slots, devices=60, servers=8
    )
    say("small cases against the optimum")
    gaps = _gaps(2 if quick else 6)
    result = _summary([row for row in rows.rows if (row.devices, row.servers) in points])
    result |= {
        "default_policy": association.DEFAULT,
        "gap_to_optimum": max(gaps),
        "gap_to_optimum_mean": statistics.mean(gaps),
        "decision_ms_p50": _decision_ms(),
        "environment_steps_per_second": _steps_per_second(),
        "thrift": _thrift(rows.rows),
        "rows": _table(rows.rows),
    }
    if learn:
        result["learned"] = _learned(say, quick=quick, keep=keep)
    return result


def _summary(rows: list[Row]) -> dict[str, Any]:
    """Reductions of mean latency by the default policy with optimised shares.

    Each is taken at one point and seed, then averaged; half of the 95% interval is over these.
    """
    ours = _of(rows, association.DEFAULT, "optimised")
    against = {}
    for name in association.POLICIES:
        for kind in experiment.SHARES:
            other = _of(rows, name, kind)
            against[f"{name}, {kind}"] = [reduction(ours[at], other[at]) for at in ours]
    paper = [against[f"{name}, equal"] for name in BASELINES]
    by_point = _by_point(rows, ours)
    tma = _of(rows, "tma", "equal")
    tma_gain = [
        reduction(tma[at], _of(rows, name, "equal")[at]) for name in BASELINES for at in tma
    ]
    best = min(
        ("greedy", "max-sinr"),
        key=lambda name: statistics.mean(_of(rows, name, "optimised").values()),
    )
    return {
        "reduction_mean": statistics.mean(value for one in paper for value in one),
        "reduction_best": max(by_point),
        "reduction_vs_greedy_mean": statistics.mean(against["greedy, optimised"]),
        "reduction_vs_greedy_interval": interval(against["greedy, optimised"])[1],
        "reduction_vs_best_baseline_mean": statistics.mean(against[f"{best}, optimised"]),
        "best_baseline": f"{best} with optimised shares",
        "reduction_of_tma_equal_shares_mean": statistics.mean(tma_gain),
        "reductions": {name: interval(values) for name, values in against.items()},
    }


def _by_point(rows: list[Row], ours: dict[tuple[int, int, int], float]) -> list[float]:
    """The mean reduction against the paper's baselines at each point of the grid."""
    points = sorted({at[:2] for at in ours})
    found = []
    for point in points:
        values = [
            reduction(ours[at], _of(rows, name, "equal")[at])
            for name in BASELINES
            for at in ours
            if at[:2] == point
        ]
        found.append(statistics.mean(values))
    return found


def _of(rows: list[Row], name: str, kind: str) -> dict[tuple[int, int, int], float]:
    return {
        (row.devices, row.servers, row.seed): row.latency
        for row in rows
        if row.policy == name and row.shares == kind and row.thrift == Settings().thrift
    }


def _table(rows: list[Row]) -> list[dict[str, Any]]:
    """Means over seeds, by policy, shares and point."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(
            (row.policy, row.shares, row.devices, row.servers, row.thrift), []
        ).append(row)
    table = []
    for (name, kind, devices, servers, weight), found in groups.items():
        latency, wide = interval(row.latency for row in found)
        table.append(
            {
                "policy": name,
                "shares": kind,
                "devices": devices,
                "servers": servers,
                "thrift": weight,
                "latency_s": latency,
                "latency_interval_s": wide,
                "cost": statistics.mean(row.cost for row in found),
                "energy_j": statistics.mean(row.energy for row in found),
                "seeds": len(found),
            }
        )
    return table


def _thrift(rows: list[Row]) -> list[dict[str, Any]]:
    """Latency and energy of the default policy by the weight of energy."""
    table = []
    for weight in experiment.THRIFTS:
        found = [
            row
            for row in rows
            if row.thrift == weight
            and (row.policy, row.shares) == (association.DEFAULT, "optimised")
            and (row.devices, row.servers) == (60, 8)
        ]
        if found:
            table.append(
                {
                    "thrift": weight,
                    "latency_s": statistics.mean(row.latency for row in found),
                    "energy_j": statistics.mean(row.energy for row in found),
                    "energy_low_battery_j": statistics.mean(row.low for row in found),
                    "energy_high_battery_j": statistics.mean(row.high for row in found),
                }
            )
    return table


def _gaps(seeds: int) -> list[float]:
    """By how much the default policy costs more than the optimum, on small cells."""
    gaps = []
    for devices, servers in SMALL:
        for seed in range(seeds):
            problem = Cell(Settings(devices, servers), np.random.default_rng(seed)).problem()
            best = evaluate(problem, optimum(problem)).total
            server = association.policy(association.DEFAULT)(problem, np.random.default_rng(0))
            ours = evaluate(problem, shares.optimised(problem, server)).total
            gaps.append(ours / best - 1.0)
    return gaps


def _decision_ms(devices: int = 180, servers: int = 20, times: int = 15) -> float:
    """Median time of one decision, association and shares, at the largest point."""
    problem = Cell(Settings(devices, servers), np.random.default_rng(0)).problem()
    choose = association.policy(association.DEFAULT)
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        shares.optimised(problem, choose(problem, np.random.default_rng(0)))
        taken.append((time.perf_counter() - began) * 1e3)
    return statistics.median(taken)


def _steps_per_second(devices: int = 30, servers: int = 4, steps: int = 300) -> float:
    """Steps of the environment with actions at random."""
    from outrider.simulator.cell.environment import CellEnv

    env = CellEnv(Settings(devices, servers), slots=steps + 1)
    env.reset(seed=0)
    actions = {agent: env.action_space(agent).sample() for agent in env.possible_agents}
    began = time.perf_counter()
    for _ in range(steps):
        env.step(actions)
    return steps / (time.perf_counter() - began)


def _learned(say: Say, *, quick: bool, keep: Path | None) -> dict[str, Any]:
    """The paper's TMA-MASAC and our hybrid, learned here and compared in cells they did not see."""
    import torch

    from outrider.simulator.cell.masac import Learning, Masac

    torch.set_num_threads(1)
    settings = Settings(*LEARNED)
    found: dict[str, list[float]] = {}
    for name, associate in (("tma-masac", False), ("hybrid-masac", True)):
        learner = Masac(settings, Learning(steps=LEARNING_STEPS[quick], associate=associate))

        def report(step: int, steps: int, reward: float, name: str = name) -> None:
            if step % 500 == 0:
                say(f"{name}: {step} of {steps} steps, reward {reward:.3f}")

        learner.train(report, keep / f"{name}.pt" if keep else None)
        found[name] = [
            experiment.run(
                name, "learned", settings, seed, slots=10, place=_learned_place(learner)
            ).latency
            for seed in range(100, 105)
        ]
    others = (("random", "equal"), ("greedy", "optimised"), (association.DEFAULT, "optimised"))
    for name, kind in others:
        found[f"{name}, {kind}"] = [
            experiment.run(name, kind, settings, seed, slots=10).latency for seed in range(100, 105)
        ]
    greedy = found["greedy, optimised"]
    gains = {
        name: interval(reduction(a, b) for a, b in zip(found[name], greedy, strict=True))
        for name in ("tma-masac", "hybrid-masac")
    }
    return {
        "devices": LEARNED[0],
        "servers": LEARNED[1],
        "steps": LEARNING_STEPS[quick],
        "latency_s": {name: statistics.mean(values) for name, values in found.items()},
        "reduction_vs_greedy": gains,
        "verdict": _verdict(gains),
    }


def _learned_place(learner: Any) -> experiment.Place:
    def place(problem: Problem, _rng: np.random.Generator) -> Placement:
        chosen: Placement = learner.place(problem)
        return chosen

    return place


def _verdict(gains: dict[str, tuple[float, float]]) -> str:
    better = [name for name, (mean, wide) in gains.items() if mean - wide > 0]
    if not better:
        return "learning does not beat greedy association with optimised shares"
    return f"{', '.join(better)} beats greedy association with optimised shares"
