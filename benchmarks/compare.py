"""``outrider bench compare``: two results of one benchmark, figure by figure."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from outrider.benchmarks import meta
from outrider.protocol.errors import SettingError

DRAWS, SEED = 10_000, 0
REPEATS = ("seed", "repeat")
"""Fields by which rows are repetitions of one thing and not different things."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """B over A: means, and of the ratio of means the 95% interval (None: too few values)."""

    metric: str
    a: float
    b: float
    ratio: float | None
    low: float | None
    high: float | None
    n_a: int
    n_b: int


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="A result: JSON, or JSON lines.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another of the same benchmark.")],
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "--metric",
            metavar="NAME",
            help="Only figures of this name; * stands for anything. May be repeated.",
        ),
    ] = None,
    fail_under: Annotated[
        float | None,
        typer.Option(
            "--fail-under",
            metavar="R",
            help="Exit status 1 where B over A of a figure named by --metric is less than this.",
        ),
    ] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on standard output.")
    ] = False,
) -> None:
    """Two results of one benchmark: B over A, with 95% intervals where there are several runs.

    Several runs of a benchmark, one after the other in a file, are its
    repetitions; so are rows that differ in their seed.

    Example: outrider bench compare before.jsonl after.jsonl --metric 'tokens_per_second'
    """
    if fail_under is not None and not metric:
        raise SettingError("--fail-under needs --metric: of some figures more is better, of others")
    ratios = compared(read(a), read(b), metric or [])
    if not ratios:
        asked = f" named {', '.join(metric)}" if metric else ""
        raise SettingError(f"{a} and {b} have no figure{asked} in common")
    low = [
        r for r in ratios if fail_under is not None and (r.ratio is None or r.ratio < fail_under)
    ]
    if json_output:
        meta.emit(
            {"ratios": [asdict(r) for r in ratios], "failed": [r.metric for r in low]}, [SEED]
        )
    else:
        _show(ratios)
        for r in low:
            print(f"{r.metric}: {_figure(r.ratio)} is under {fail_under:g}")
    if low:
        raise typer.Exit(1)


def read(file: Path) -> dict[str, list[float]]:
    """All figures of all runs in a file, by name.

    Raises:
        SettingError: it cannot be read, or holds something else.
    """
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"cannot read {file}: {error}") from error
    found: dict[str, list[float]] = defaultdict(list)
    decoder, at = json.JSONDecoder(), 0
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        try:
            run, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise SettingError(f"{file}: not JSON at line {error.lineno}: {error.msg}") from error
        if not isinstance(run, dict):
            raise SettingError(f"{file}: a result is a JSON object")
        for name, value in figures({k: v for k, v in run.items() if k != "meta"}):
            found[name].append(value)
    return dict(found)


def figures(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Every number in a result, named by where it stands; rows are called by their texts."""
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, int | float):
        yield name, float(value)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if key not in REPEATS:
                yield from figures(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        counts: dict[tuple[str, bool], int] = defaultdict(int)
        for row in value:
            if not isinstance(row, Mapping):
                continue  # a curve or samples: its places have no names
            label = ",".join(v for v in row.values() if isinstance(v, str))
            repeated = any(field in row for field in REPEATS)
            place = counts[label, repeated]
            counts[label, repeated] += 1
            # Rows that are called alike are told apart by their order, which is the benchmark's.
            mark = f"#{place + 1}" if place and not repeated else ""
            yield from figures(row, f"{name}[{label}{mark}]")


def compared(
    a: Mapping[str, Sequence[float]], b: Mapping[str, Sequence[float]], names: Sequence[str]
) -> list[Ratio]:
    """Those figures that both have, in A's order. A name without dots is that of the last part."""
    return [
        ratio_of(name, a[name], b[name])
        for name in a
        if name in b and (not names or any(_named(name, pattern) for pattern in names))
    ]


def ratio_of(metric: str, a: Sequence[float], b: Sequence[float]) -> Ratio:
    """The ratio of means, and its percentile bootstrap interval (Efron 1979)."""
    one, two = np.asarray(a, np.float64), np.asarray(b, np.float64)
    low = high = None
    ratio = float(two.mean() / one.mean()) if one.mean() else None
    if ratio is not None and min(one.size, two.size) > 1:
        rng = np.random.default_rng(SEED)
        below = rng.choice(one, (DRAWS, one.size)).mean(axis=1)
        above = rng.choice(two, (DRAWS, two.size)).mean(axis=1)
        if (below != 0).all():
            low, high = (float(q) for q in np.quantile(above / below, (0.025, 0.975)))
    return Ratio(metric, float(one.mean()), float(two.mean()), ratio, low, high, one.size, two.size)


def _named(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(name.rpartition(".")[2], pattern)


def _show(ratios: Sequence[Ratio]) -> None:
    table = Table("figure", box=None, pad_edge=False, header_style="dim")
    for head in ("A", "B", "B / A", "95%", "n"):
        table.add_column(head, justify="right", no_wrap=True)
    for r in ratios:
        span = f"{r.low:.3f} to {r.high:.3f}" if r.low is not None and r.high is not None else "-"
        table.add_row(
            r.metric, f"{r.a:.4g}", f"{r.b:.4g}", _figure(r.ratio), span, f"{r.n_a}, {r.n_b}"
        )
    Console(markup=False, highlight=False).print(table)


def _figure(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.3f}"
