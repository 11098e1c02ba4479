"""A plot of a report: agreement against speed, one point a drafter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from outrider.protocol.errors import BackendError
from outrider.quantize.report import Variant
from outrider.runtime.extras import hint


def draw(variants: Sequence[Variant], out: Path) -> None:
    """Write a PNG or SVG.

    Raises:
        BackendError: matplotlib is missing, or the file cannot be written.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise BackendError(f"matplotlib is not installed: {hint('quantize')}") from error
    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for variant in variants:
        speed = max(variant.speed.values(), default=0.0)
        axes.scatter(speed, variant.overlap, s=30 + 40 * variant.bytes / _largest(variants))
        axes.annotate(
            variant.name.rpartition("-")[2] or variant.name,
            (speed, variant.overlap),
            xytext=(6, 4),
            textcoords="offset points",
            fontsize=8,
        )
    axes.set_xlabel("draft tokens a second on this machine")
    axes.set_ylabel("overlap with the target, sum(min(p, q))")
    axes.set_title("Drafters: agreement against speed (area: size)")
    axes.grid(alpha=0.3)
    try:
        figure.savefig(out, dpi=120)
    except (OSError, ValueError) as error:
        raise BackendError(f"cannot write {out}: {error}") from error
    finally:
        pyplot.close(figure)


def _largest(variants: Sequence[Variant]) -> int:
    return max(variant.bytes for variant in variants) or 1
