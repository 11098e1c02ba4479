"""The picture of ``outrider bench load``. Needs matplotlib: extra ``bench``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outrider.benchmarks import plots
from outrider.benchmarks.load_world import DRAFTERS, SHAPES

MARKS = {"compute": "o", "memory": "s", "latency": "^"}
COLOURS = {"qwen-code-t0": "C0", "qwen-prose-t0": "C1", "qwen-code-t1": "C2", "qwen-prose-t1": "C3"}


def draw_load(result: dict[str, Any], path: Path) -> None:
    """Clients by the rate they are to have, a panel for each shape and drafter.

    Lines are ours, dotted the oracle's, grey plain cloud streaming; the mark says what binds.

    Raises:
        BackendError: matplotlib is not installed.
    """
    plot = plots._pyplot()
    rows = [row for row in result["grid"] if row["axis"] == "grid"]
    panels = [
        (shape, drafter)
        for shape in SHAPES
        for drafter in DRAFTERS
        if any((r["shape"], r["drafter"]) == (shape, drafter) for r in rows)
    ]
    figure, axes = plot.subplots(
        1, len(panels), figsize=(4.2 * len(panels), 4.2), squeeze=False, layout="constrained"
    )
    for (shape, drafter), axis in zip(panels, axes[0], strict=True):
        part = [r for r in rows if (r["shape"], r["drafter"]) == (shape, drafter)]
        for name, colour in COLOURS.items():
            own = sorted((r for r in part if r["record"] == name), key=lambda r: r["rate"])
            if not own:
                continue
            rates = [r["rate"] for r in own]
            axis.plot(rates, [r["clients"] for r in own], color=colour, label=name)
            axis.plot(rates, [r["bound"] for r in own], ":", color=colour, marker="_")
            for row in own:
                mark = MARKS[row["binds"]]
                axis.plot(row["rate"], row["clients"], mark, color=colour, markersize=6)
            axis.plot(rates, [r["clients_plain"] for r in own], "--", color="0.6", zorder=1)
        axis.set_title(f"{SHAPES[shape].name}, drafter {drafter}", fontsize=9)
        axis.set_xlabel("tokens/s of every answer")
        axis.set_ylim(0, 1.1 * max(r["bound"] for r in part))
    first = axes[0, 0]
    first.set_ylabel("clients of one verifier (virtual time)")
    for binds, mark in MARKS.items():
        first.plot([], [], mark, color="0.3", label=f"{binds} binds")
    first.plot([], [], ":", color="0.3", label="oracle")
    first.plot([], [], "--", color="0.6", label="plain cloud streaming")
    first.legend(fontsize=7)
    figure.savefig(path)
    plot.close(figure)
