"""``outrider bench uara``: placement policies on the paper's grid, against the optimum, timed.

Everything is computed in the cell model (``simulator/cell``), nothing on a radio. The paper's three
baselines get equal shares, as there, and in rows of their own the same optimised shares as ours.
Every row has the latency of the paper's model and, of the same placements, that of the streaming
engine.
"""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from outrider.benchmarks import uara_table
from outrider.cloud_server.placement import association, shares
from outrider.cloud_server.placement.actor import Actor
from outrider.cloud_server.placement.optimum import optimum
from outrider.cloud_server.placement.problem import evaluate
from outrider.simulator.cell import experiment
from outrider.simulator.cell.experiment import Place, Rows
from outrider.simulator.cell.model import Cell, Settings

Say = Callable[[str], None]
LEARNED = (30, 4)
"""The cell that is learned in; what was learned is used on the whole grid."""

SMALL = ((6, 4), (9, 3), (5, 7))
LEARNING_STEPS = {True: 600, False: 4000}
LEARNERS = {"tma-masac": False, "hybrid-masac": True}
"""By name: whether the association is learned too."""


def uara(
    say: Say,
    *,
    quick: bool,
    keep: Path | None = None,
    learn: bool = True,
    policy: Path | None = None,
) -> dict[str, Any]:
    """The JSON object of the command.

    ``keep``: a folder where rows and policies are kept and gone on from. ``policy``: an exported
    actor that takes part as well.

    Raises:
        BackendError: a file of the folder or the policy cannot be read or written.
    """
    points = experiment.QUICK_GRID if quick else experiment.GRID
    seeds, slots = (3, 8) if quick else (experiment.SEEDS, experiment.SLOTS)
    given = _given(policy) if policy is not None else {}
    rows = Rows(keep / "rows.jsonl" if keep else None)
    experiment.grid(
        rows, points, seeds=seeds, slots=slots, table=experiment.TABLE | given, report=say
    )
    ours = (association.DEFAULT, "optimised")
    experiment.grid(
        rows,
        (uara_table.TRADE,),
        seeds=seeds,
        slots=slots,
        table={ours: experiment.TABLE[ours]},
        thrifts=experiment.THRIFTS,
    )
    if learn:
        table = _learned(say, quick=quick, keep=keep)
        experiment.grid(rows, points, seeds=seeds, slots=slots, table=table, report=say)
    say("small cases against the optimum")
    gaps = _gaps(2 if quick else 4)
    timed = {
        "default_policy": association.DEFAULT,
        "gap_to_optimum": max(gaps),
        "gap_to_optimum_mean": statistics.mean(gaps),
        "decision_ms_p50": _decision_ms(),
        "environment_steps_per_second": _steps_per_second(),
    }
    mine = [row for row in rows.rows if row.slots == slots and row.seed < seeds]
    result = uara_table.result(mine, points) | timed
    if learn:
        result["learning"] = {
            "devices": LEARNED[0],
            "servers": LEARNED[1],
            "steps": LEARNING_STEPS[quick],
            "verdict": uara_table.verdict(result["learned_reduction_vs_greedy"]),
        }
    return result


def _given(path: Path) -> dict[tuple[str, str], Place]:
    """An exported policy, named by its file and what is in it."""
    actor = Actor(path)
    name = f"{path.stem} {hashlib.sha256(path.read_bytes()).hexdigest()[:8]}"
    return {(name, "learned"): experiment.learned(actor, matched=False)}


def _learned(say: Say, *, quick: bool, keep: Path | None) -> dict[tuple[str, str], Place]:
    """The paper's TMA-MASAC and our hybrid, learned here, exported, and run without torch."""
    import torch

    from outrider.simulator.cell.masac import Learning, Masac

    torch.set_num_threads(1)
    table = {}
    for name, associate in LEARNERS.items():
        learner = Masac(
            Settings(*LEARNED), Learning(steps=LEARNING_STEPS[quick], associate=associate)
        )

        def report(step: int, steps: int, reward: float, name: str = name) -> None:
            if step % 500 == 0:
                say(f"{name}: {step} of {steps} steps, reward {reward:.3f}")

        learner.train(report, keep / f"{name}.pt" if keep else None)
        with TemporaryDirectory() as folder:
            path = (keep or Path(folder)) / f"{name}.onnx"
            learner.export(path)
            actor = Actor(path)
        table[name, "learned"] = experiment.learned(actor, matched=not associate)
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
