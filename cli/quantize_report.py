"""``outrider quantize report``: the drafters of a pack side by side, and one for a device."""

from __future__ import annotations

import json as jsonlib
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli import logs
from outrider.cli import options as o
from outrider.cli.bars import Bars
from outrider.cli.quantize import MOST_THREADS

if TYPE_CHECKING:
    from outrider.quantize.devices import Device
    from outrider.quantize.report import Choice, Variant


def report(
    packs: Annotated[
        list[Path], typer.Argument(help="Packs, GGUF files or ONNX folders to compare.")
    ],
    *,
    target: Annotated[
        str, typer.Option("--target", help="The target: a checkpoint folder or a GGUF file.")
    ],
    text: Annotated[
        list[Path],
        typer.Option("--text", help="Text to measure on; a domain is named by its file."),
    ],
    device: Annotated[
        str,
        typer.Option("--device", help="pi4, pi5, jetson-orin-nano, jetson-agx or laptop."),
    ] = "",
    blocks: Annotated[
        int, typer.Option("--blocks", min=1, help="Blocks of 128 ids of each text, at most.")
    ] = 8,
    threads: Annotated[
        str, typer.Option("--threads", "-t", help="Threads to time with, as in 1,2,4.")
    ] = "1",
    plot: Annotated[Path | None, typer.Option("--plot", help="Write a picture here.")] = None,
    json: o.Json = False,
    verbose: o.Verbose = False,
    config: o.Config = None,  # noqa: ARG001 - its callback reads it
) -> None:
    """Compare drafters: size, speed here, agreement with the target, what to expect elsewhere.

    What is found is written into the packs' manifests.

    Example: outrider quantize report ./pack --target ./target --text prose.txt --device pi5
    """
    logs.configure(verbose)
    from outrider.quantize import devices, picture
    from outrider.quantize import report as reports
    from outrider.quantize import report_inputs as inputs
    from outrider.runtime.hub.resolve import resolve

    chosen = devices.device(device) if device else None
    counts = _threads(threads)
    if plot is not None:
        picture.check_plot(plot)
    files, model = inputs.files_of(packs), resolve(target, "target")
    measured = inputs.blocks_of(model, text, blocks)
    lm = inputs.open_target(model)
    bars = Bars()
    try:
        with bars:
            variants = reports.measure(
                files,
                lm,
                measured.blocks,
                size=measured.size,
                threads=counts,
                progress=lambda done, whole: bars.report("blocks", done, whole),
            )
    finally:
        lm.close()
    # What was measured is shown first: whatever fails after that, it is not lost.
    pick = None
    try:
        pick = reports.recommend(variants, chosen) if chosen else None
    finally:
        if json:
            facts: dict[str, Any] = {"variants": [variant.facts() for variant in variants]}
            if pick is not None:
                facts["recommended"] = asdict(pick)
            print(jsonlib.dumps(facts))
        else:
            _show(variants)
            _show_expected(variants, chosen, pick)
        inputs.record(packs, variants)
        if plot is not None:
            picture.draw(variants, plot)


def _threads(text: str) -> list[int]:
    from outrider.protocol.errors import SettingError

    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1 or max(found) > MOST_THREADS:
        raise SettingError(
            f"--threads {text!r}: give numbers from 1 to {MOST_THREADS}, as in 1,2,4"
        )
    return found


def _show(variants: list[Variant]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Drafters against the target")
    table.add_column("drafter", overflow="fold")
    for column in ("MiB", "memory", "tok/s", "greedy", "overlap", "KL"):
        table.add_column(column, justify="right")
    for variant in variants:
        facts = variant.facts()
        table.add_row(
            variant.name,
            f"{variant.bytes / (1 << 20):,.1f}",
            f"{variant.memory / (1 << 20):,.0f} MiB",
            _speeds(variant),
            f"{facts['greedy_agreement']:.3f}",
            f"{facts['overlap']:.3f}",
            f"{facts['kl']:.3f}",
        )
    console = Console(soft_wrap=not sys.stdout.isatty())
    console.print(table)
    console.print(
        "tok/s: one-id steps here; greedy: share of equal likeliest ids; overlap: sum(min(p, q)); "
        "memory: with a context of 4096"
    )


def _speeds(variant: Variant) -> str:
    """Tokens a second, by threads where there are several counts."""
    if len(variant.speed) == 1:
        return f"{next(iter(variant.speed.values())):,.0f}"
    return "\n".join(f"{rate:,.0f} ({n})" for n, rate in variant.speed.items())


def _show_expected(variants: list[Variant], device: Device | None, pick: Choice | None) -> None:
    """What to expect end to end: by link on one device, or the links' mean on each."""
    from rich.console import Console
    from rich.table import Table

    from outrider.quantize.devices import DEVICES, LINKS
    from outrider.quantize.report import rates_on

    where = f"on a {device.name}, by link" if device else "mean over lan, wifi, 5g and lte"
    table = Table(title=f"Expected tok/s of the whole, an estimate: {where}")
    table.add_column("drafter", overflow="fold")
    for column in LINKS if device else DEVICES:
        table.add_column(column, justify="right")
    for variant in variants:
        if device:
            rates = list(rates_on(variant, device).values())
        else:
            found = [rates_on(variant, one) for one in DEVICES.values()]
            rates = [sum(one.values()) / len(one) for one in found]
        table.add_row(variant.name, *(f"{rate:.0f}" for rate in rates))
    console = Console(soft_wrap=not sys.stdout.isatty())
    console.print(table)
    console.print("passes of 30 ms; the better of lockstep and plain cloud streaming (33)")
    if pick is not None:
        console.print(f"for {pick.device}: {pick.variant}; {pick.why}")
