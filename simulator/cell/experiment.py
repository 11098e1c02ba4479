"""The paper's experiment: policies of placement over numbers of devices and servers, seed by seed.

Every policy runs in a cell of its own with the same seed, so that a bad policy's queues and
batteries are its own. A row is one policy with one kind of shares at one point of the grid and one
seed; rows are kept as JSON lines, and a run goes on where an earlier one stopped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from outrider.cloud_server.placement import association, shares
from outrider.cloud_server.placement.problem import Placement, Problem, evaluate
from outrider.protocol.errors import BackendError
from outrider.simulator.cell.model import Cell, Settings
from outrider.simulator.cell.radio import Radio

SHARES = ("equal", "optimised")
GRID = ((30, 4), (60, 4), (60, 8), (120, 8), (120, 12), (180, 12), (180, 20))
QUICK_GRID = ((30, 4), (60, 8), (120, 12), (180, 20))
SEEDS = 5
SLOTS = 20
THRIFTS = (20.0, 50.0, 100.0)
"""The paper's range of the weight of energy."""

Place = Callable[[Problem, np.random.Generator], Placement]


@dataclass(frozen=True, slots=True)
class Row:
    """Means over the slots of one run: latency (s), objective a device, energy (J a device and
    slot).

    ``low``, ``high``: energy of devices with at most a fifth and at least four fifths of the
    fullest battery at the start.
    """

    policy: str
    shares: str
    devices: int
    servers: int
    seed: int
    thrift: float
    latency: float
    cost: float
    energy: float
    low: float
    high: float


def placed(name: str, kind: str) -> Place:
    """A policy of association with a way of sharing."""
    associate = association.policy(name)
    split = shares.equal if kind == "equal" else shares.optimised

    def place(problem: Problem, rng: np.random.Generator) -> Placement:
        return split(problem, associate(problem, rng))

    return place


def run(
    name: str,
    kind: str,
    settings: Settings,
    seed: int,
    *,
    slots: int = SLOTS,
    place: Place | None = None,
    radio: Radio | None = None,
) -> Row:
    """One run. ``place``: a policy that is not in the table, as the learned ones. ``radio``: a
    trace in place of the cell's own channels."""
    place = place or placed(name, kind)
    cell = Cell(settings, np.random.default_rng(seed), radio)
    rng = np.random.default_rng([seed, 1])
    share = cell.battery / cell.full
    few, many = share <= 0.2 + share.min(), share >= 0.8 * share.max()
    found = []
    for _ in range(slots):
        problem = cell.problem()
        chosen = place(problem, rng)
        outcome = evaluate(problem, chosen)
        energy = outcome.energy
        found.append(
            (
                outcome.mean_latency,
                outcome.total / settings.devices,
                energy.mean(),
                energy[few].mean(),
                energy[many].mean(),
            )
        )
        cell.step(problem, chosen)
    means = [float(value) for value in np.mean(found, axis=0)]
    where = (settings.devices, settings.servers, seed, settings.thrift)
    return Row(name, kind, *where, *means)


class Rows:
    """Rows that were made, kept in a file of JSON lines if one is given."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.rows: list[Row] = list(_read(path)) if path is not None and path.exists() else []
        self._there = {_key(asdict(row)) for row in self.rows}

    def has(self, **where: Any) -> bool:
        """Whether a run was made before."""
        return _key(where) in self._there

    def add(self, row: Row) -> None:
        """Keep one more."""
        self.rows.append(row)
        self._there.add(_key(asdict(row)))
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(row)) + "\n")


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[k] for k in ("policy", "shares", "devices", "servers", "seed", "thrift"))


def _read(path: Path) -> Iterator[Row]:
    """Whole lines only: one that was cut off by an interruption is made again."""
    for number, line in enumerate(path.read_text("utf-8").splitlines(True), 1):
        if not line.endswith("\n"):
            continue
        try:
            yield Row(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise BackendError(f"{path}, line {number} is no row of this experiment") from error


def grid(
    rows: Rows,
    points: Iterable[tuple[int, int]],
    *,
    seeds: int = SEEDS,
    slots: int = SLOTS,
    names: Iterable[str] = tuple(association.POLICIES),
    report: Callable[[str], None] = lambda _line: None,
) -> None:
    """Every policy with equal and with optimised shares at every point."""
    for devices, servers in points:
        for seed in range(seeds):
            for name in names:
                for kind in SHARES:
                    settings = Settings(devices, servers)
                    where = {"devices": devices, "servers": servers, "thrift": settings.thrift}
                    if not rows.has(policy=name, shares=kind, seed=seed, **where):
                        rows.add(run(name, kind, settings, seed, slots=slots))
        report(f"{devices} devices, {servers} servers")


def thrift(rows: Rows, *, name: str, seeds: int, slots: int, devices: int, servers: int) -> None:
    """The trade of latency for energy: the default policy under growing weight of energy."""
    for weight in THRIFTS:
        for seed in range(seeds):
            settings = Settings(devices, servers, thrift=weight)
            where = {"devices": devices, "servers": servers, "thrift": weight}
            if not rows.has(policy=name, shares="optimised", seed=seed, **where):
                rows.add(run(name, "optimised", settings, seed, slots=slots))


def reduction(ours: float, other: float) -> float:
    """By how much latency is lower, as a share of the other's."""
    return 1.0 - ours / other


def interval(values: Iterable[float]) -> tuple[float, float]:
    """(mean, half of the 95% confidence interval by Student's t)."""
    data = np.asarray(list(values), np.float64)
    if len(data) < 2:
        return float(data.mean()), float("nan")
    t = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}
    wide = t.get(len(data) - 1, 2.0) * data.std(ddof=1) / np.sqrt(len(data))
    return float(data.mean()), float(wide)
