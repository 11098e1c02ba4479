"""Pictures of the placement experiment: latency, gain over baselines, the battery's trade."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outrider.protocol.errors import BackendError
from outrider.runtime.extras import hint

SHOWN = (
    ("random", "equal"),
    ("max-sinr", "equal"),
    ("max-compute", "equal"),
    ("max-sinr", "optimised"),
    ("greedy", "optimised"),
    ("tma", "optimised"),
    ("tma-moves", "optimised"),
)


def draw(result: dict[str, Any], out: Path) -> None:
    """Three panels in one file.

    Raises:
        BackendError: matplotlib is missing or the file cannot be written.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise BackendError(f"matplotlib is not installed: {hint('bench')}") from error
    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(15, 4.6), layout="constrained")
    _latency(left, result)
    _gain(middle, result)
    _battery(right, result)
    try:
        figure.savefig(out, dpi=110)
    except (OSError, ValueError) as error:
        raise BackendError(f"cannot write {out}: {error}") from error
    finally:
        pyplot.close(figure)


def _latency(axes: Any, result: dict[str, Any]) -> None:
    usual = min(row["thrift"] for row in result["rows"])
    rows = [row for row in result["rows"] if row["thrift"] == usual]
    points = sorted({(row["devices"], row["servers"]) for row in rows})
    for number, (name, kind) in enumerate(SHOWN):
        found = {
            (row["devices"], row["servers"]): row
            for row in rows
            if (row["policy"], row["shares"]) == (name, kind)
        }
        axes.errorbar(
            range(len(points)),
            [found[point]["latency_s"] for point in points],
            yerr=[found[point]["latency_interval_s"] for point in points],
            label=f"{name}, {kind} shares",
            marker="o^sDvPX"[number],
            linestyle="--" if kind == "equal" else "-",
            capsize=2,
        )
    axes.set_xticks(range(len(points)), [f"{m} / {e}" for m, e in points])
    axes.set(xlabel="devices / servers", ylabel="mean latency, s", ylim=(0, None))
    axes.set_title("Latency (simulated cell, 95% intervals over seeds)")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def _gain(axes: Any, result: dict[str, Any]) -> None:
    found = result["reductions"]
    names = [name for name in found if abs(found[name][0]) > 1e-9]
    names.sort(key=lambda name: float(found[name][0]))
    axes.barh(
        range(len(names)),
        [100 * found[name][0] for name in names],
        xerr=[100 * found[name][1] for name in names],
        color=["#4c78a8" if name.endswith("equal") else "#72b7b2" for name in names],
        capsize=2,
    )
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set(xlabel="latency lower than, %")
    axes.set_title(f"{result['default_policy']} with optimised shares against")
    axes.grid(alpha=0.3, axis="x")


def _battery(axes: Any, result: dict[str, Any]) -> None:
    rows = result["thrift"]
    weights = [row["thrift"] for row in rows]
    for key, label in (
        ("energy_low_battery_j", "energy, batteries low"),
        ("energy_high_battery_j", "energy, batteries full"),
    ):
        axes.plot(weights, [row[key] for row in rows], marker="o", label=label)
    axes.set(xlabel="weight of energy, w", ylabel="energy a device and slot, J")
    other = axes.twinx()
    other.plot(weights, [row["latency_s"] for row in rows], "k--", marker="s", label="latency")
    other.set_ylabel("mean latency, s")
    lines = [*axes.get_lines(), *other.get_lines()]
    axes.legend(lines, [line.get_label() for line in lines], fontsize=8)
    axes.set_title("Energy against latency (60 devices, 8 servers)")
    axes.grid(alpha=0.3)
