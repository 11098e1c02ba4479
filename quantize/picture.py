"""A plot of a report: agreement against speed, one point a drafter."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outrider.protocol.errors import BackendError, SettingError
from outrider.quantize.folder import saving
from outrider.quantize.report import Variant
from outrider.runtime.extras import hint

KINDS = (".png", ".svg", ".pdf")


def check_plot(out: Path) -> None:
    """Refuse a picture that could not be drawn, before anything is measured.

    Raises:
        SettingError: no such kind of picture, or no file can be made there.
        BackendError: matplotlib is missing.
    """
    _matplotlib()
    if out.suffix.lower() not in KINDS:
        raise SettingError(f"--plot {out}: its name must end with {', '.join(KINDS)}")
    if out.is_dir() or not out.parent.is_dir():
        what = "it is a folder" if out.is_dir() else f"there is no folder {out.parent}"
        raise SettingError(f"--plot {out} cannot be written: {what}")
    if not os.access(out.parent, os.W_OK):
        raise SettingError(f"--plot {out} cannot be written: {out.parent} is not writable")


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise BackendError(f"matplotlib is not installed: {hint('quantize')}") from error
    return matplotlib


def draw(variants: Sequence[Variant], out: Path) -> None:
    """Write a PNG or SVG.

    Raises:
        BackendError: matplotlib is missing, or the file cannot be written.
    """
    _matplotlib().use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for variant in variants:
        speed = max(variant.speed.values(), default=0.0)
        axes.scatter(speed, variant.overlap, s=30 + 40 * variant.bytes / _largest(variants))
        axes.annotate(
            variant.name if "/" in variant.name else variant.name.rpartition("-")[2],
            (speed, variant.overlap),
            xytext=(6, 4),
            textcoords="offset points",
            fontsize=8,
        )
    axes.set_xlabel("draft tokens a second on this machine")
    axes.set_ylabel("overlap with the target, sum(min(p, q))")
    axes.set_title("Drafters: agreement against speed (area: size)")
    axes.margins(x=0.2)  # room for the names
    axes.grid(alpha=0.3)
    try:
        with saving(out, 0) as part:
            figure.savefig(part, dpi=120, format=out.suffix[1:].lower())
    finally:
        pyplot.close(figure)


def _largest(variants: Sequence[Variant]) -> int:
    return max(variant.bytes for variant in variants) or 1
