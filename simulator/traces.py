"""Recorded links, read from the files in which five projects published them.

Every loader gives :class:`Steps` that begin anew at the end: rates in bytes a second, round trips
in seconds. A file that is missing or malformed is a ``SettingError`` that names it and the line.
The recordings themselves are not part of this project.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from outrider.protocol.errors import SettingError
from outrider.simulator.links import PACKET, Direction, Link, Steps

MEGABIT = 1e6 / 8
KILOBIT = 1e3 / 8

MAX_LINES = 2_000_000
"""More than any of the recordings has; a file that goes on for ever is not read to the end."""

IDLE = 100 * KILOBIT
"""Below this a download session is between two downloads: what it gets says nothing of the link."""

_PING = ("ping_avg_ms", "ping_min_ms", "ping_loss")
_UNITS = {"bits/sec": 1 / 8, "Kbits/sec": KILOBIT, "Mbits/sec": MEGABIT}


def mahimahi(path: Path, step: float = 0.02) -> Steps:
    """Rates of a mahimahi file: a line for each packet that may leave, in milliseconds.

    Packets are counted in bins of ``step`` seconds. The last line is where the trace begins anew.
    """
    times: list[int] = []
    for number, line in _lines(path):
        if not line.isascii() or not line.isdigit():
            raise _bad(path, number, f"{line!r} is not a whole number of milliseconds")
        if times and int(line) < times[-1]:
            raise _bad(path, number, f"{line} ms comes after {times[-1]} ms")
        times.append(int(line))
    if not times or not times[-1]:
        raise SettingError(f"{path}: a trace must last longer than 0 ms")
    period = times[-1] / 1000
    bins = math.ceil(period / step - 1e-9)
    counts = [0] * bins
    for time in times:
        counts[min(int(time / 1000 / step + 1e-9), bins - 1)] += 1
    starts = [i * step for i in range(bins)]
    ends = [*starts[1:], period]
    rates = [n * PACKET / (b - a) for n, a, b in zip(counts, starts, ends, strict=True)]
    return Steps(starts, rates, period)


def nyu_mets(path: Path) -> Steps:
    """Rates of an NYU-METS file: ``value,unit`` once a second, the unit chosen line by line."""
    rates = []
    for number, line in _lines(path):
        value, comma, unit = line.partition(",")
        if not comma or unit.strip() not in _UNITS:
            known = ", ".join(_UNITS)
            raise _bad(path, number, f"{line!r} is not a value with a unit out of {known}")
        rates.append(_number(path, number, value, "rate") * _UNITS[unit.strip()])
    return _carrying(path, Steps.every(1.0, rates) if rates else None)


def pitree(path: Path) -> Steps:
    """Rates of a pitree file: ``seconds Mbit/s``, each line the time at which its rate ends."""
    times, rates = [0.0], []
    for number, line in _lines(path):
        parts = line.split()
        if len(parts) != 2:
            raise _bad(path, number, f"{line!r} is not a time and a rate")
        times.append(_later(path, number, parts[0], times[-1]))
        rates.append(_number(path, number, parts[1], "rate") * MEGABIT)
    return _carrying(path, Steps(times[:-1], rates, times[-1]) if rates else None)


def starlink_rates(path: Path, step: float = 1.0) -> Steps:
    """Rates of an iperf3 file with ``t_s`` and ``mbit_s``: means over ``step`` seconds.

    A row is what the last tenth of a second moved. An uplink row is what entered the socket, so
    that most are zero and some are huge: over less than a second it says nothing of the link.
    """
    moved: dict[int, float] = {}
    last = 0.0
    for number, row in _table(path, ("t_s", "mbit_s")):
        time = _later(path, number, row["t_s"], last)
        amount = _number(path, number, row["mbit_s"], "mbit_s") * MEGABIT * (time - last)
        # Timers are late by a millisecond or so: a row belongs where its middle lies.
        slot = int((last + time) / 2 / step)
        moved[slot] = moved.get(slot, 0.0) + amount
        last = time
    slots = max(1, round(last / step)) if moved else 0
    rates = [moved.get(slot, 0.0) / step for slot in range(slots)]
    return _carrying(path, Steps.every(step, rates) if rates else None)


def starlink_rtt(path: Path) -> Steps:
    """Round trips of a ping file with ``t_s`` and ``rtt_ms``; -1, a lost one, is left out."""
    times, rtts = [], []
    last = -1.0
    for number, row in _table(path, ("t_s", "rtt_ms")):
        last = _later(path, number, row["t_s"], last)
        if row["rtt_ms"].strip() == "-1":
            continue
        times.append(last)
        rtts.append(_number(path, number, row["rtt_ms"], "rtt_ms") / 1000)
    return _held(path, times, rtts, last)


@dataclass(frozen=True, slots=True)
class Cellular:
    """A 5G or LTE session: what a download got, and the pings beside it.

    ``spread``: how far, in the mean, the mean of a few pings is above the quickest of them, in
    seconds. ``ping_loss``: the share of pings lost, where any of them came back.
    """

    down: Steps
    rtt: Steps
    spread: float
    ping_loss: float


def ucc_5g(path: Path, idle: float = IDLE) -> Cellular:
    """Read a 5G file: about a row a second, ``dl_kbit_s`` always, a ping on one row in 13.

    Rows with the same ``t_s`` are averaged, a missing second keeps the value before it. Below
    ``idle`` bytes a second the application was not downloading: the rate before is carried on. (A
    true outage is taken for a pause as well, as the file does not tell them apart.) The uplink
    column holds acknowledgements only and is not read.
    """
    rates: dict[float, list[float]] = {}
    pings: dict[float, float] = {}
    spreads: list[float] = []
    losses: list[float] = []
    last = 0.0
    for number, row in _table(path, ("t_s", "dl_kbit_s", *_PING)):
        last = _later(path, number, row["t_s"], last, same=True)
        rate = _number(path, number, row["dl_kbit_s"], "dl_kbit_s") * KILOBIT
        if rate >= idle:
            rates.setdefault(last, []).append(rate)
        if row["ping_avg_ms"].strip():
            mean, least, loss = (_number(path, number, row[name], name) for name in _PING)
            pings[last] = mean / 1000
            spreads.append(max(0.0, mean - least) / 1000)
            losses.append(loss / 100)
    means = [sum(values) / len(values) for values in rates.values()]
    down = _carrying(path, _held(path, list(rates), means, last + 1))
    rtt = _held(path, list(pings), list(pings.values()), last + 1)
    return Cellular(down, rtt, sum(spreads) / len(spreads), sum(losses) / len(losses))


def replay(folder: str | Path, name: str) -> Link:
    """Give a link that replays recordings: ``wifi``, ``lte``, ``5g-driving`` or ``starlink``.

    ``folder`` has a folder for each source. Raises ``SettingError`` for another name.
    """
    if name not in REPLAYS:
        raise SettingError(f"replay {name!r}: known are {', '.join(REPLAYS)}")
    return REPLAYS[name](Path(folder))


def _wifi(folder: Path) -> Link:
    rates = pitree(folder / "wifi-zhuge" / "office-wifi_0.pitree-trace")
    way = Direction(rate=rates, delay=0.003, jitter=0.001)
    about = "recorded office Wi-Fi, the same rates both ways; delay assumed"
    return Link(name="wifi-replay", up=way, down=way, about=about)


def _lte(folder: Path) -> Link:
    up, down = (
        Direction(rate=mahimahi(folder / "lte-mahimahi" / name), delay=0.025, jitter=0.005)
        for name in ("Verizon-LTE-short.up", "Verizon-LTE-short.down")
    )
    about = "recorded LTE (Verizon), both ways; delay assumed"
    return Link(name="lte-replay", up=up, down=down, about=about)


def _5g_driving(folder: Path) -> Link:
    drive = ucc_5g(folder / "5g-ucc" / "driving-a.csv")
    half = drive.rtt.scaled(0.5)
    return Link(
        name="5g-driving-replay",
        up=Direction(rate=drive.down.scaled(0.2, floor=MEGABIT), delay=half),
        down=Direction(rate=drive.down, delay=half),
        about="recorded 5G in a car: downlink and ping; the uplink is assumed at a fifth",
    )


def _starlink(folder: Path) -> Link:
    source = folder / "starlink-mmsys24"
    half = starlink_rtt(source / "rtt-gateway-bentpipe.csv").scaled(0.5, offset=0.005)
    return Link(
        name="starlink-replay",
        up=Direction(rate=starlink_rates(source / "up-bentpipe.csv"), delay=half),
        down=Direction(rate=starlink_rates(source / "down-bentpipe.csv"), delay=half),
        about="recorded Starlink (bent pipe): rates as means of a second, ping plus 10 ms",
    )


REPLAYS: dict[str, Callable[[Path], Link]] = {
    "wifi": _wifi,
    "lte": _lte,
    "5g-driving": _5g_driving,
    "starlink": _starlink,
}
"""The links that :func:`replay` can make, by name."""


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, with their numbers."""
    try:
        with path.open(encoding="utf-8", newline=None) as file:
            for number, line in enumerate(file, 1):
                if number > MAX_LINES:
                    raise _bad(path, number, f"more than {MAX_LINES} lines")
                if line.strip():
                    yield number, line.strip()
    except OSError as error:
        raise SettingError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingError(f"{path}: this is not text") from error


def _table(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows below a header that must have the ``columns``."""
    names: list[str] | None = None
    for number, line in _lines(path):
        cells = next(csv.reader([line]))
        if names is None:
            names = [cell.strip() for cell in cells]
            missing = [column for column in columns if column not in names]
            if missing:
                raise _bad(path, number, f"no column {', '.join(missing)}")
        elif len(cells) != len(names):
            raise _bad(path, number, f"{len(cells)} cells under {len(names)} columns")
        else:
            yield number, dict(zip(names, cells, strict=True))


def _number(path: Path, line: int, text: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise _bad(path, line, f"{what} {text!r} is not a number of 0 or more")
    return value


def _later(path: Path, line: int, text: str, last: float, *, same: bool = False) -> float:
    """A time that must come after ``last``, or be the ``same``."""
    time = _number(path, line, text, "time")
    if time < last or (time == last and not same):
        raise _bad(path, line, f"time {text} comes after {last:g}")
    return time


def _held(path: Path, times: list[float], values: list[float], end: float) -> Steps:
    """Values that hold until the next one; the first holds from 0."""
    if not times:
        raise SettingError(f"{path}: no usable rows")
    # The last sample holds for a mean step where the file ends with it.
    period = end if end > times[-1] else times[-1] * (1 + 1 / len(times)) or 1.0
    return Steps([0.0, *times[1:]], values, period)


def _carrying(path: Path, steps: Steps | None) -> Steps:
    """Refuse rates that never carry a byte: whoever sends over them waits for ever."""
    if steps is None or not steps.mean:
        raise SettingError(f"{path}: no rate above 0")
    return steps


def _bad(path: Path, line: int, what: str) -> SettingError:
    return SettingError(f"{path}, line {line}: {what}")
