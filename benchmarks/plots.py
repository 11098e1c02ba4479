"""Pictures of the tables. Needs matplotlib, which is imported only here: extra ``bench``."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outrider.benchmarks.sweeps import UNITS
from outrider.protocol.errors import BackendError
from outrider.runtime.extras import hint

SHOWN = (
    "cloud",
    "cloud + n-gram",
    "lockstep",
    "co-located",
    "own",
    "published",
    "streaming",
    "adaptive",
)
"""Groups and strategies with a bar or a line each; of a group, its best row."""


def draw_links(result: dict[str, Any], path: Path) -> None:
    """The tables, and beside them one picture a sweep, named after it.

    Raises:
        BackendError: matplotlib is not installed.
    """
    draw(result, path)
    for name, swept in result["sweeps"].items():
        kind, _, machine = name.partition(", machine ")
        beside = path.with_stem(f"{path.stem}-{kind}-{machine}")
        draw_sweep(swept["rows"], UNITS[kind], beside)


def draw(result: dict[str, Any], path: Path) -> None:
    """Tokens a second by link, a panel for each machine and way. The ending says which format.

    Raises:
        BackendError: matplotlib is not installed.
    """
    pyplot = _pyplot()
    rows = result["rows"]
    keys = ("way", "machine", "record", "prompt")
    panels = list(dict.fromkeys(tuple(r[k] for k in keys) for r in rows))
    if not panels:
        return
    figure, axes = pyplot.subplots(
        len(panels), 1, figsize=(11, 3.2 * len(panels)), squeeze=False, layout="constrained"
    )
    for panel, axis in zip(panels, axes[:, 0], strict=True):
        part = [r for r in rows if tuple(r[k] for k in keys) == panel]
        way, machine, record, prompt = panel
        links = list(dict.fromkeys(r["link"] for r in part))
        for i, name in enumerate(SHOWN):
            best = [_best(part, link, name) for link in links]
            places = [x + (i - len(SHOWN) / 2) * 0.1 for x in range(len(links))]
            axis.bar(places, best, 0.1, label=name)
        axis.set_xticks(range(len(links)), links)
        axis.set_ylabel("tokens/s")
        paced = "paced" if part[0]["paced"] else "not paced"
        axis.set_title(f"{way}, machine {machine}, {record}, prompt: {prompt}, {paced}", fontsize=9)
    axes[0, 0].legend(fontsize=7, ncols=4)
    figure.savefig(path)
    pyplot.close(figure)


def draw_sweep(rows: Sequence[dict[str, Any]], unit: str, path: Path) -> None:
    """Tokens a second over the value that was swept.

    Raises:
        BackendError: matplotlib is not installed.
    """
    pyplot = _pyplot()
    figure, axis = pyplot.subplots(figsize=(8, 4), layout="constrained")
    values = list(dict.fromkeys(r["value"] for r in rows))
    for name in SHOWN:
        best = [_best([r for r in rows if r["value"] == v], None, name) for v in values]
        axis.plot(values, best, marker=".", label=name)
    axis.set_xscale("symlog")
    axis.set_xlabel(unit)
    axis.set_ylabel("tokens/s")
    axis.legend(fontsize=7)
    figure.savefig(path)
    pyplot.close(figure)


def draw_wire(result: dict[str, Any], path: Path) -> None:
    """Acceptance over that of full rows against uplink bytes a token, by kind of row; and tokens a
    second of each rule by uplink rate.

    Raises:
        BackendError: matplotlib is not installed.
    """
    pyplot = _pyplot()
    figure, (axis, below) = pyplot.subplots(2, 1, figsize=(8, 8), layout="constrained")
    rows = result["ratio_curve"]
    for kind in dict.fromkeys(r["kind"] for r in rows):
        part = [r for r in rows if r["kind"] == kind]
        sizes = [r["bytes_up_per_token"] for r in part]
        axis.scatter(sizes, [r["acceptance_over_full"] for r in part], label=kind, s=14)
    axis.set_xscale("log")
    axis.set_xlabel("uplink bytes a token")
    axis.set_ylabel("acceptance / that of full rows")
    axis.legend(fontsize=7)
    measured = result["rules_measured"]
    rates = [r["uplink_bits_per_second"] for r in measured]
    for name in measured[0]["tokens_per_second"]:
        below.plot(rates, [r["tokens_per_second"][name] for r in measured], label=name, marker=".")
    below.set_xscale("log")
    below.set_xlabel("uplink, bits a second (embedded pair, class (a), 60 ms, virtual time)")
    below.set_ylabel("tokens a second")
    below.legend(fontsize=7)
    figure.savefig(path)
    pyplot.close(figure)


def draw_speedups(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Speed over that of plain collaborative decoding, a bar a row.

    Raises:
        BackendError: matplotlib is not installed.
    """
    pyplot = _pyplot()
    figure, axis = pyplot.subplots(figsize=(8, 0.25 * len(rows) + 1), layout="constrained")
    names = [
        f"{r['place']}, {r.get('pair', 'machine a')}, {r['kind']}, {r['models']} models, "
        f"T {r['temperature']:g}"
        for r in rows
    ]
    axis.barh(range(len(rows)), [r["speedup"] for r in rows])
    axis.set_yticks(range(len(rows)), names, fontsize=6)
    axis.axvline(1.0, color="black", linewidth=0.8)
    axis.set_xlabel("speed / plain collaborative decoding (virtual time)")
    figure.savefig(path)
    pyplot.close(figure)


def draw_cosine(result: dict[str, Any], path: Path) -> None:
    """Accepted lengths by way, changes by load, and routing scores along a text.

    Raises:
        BackendError: matplotlib is not installed.
    """
    pyplot = _pyplot()
    figure, (top, middle, bottom) = pyplot.subplots(3, 1, figsize=(9, 10), layout="constrained")
    ablation = result["ablation"]
    top.barh(list(ablation), list(ablation.values()))
    top.set_xlabel("tokens a pass (assumed acceptance, virtual time)")
    cells = [t for t in result["table"] if t["way"] == "group, streaming"]
    names = [f"{t['arrivals']}, {t['edges']} edges, {t['lan_ms']:g} ms" for t in cells]
    middle.barh(names, [100 * t["throughput_change"] for t in cells])
    middle.axvline(0.0, color="black", linewidth=0.8)
    middle.set_xlabel("throughput against the best single drafter with streaming, %")
    points = result["scores"]
    for member, name in enumerate(("general", "domain 0", "domain 1", "domain 2")):
        scores = [p["scores"][member] for p in points]
        bottom.plot([p["length"] for p in points], scores, label=name)
    changes = [b["length"] for a, b in itertools.pairwise(points) if a["domain"] != b["domain"]]
    for length in changes:
        bottom.axvline(length, color="grey", linewidth=0.5)
    bottom.set_xlabel("ids of a text whose domain changes at the lines")
    bottom.set_ylabel("routing score")
    bottom.legend(fontsize=7, ncols=4)
    figure.savefig(path)
    pyplot.close(figure)


def _best(rows: Sequence[dict[str, Any]], link: str | None, name: str) -> float:
    """The best rate of a strategy or group (objective latency where it is ours) on a link."""
    ours = [r for r in rows if link in (None, r["link"])]
    if name == "adaptive":
        ours = [r for r in ours if r["objective"] == "latency"]
    return max(
        (
            float(r["tokens_per_second"])
            for r in ours
            if r["strategy"] == name or (name != "cloud" and r["group"] == name)
        ),
        default=0.0,
    )


def _pyplot() -> Any:
    try:
        matplotlib = importlib.import_module("matplotlib")
        matplotlib.use("agg")
        return importlib.import_module("matplotlib.pyplot")
    except ImportError as error:
        raise BackendError(f"a plot needs matplotlib: {hint('bench')}") from error
