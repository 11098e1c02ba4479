"""The picture of ``outrider bench cluster``. Needs matplotlib: extra ``bench``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outrider.benchmarks import plots


def draw_cluster(result: dict[str, Any], path: Path) -> None:
    """Seconds an answer takes: by policy with equal shares, and by placement and shares together.

    Raises:
        BackendError: matplotlib is not installed.
    """
    plot = plots._pyplot()
    figure, (left, right) = plot.subplots(1, 2, figsize=(9.6, 3.6), layout="constrained")
    rows = result["placement"]["rows"]
    left.barh([r["policy"] for r in rows], [r["answer_s_mean"] for r in rows], color="C0")
    left.set_title(f"placement, {result['placement']['edges']} edges in lockstep", fontsize=10)
    shared = result["shares"]
    names = [f"{r['policy']}, {r['shares']} shares" for r in shared["rows"]]
    colours = ["C7" if r["shares"] == "equal" else "C2" for r in shared["rows"]]
    right.barh(names, [r["answer_s_mean"] for r in shared["rows"]], color=colours)
    right.set_title(f"replicas short of everything, {shared['edges']} edges", fontsize=10)
    for axis in (left, right):
        axis.invert_yaxis()
        axis.set_xlabel("seconds an answer of 96 tokens, mean")
        for bar in axis.patches:
            axis.annotate(
                f" {bar.get_width():.2f}",
                (bar.get_width(), bar.get_y() + bar.get_height() / 2),
                va="center",
                fontsize=8,
            )
        axis.margins(x=0.15)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle("Three paced replicas behind shaped links", fontsize=11)
    figure.savefig(path, dpi=150)
    plot.close(figure)
