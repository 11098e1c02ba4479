"""The paper's experiment: policies of placement over numbers of devices and servers, seed by seed.

Every policy runs in a cell of its own with the same seed, so that a bad policy's queues and
batteries are its own. A row is one policy with one kind of shares at one point of the grid and one
seed; rows are kept as JSON lines, and a run goes on where an earlier one stopped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from outrider.cloud_server.placement import association, shares
from outrider.cloud_server.placement.actor import Actor
from outrider.cloud_server.placement.problem import Placement, Problem, evaluate
from outrider.protocol.errors import BackendError
from outrider.simulator.cell.model import Cell, Settings
from outrider.simulator.cell.radio import Radio

SHARES = ("equal", "optimised")
GRID = tuple((m, e) for m in (30, 60, 90, 120, 150, 180) for e in (4, 8, 12, 16, 20))
QUICK_GRID = ((30, 4), (60, 8), (120, 12), (180, 20))
SEEDS = 5
SLOTS = 10
THRIFTS = (20.0, 40.0, 60.0, 80.0, 100.0)
"""The paper's range of the weight of energy."""

Place = Callable[[Problem, np.random.Generator], Placement]


@dataclass(frozen=True, slots=True)
class Row:
    """Means over the slots of one run: latency (s) by the paper's model and as ``streamed`` by the
    engine, objective a device, energy (J a device and slot).

    ``low``, ``high``: energy of devices whose batteries are at most a fifth and at least four
    fifths full at the start (or the emptiest and the fullest one).
    """

    policy: str
    shares: str
    devices: int
    servers: int
    seed: int
    slots: int
    thrift: float
    latency: float
    streamed: float
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
    few, many = share <= max(0.2, share.min()), share >= min(0.8, share.max())
    found = []
    for _ in range(slots):
        problem = cell.problem()
        chosen = place(problem, rng)
        outcome = evaluate(problem, chosen)
        energy = outcome.energy
        found.append(
            (
                outcome.mean_latency,
                cell.streamed(problem, chosen).mean(),
                outcome.total / settings.devices,
                energy.mean(),
                energy[few].mean(),
                energy[many].mean(),
            )
        )
        cell.step(problem, chosen)
    means = [float(value) for value in np.mean(found, axis=0)]
    where = (settings.devices, settings.servers, seed, slots, settings.thrift)
    return Row(name, kind, *where, *means)


class Rows:
    """Rows that were made, kept in a file of JSON lines if one is given."""

    def __init__(self, path: Path | None) -> None:
        """Read what is there; a line that an interruption cut off is cut away.

        Raises:
            BackendError: the file cannot be read, or is of something else.
        """
        self.path = path
        try:
            self.rows = _read(path) if path is not None and path.exists() else []
        except (OSError, UnicodeDecodeError) as error:
            raise BackendError(f"cannot read {path}: {error}") from error
        self._there = {_key(asdict(row)) for row in self.rows}

    def has(self, **where: Any) -> bool:
        """Whether a run was made before."""
        return _key(where) in self._there

    def add(self, row: Row) -> None:
        """Keep one more.

        Raises:
            BackendError: it cannot be written. What was written before is sound.
        """
        if self.path is not None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(row)) + "\n")
            except OSError as error:
                raise BackendError(f"cannot write {self.path}: {error}") from error
        self.rows.append(row)
        self._there.add(_key(asdict(row)))


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    names = ("policy", "shares", "devices", "servers", "seed", "slots", "thrift")
    return tuple(row[k] for k in names)


def _read(path: Path) -> list[Row]:
    text = path.read_text("utf-8")
    whole = text[: text.rfind("\n") + 1]
    rows = []
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            rows.append(Row(**json.loads(line)))
        except (ValueError, TypeError) as error:
            raise BackendError(
                f"{path}, line {number} is no row of this experiment as this version makes it; "
                f"remove the file or choose another folder"
            ) from error
    if whole != text:
        path.write_text(whole, "utf-8")
    return rows


def learned(actor: Actor, *, matched: bool) -> Place:
    """An exported actor as a policy; ``matched``: TMA-MASAC, see :meth:`Actor.place`."""

    def place(problem: Problem, _rng: np.random.Generator) -> Placement:
        return actor.place(problem, matched=matched)

    return place


TABLE = {(name, kind): placed(name, kind) for name in association.POLICIES for kind in SHARES}
"""Every policy without learning, with equal and with optimised shares."""


def grid(
    rows: Rows,
    points: Iterable[tuple[int, int]],
    *,
    seeds: int = SEEDS,
    slots: int = SLOTS,
    table: Mapping[tuple[str, str], Place] = TABLE,
    thrifts: Iterable[float] = (Settings().thrift,),
    report: Callable[[str], None] = lambda _line: None,
) -> None:
    """Every policy of a table, by its name and shares, at every point and weight of energy."""
    for devices, servers in points:
        for weight, seed, ((name, kind), place) in product(thrifts, range(seeds), table.items()):
            settings = Settings(devices, servers, thrift=weight)
            where = {"devices": devices, "servers": servers, "thrift": weight}
            if not rows.has(policy=name, shares=kind, seed=seed, slots=slots, **where):
                rows.add(run(name, kind, settings, seed, slots=slots, place=place))
        report(f"{devices} devices, {servers} servers")


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
