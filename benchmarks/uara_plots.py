"""Pictures of the placement experiment: latency, gains, the battery's trade, the other delay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outrider.benchmarks.uara_table import TRADE
from outrider.protocol.errors import BackendError
from outrider.runtime.extras import hint

SHOWN = (
    ("random", "equal"),
    ("max-sinr", "equal"),
    ("max-compute", "equal"),
    ("max-sinr", "optimised"),
    ("tma", "optimised"),
    ("greedy", "optimised"),
    ("tma-moves", "optimised"),
    ("tma-masac", "learned"),
    ("hybrid-masac", "learned"),
)
MARKS = "o^sDvPX*p"
DEVICES, SERVERS = 120, 12
"""The column and the row of the whole grid that are drawn."""

Point = tuple[int, int]


def draw(result: dict[str, Any], out: Path) -> None:
    """Six panels in one file.

    Raises:
        BackendError: matplotlib is missing or the file cannot be written.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise BackendError(f"matplotlib is not installed: {hint('bench')}") from error
    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(2, 3, figsize=(17, 10), layout="constrained")
    usual = min(row["thrift"] for row in result["rows"])
    rows = [row for row in result["rows"] if row["thrift"] == usual]
    points = sorted({(row["devices"], row["servers"]) for row in rows})
    column = [point for point in points if point[1] == SERVERS]
    line = [point for point in points if point[0] == DEVICES]
    if len(column) < 3 or len(line) < 3:  # a small grid: all of it, in both
        column = line = points
    _latency(panels[0, 0], rows, column, "latency", "Latency, the paper's model")
    _latency(panels[0, 1], rows, line, "latency", "Latency, the paper's model")
    _latency(panels[0, 2], rows, column, "streamed", "Latency, the streaming engine's")
    _gain(panels[1, 0], result)
    _battery(panels[1, 1], result)
    _ranks(panels[1, 2], result)
    try:
        figure.savefig(out, dpi=90)
    except (OSError, ValueError) as error:
        raise BackendError(f"cannot write {out}: {error}") from error
    finally:
        pyplot.close(figure)


def _latency(
    axes: Any, rows: list[dict[str, Any]], points: list[Point], key: str, title: str
) -> None:
    for (name, kind), mark in zip(SHOWN, MARKS, strict=True):
        found = {
            (row["devices"], row["servers"]): row
            for row in rows
            if (row["policy"], row["shares"]) == (name, kind)
        }
        there = [point for point in points if point in found]
        if not there:
            continue
        axes.errorbar(
            [points.index(point) for point in there],
            [found[point][f"{key}_s"] for point in there],
            yerr=[found[point][f"{key}_interval_s"] for point in there],
            label=f"{name}, {kind}",
            marker=mark,
            linestyle={"equal": "--", "optimised": "-", "learned": ":"}[kind],
            capsize=2,
        )
    shown = [row[f"{key}_s"] for row in rows if (row["devices"], row["servers"]) in points]
    axes.set_xticks(range(len(points)), [f"{m} / {e}" for m, e in points])
    axes.set_yscale("log")
    axes.set_ylim(0.7 * min(shown), 1.4 * max(shown))
    axes.set(xlabel="devices / servers", ylabel="mean latency, s")
    axes.set_title(f"{title} (simulated)")
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize=7)


def _gain(axes: Any, result: dict[str, Any]) -> None:
    found = result["reductions"]
    names = sorted(found, key=lambda name: float(found[name][0]))
    colours = {"equal": "#4c78a8", "optimised": "#72b7b2", "learned": "#e45756"}
    axes.barh(
        range(len(names)),
        [100 * found[name][0] for name in names],
        xerr=[100 * found[name][1] for name in names],
        color=[colours[name.rpartition(", ")[2]] for name in names],
        capsize=2,
    )
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set(xlabel="latency lower than, % (95% intervals over points and seeds)")
    axes.set_title(f"{result['default_policy']} with optimised shares against")
    axes.grid(alpha=0.3, axis="x")


def _battery(axes: Any, result: dict[str, Any]) -> None:
    rows = result["thrift"]
    weights = [row["thrift"] for row in rows]
    for key, label, style in (
        ("energy_low_battery", "energy, batteries at most 20% full", "-"),
        ("energy_high_battery", "energy, batteries at least 80% full", "-"),
        ("latency", "latency", "--"),
    ):
        axes.errorbar(
            weights,
            [100 * row[f"{key}_over_first"] for row in rows],
            yerr=[100 * row[f"{key}_over_first_interval"] for row in rows],
            marker="o",
            linestyle=style,
            capsize=2,
            label=label,
        )
    axes.set(
        xlabel="weight of energy, w",
        ylabel=f"% of the same seed's at w = {weights[0]:g} (95% intervals)",
    )
    axes.legend(fontsize=8)
    axes.set_title(f"Energy against latency ({TRADE[0]} devices, {TRADE[1]} servers)")
    axes.grid(alpha=0.3)


def _ranks(axes: Any, result: dict[str, Any]) -> None:
    """Each policy by both delays."""
    rows = result["ranking"]
    for shift, key, label in ((0.2, "latency", "the paper's"), (-0.2, "streamed", "the engine's")):
        axes.barh(
            [len(rows) - i + shift for i in range(len(rows))],
            [row[key] for row in rows],
            height=0.4,
            label=label,
        )
    names = [f"{row['policy']}, {row['shares']}" for row in rows]
    axes.set_yticks([len(rows) - i for i in range(len(rows))], names, fontsize=8)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set(xlabel="latency over that of greedy with optimised shares")
    axes.set_title("The same placements by both delays")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3, axis="x")
