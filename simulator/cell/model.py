"""A cell: devices with tasks, batteries and places, servers with speeds and queues.

The paper (arXiv 2511.01695, table I) gives the numbers of devices and servers, 10 MHz in all, 16 to
24 dBm, three kinds of task, three phones and three graphics cards. It does not give the sizes of
tasks, the speeds that are reached, slot lengths or the scene: those constants are ours, in one
place below.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from outrider.cloud_server.placement.problem import Placement, Problem, evaluate
from outrider.protocol.errors import SettingError
from outrider.simulator.cell.channel import Channel, scenario
from outrider.simulator.cell.radio import Radio, Replayed, Tracks
from outrider.simulator.cell.stream import table

Floats = NDArray[np.float64]
BAND = 10e6
PHONES = (28e9, 35e9, 22e9)
"""Operations a second that a drafter reaches on the three phones: ours."""
CARDS = (6e12, 16e12, 40e12)
"""The same for a verifier on an RTX 2080, 3090 and 4090: ours, about half of their peak."""
PASSES = (7.1e-3, 3.4e-3, 3.2e-3)
"""Seconds in which the three cards read the target's 3.2 GB once (448, 936 and 1008 GB/s): a pass
over few tokens takes as long. For the streaming engine's delay alone."""
DRAFT_COST = 2 * 137e6
"""Operations a draft token: twice GPT2's parameters."""
VERIFY_COST = 2 * 1.6e9
"""Operations a token of the target: twice GPT2-XL's parameters."""
BITS = 12_000
"""Bits a draft token with its sparse distribution and the packet's part: ours."""


@dataclass(frozen=True, slots=True)
class Task:
    """A kind of task: draft tokens in a slot, and tokens of context that the target reads."""

    name: str
    drafts: tuple[int, int]
    context: tuple[int, int]


TASKS = (
    Task("code", (20, 30), (100, 300)),
    Task("summary", (12, 18), (500, 1000)),
    Task("chat", (15, 25), (50, 400)),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """What a cell is made of. Lengths in metres, times in seconds, energy in joules."""

    devices: int = 30
    servers: int = 4
    side: float = 500.0
    slot: float = 1.0
    speed: tuple[float, float] = (0.0, 2.0)
    power_dbm: tuple[float, float] = (16.0, 24.0)
    battery: tuple[float, float] = (400.0, 4000.0)
    match: float = 1e-2
    thrift: float = 20.0
    channel: str = "umi"
    rtt: float = 0.03

    def check(self) -> None:
        """Raises SettingError where there is no such cell."""
        if self.devices < 1 or self.servers < 1:
            raise SettingError(
                f"a cell has at least one device and one server, not {self.devices} and "
                f"{self.servers}"
            )
        scenario(self.channel)
        for name in ("side", "slot", "rtt"):
            if not 0 < getattr(self, name) < np.inf:
                raise SettingError(f"{name} of a cell must be above 0, not {getattr(self, name)}")
        for name in ("match", "thrift"):
            if not 0 <= getattr(self, name) < np.inf:
                raise SettingError(f"{name} of a cell may not be {getattr(self, name)}")
        for name, least in (("speed", 0.0), ("power_dbm", -np.inf), ("battery", 1e-9)):
            low, high = getattr(self, name)
            if not least <= low <= high < np.inf:
                raise SettingError(f"{name} of a cell cannot go from {low} to {high}")


@dataclass
class Cell:
    """One cell, slot by slot; everything random comes from ``rng``.

    ``radio``: a trace whose places, powers and channels it has instead of its own.
    """

    settings: Settings
    rng: np.random.Generator
    radio: Radio | None = None
    channel: Channel | Replayed = field(init=False)

    def __post_init__(self) -> None:
        self.settings.check()
        s, rng = self.settings, self.rng
        self.servers = _spread(s.servers, s.side, rng)
        self.places = rng.uniform(0, s.side, (s.devices, 2))
        self.goals = rng.uniform(0, s.side, (s.devices, 2))
        self.pace = rng.uniform(*s.speed, s.devices)
        self.phone = rng.choice(PHONES, s.devices)
        cards = rng.integers(0, len(CARDS), s.servers)
        self.card, self.reading = np.array(CARDS)[cards], np.array(PASSES)[cards]
        self.power = 10 ** ((rng.uniform(*s.power_dbm, s.devices) - 30) / 10)
        self.full = np.full(s.devices, s.battery[1])
        self.battery = rng.uniform(*s.battery, s.devices)
        self.queue = np.zeros(s.servers)
        if self.radio is None:
            self.channel = Channel(self.servers, self.places, rng, scenario(s.channel))
        else:
            self._on(self.radio)
        self._new_tasks()

    def _on(self, radio: Radio) -> None:
        s = self.settings
        if radio.gain.shape[1:] != (s.devices, s.servers) or float(radio.slot) != s.slot:
            raise SettingError(
                f"the trace of radio has {radio.gain.shape[1]} devices, {radio.gain.shape[2]} "
                f"servers and slots of {float(radio.slot):g} s; the cell {s.devices}, {s.servers} "
                f"and {s.slot:g} s"
            )
        self.servers, self.places, self.power = radio.servers, radio.places[0], radio.power
        self.channel = Replayed(radio)

    def problem(self) -> Problem:
        """This slot, as the policies see it."""
        s = self.settings
        return Problem(
            gain=self.channel.gain(),
            power=self.power,
            band=np.full(s.servers, BAND / s.servers),
            bits=self.drafts * float(BITS),
            draft=self.drafts * DRAFT_COST / self.phone,
            work=(self.drafts + self.context) * VERIFY_COST,
            speed=self.card,
            queue=self.queue,
            battery=self.battery,
            match=s.match,
            thrift=s.thrift,
        )

    def streamed(self, problem: Problem, placement: Placement) -> Floats:
        """Latency of this slot's tasks by the streaming engine [M], beside the paper's.

        Waiting, a round trip, reading the context with the share of compute, and then as many
        tokens as the paper's model drafts, each as long as the engine's take in virtual time with
        this drafter, uplink and pass. A pass is shared as compute is: a half of it takes twice as
        long.
        """
        s, server, share = self.settings, placement.server, placement.compute
        up = problem.uplink(placement.band, np.arange(s.devices), server)
        each = table().look_up(
            self.kinds,
            draft=DRAFT_COST / self.phone,
            rtt=s.rtt,
            uplink=problem.bits / up / 8.0,
            passes=self.reading[server] / share,
        )
        reading = self.context * VERIFY_COST / (share * self.card[server])
        return np.asarray(problem.queue[server] + s.rtt + reading + self.drafts * each)

    def step(self, problem: Problem, placement: Placement) -> None:
        """The slot passes: batteries fall, queues fill and drain, devices move, tasks are new."""
        s, energy = self.settings, evaluate(problem, placement).energy
        self.battery = np.maximum(self.battery - energy - 1e-9 * self.drafts, 0.02 * self.full)
        brought = np.bincount(placement.server, problem.work, s.servers) / self.card
        left = np.maximum(0.0, self.queue + brought - s.slot)
        self.queue = np.minimum(left, 3 * s.slot)  # the paper's queues are a few slots long
        self.walk()
        self.channel.move(self.places, s.slot)
        self._new_tasks()

    def walk(self) -> None:
        """Towards a random place, then to the next one."""
        s = self.settings
        if isinstance(self.channel, Replayed):
            return
        way = self.goals - self.places
        far = np.linalg.norm(way, axis=1)
        reach = self.pace * s.slot
        there = far <= reach
        unit = way / np.maximum(far, 1e-9)[:, None]
        self.places = np.where(there[:, None], self.goals, self.places + unit * reach[:, None])
        fresh = self.rng.uniform(0, s.side, self.goals.shape)
        self.goals = np.where(there[:, None], fresh, self.goals)

    def _new_tasks(self) -> None:
        self.kinds = self.rng.integers(0, len(TASKS), self.settings.devices)
        low = np.array([(*t.drafts, *t.context) for t in TASKS])[self.kinds]
        self.drafts = self.rng.integers(low[:, 0], low[:, 1] + 1).astype(np.float64)
        self.context = self.rng.integers(low[:, 2], low[:, 3] + 1).astype(np.float64)

    def with_thrift(self, thrift: float) -> None:
        """Weigh energy differently from here on."""
        self.settings = replace(self.settings, thrift=thrift)


def tracks(settings: Settings, seed: int, slots: int) -> Tracks:
    """The ways that the devices of a cell walk, for a generator of radio."""
    cell = Cell(settings, np.random.default_rng(seed))
    places = [cell.places]
    for _ in range(slots - 1):
        cell.walk()
        places.append(cell.places)
    return Tracks(
        places=np.stack(places),
        servers=cell.servers,
        power=cell.power,
        slot=np.array(settings.slot),
        band=np.full(settings.servers, BAND / settings.servers),
    )


def _spread(count: int, side: float, rng: np.random.Generator) -> Floats:
    """Servers on a grid over the square, each moved a little."""
    rows = int(np.ceil(np.sqrt(count)))
    step = side / rows
    grid = [(x, y) for y in range(rows) for x in range(rows)]
    chosen = np.array([grid[i] for i in rng.permutation(len(grid))[:count]], np.float64)
    return np.asarray((chosen + 0.5 + rng.uniform(-0.25, 0.25, (count, 2))) * step)
