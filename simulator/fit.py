"""The figures behind the synthetic profiles, computed from a folder of recordings.

``python -m outrider.simulator.fit FOLDER`` prints them as a table and as the constants that
``simulator/profiles.py`` holds. A rate becomes a :class:`Process`: the quantiles of its means over
a step, and how much a step is like the one before.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from outrider.protocol.errors import SettingError
from outrider.simulator.links import Steps
from outrider.simulator.profiles import LEVELS, Process
from outrider.simulator.traces import (
    MEGABIT,
    mahimahi,
    pitree,
    starlink_rates,
    starlink_rtt,
    ucc_5g,
)

SLOT = 15.0
"""Starlink gives every terminal a satellite for 15 seconds."""

LAGS = (1, 10, 25)
"""The first two are fitted; the third shows how far that carries."""

Series = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted process, how many steps it was fitted to, and how alike they are.

    ``likeness``: the correlation of normal scores at the :data:`LAGS`.
    """

    process: Process
    steps: int
    likeness: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Fits:
    """All that the profiles need. ``rates`` in Mbit/s, ``floors`` and ``jitter`` in ms."""

    rates: dict[str, Fit]
    floors: Fit
    starlink_jitter: float
    starlink_loss: float
    nr_jitter: float
    nr_loss: float


def fit(folder: Path) -> Fits:
    """Fit everything. Raises ``SettingError`` for a recording that is missing or malformed."""
    wifi = [pitree(path) for path in _all(folder / "wifi-zhuge", "*.pitree-trace")]
    nr = [ucc_5g(path) for path in _all(folder / "5g-ucc", "*.csv")]
    lte = folder / "lte-mahimahi"
    star = folder / "starlink-mmsys24"
    pings = star / "rtt-gateway-bentpipe.csv"
    floors, jitter, loss = _hand_overs(pings)
    return Fits(
        rates={
            "WIFI_RATE": _rates(wifi, 0.2),
            "LTE_UP": _rates([mahimahi(lte / "Verizon-LTE-short.up")], 0.2),
            "LTE_DOWN": _rates([mahimahi(lte / "Verizon-LTE-short.down")], 0.2),
            "NR_DOWN": _rates([session.down for session in nr], 1.0),
            "STARLINK_UP": _rates([starlink_rates(star / "up-bentpipe.csv")], 1.0),
            "STARLINK_DOWN": _rates([starlink_rates(star / "down-bentpipe.csv")], 1.0),
        },
        floors=floors,
        starlink_jitter=jitter,
        starlink_loss=loss,
        # Both directions share what a round trip has.
        nr_jitter=round(float(np.mean([session.spread for session in nr])) * 500, 2),
        nr_loss=round(float(np.mean([session.ping_loss for session in nr])), 4),
    )


def _all(folder: Path, pattern: str) -> list[Path]:
    found = sorted(folder.glob(pattern))
    if not found:
        raise SettingError(f"{folder}: no {pattern} there")
    return found


def _rates(recordings: Sequence[Steps], step: float) -> Fit:
    """Fit means over ``step`` seconds, all recordings weighed by their length."""
    series = []
    for steps in recordings:
        edges = [steps.sum_to(i * step) for i in range(int(steps.period / step) + 1)]
        series.append(np.diff(np.array(edges)) / step / MEGABIT)
    return _process(series, step)


def _process(series: Sequence[Series], step: float) -> Fit:
    pooled = np.concatenate(series)
    quantiles = tuple(round(float(q), 3) for q in np.quantile(pooled, LEVELS))
    # Likeness is measured on normal scores, as the process is a normal one behind its quantiles.
    order = pooled.argsort(kind="stable").argsort(kind="stable")
    normal = NormalDist()
    scores = np.array([normal.inv_cdf((rank + 0.5) / len(pooled)) for rank in order])
    parts = np.split(scores, np.cumsum([len(part) for part in series])[:-1])
    likeness = tuple(round(_likeness(parts, lag), 3) for lag in LAGS)
    near, far = likeness[:2]
    # The part with memory has near = memory * rho and far = memory * rho ** 10. Where the
    # recording is too short to show a memory that long, all of it has the first lag's.
    rho, memory = near, 1.0
    if near > far > near**10:
        rho = (far / near) ** (1 / 9)
        memory = near / rho
    process = Process(
        step=step, quantiles=quantiles, rho=round(rho, 3), memory=round(min(memory, 1.0), 3)
    )
    return Fit(process, len(pooled), likeness)


def _likeness(parts: Sequence[Series], lag: int) -> float:
    """The mean product of scores ``lag`` steps apart: their correlation, as their variance is 1."""
    products = [part[lag:] * part[:-lag] for part in parts if len(part) > lag]
    return float(np.mean(np.concatenate(products)))


def _hand_overs(path: Path) -> tuple[Fit, float, float]:
    """Split round trips into a floor for each slot and the rest.

    The floor is the 5th percentile. The rest, in the mean and halved, is each direction's jitter.
    """
    rtt = starlink_rtt(path)
    times, values = np.array(rtt.starts), np.array(rtt.values) * 1000
    slots = (times // SLOT).astype(int)
    kept = [values[slots == slot] for slot in range(int(rtt.period // SLOT))]
    floors = np.array([np.quantile(part, 0.05) for part in kept if len(part)])
    rest = float(np.mean(np.concatenate([p - np.quantile(p, 0.05) for p in kept if len(p)])))
    return _process([floors], SLOT), round(rest / 2, 2), round(_lost(path), 5)


def _lost(path: Path) -> float:
    """The share of pings without an answer."""
    answers = [line.rpartition(",")[2].strip() for line in path.read_text("utf-8").splitlines()[1:]]
    return answers.count("-1") / len(answers)


def table(fits: Fits) -> str:
    """The fits as text."""
    lags = [text for lag in LAGS for text in (f"lag {lag}", "model")]
    rows = [("", "step s", "steps", "mean", "p1", "p5", "p50", "p95", "p99", *lags)]
    for name, each in (*fits.rates.items(), ("STARLINK_FLOORS ms", fits.floors)):
        p = each.process
        at = dict(zip(LEVELS, p.quantiles, strict=True))
        numbers = (p.mean, *(at[level] for level in (0.01, 0.05, 0.5, 0.95, 0.99)))
        both = zip(each.likeness, LAGS, strict=True)
        likeness = [x for real, lag in both for x in (real, p.memory * p.rho**lag)]
        cells = (f"{x:.2f}" for x in (*numbers, *likeness))
        rows.append((name, f"{p.step:g}", str(each.steps), *cells))
    lines = ((f"{row[0]:<18}", *(f"{cell:>8}" for cell in row[1:])) for row in rows)
    return "\n".join("".join(line) for line in lines)


def constants(fits: Fits) -> str:
    """The fits as the Python lines of ``profiles.py``."""
    lines = [
        f"{name} = {each.process!r}"
        for name, each in (*fits.rates.items(), ("STARLINK_FLOORS", fits.floors))
    ]
    lines += [
        f"STARLINK_JITTER = {fits.starlink_jitter}",
        f"STARLINK_LOSS = {fits.starlink_loss}",
        f"NR_JITTER = {fits.nr_jitter}",
        f"NR_LOSS = {fits.nr_loss}",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the fits of a folder. 2: a recording is missing or malformed."""
    parser = argparse.ArgumentParser(prog="python -m outrider.simulator.fit", description=__doc__)
    parser.add_argument("folder", type=Path, help="the recordings, a folder for each source")
    try:
        fits = fit(parser.parse_args(arguments).folder)
    except SettingError as error:
        print(error, file=sys.stderr)
        return 2
    print(table(fits))
    print()
    print(constants(fits))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
