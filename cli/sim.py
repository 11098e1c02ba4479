"""``outrider sim``: experiments in simulation, with everything they draw."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated

import typer

from outrider.cli import logs
from outrider.cli import options as o


def radio(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the two traces.")] = Path(
        "radio"
    ),
    *,
    scenario: Annotated[str, typer.Option(help="umi or uma.")] = "umi",
    devices: Annotated[int, typer.Option(help="Devices that walk.")] = 24,
    servers: Annotated[int, typer.Option(help="Servers that hear them.")] = 4,
    slots: Annotated[int, typer.Option(help="Seconds that they walk.", min=2)] = 80,
    seed: Annotated[int, typer.Option(help="Of the ways and of both generators.", min=0)] = 1,
    json: o.Json = False,
    verbose: o.Verbose = False,
    config: o.Config = None,  # noqa: ARG001 - its callback reads it
) -> None:
    """Traces of radio by our channels and by Sionna's, on the same ways, held against each other.

    Example: outrider sim radio --scenario uma --devices 12 --slots 60
    """
    logs.configure(verbose)
    from outrider.protocol.errors import BackendError
    from outrider.runtime.extras import hint

    try:
        from rich.console import Console

        from outrider.simulator.cell.model import Settings
        from outrider.simulator.cell.radio_check import compare, lines
    except ModuleNotFoundError as error:
        raise BackendError(f"this needs {error.name}: {hint('sim')}") from error
    settings = Settings(devices, servers, speed=(1.0, 2.0), channel=scenario)
    settings.check()
    found = compare(settings, seed=seed, slots=slots, keep=out, say=Console(stderr=True).print)
    print(jsonlib.dumps(found) if json else "\n".join(lines(found)))


def uara(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for rows, policies, figures and the result.")
    ] = Path("uara"),
    quick: Annotated[bool, typer.Option("--quick", help="A smaller grid, in minutes.")] = False,
    learn: Annotated[
        bool, typer.Option(help="Also learn the two actor-critic policies (needs torch).")
    ] = True,
    *,
    policy: Annotated[
        Path | None, typer.Option(help="An exported policy (.onnx) that takes part as well.")
    ] = None,
    json: o.Json = False,
    verbose: o.Verbose = False,
    config: o.Config = None,  # noqa: ARG001 - its callback reads it
) -> None:
    """Association of devices and shares of servers: the UARA experiment, all figures at once.

    Started again with the same folder it goes on where it stopped.

    Example: outrider sim uara --quick --out ./uara
    """
    logs.configure(verbose)
    from outrider.protocol.errors import BackendError
    from outrider.runtime.extras import hint

    try:
        from rich.console import Console

        from outrider.benchmarks.uara import uara as run
        from outrider.benchmarks.uara_plots import draw
    except ModuleNotFoundError as error:
        raise BackendError(f"this experiment needs {error.name}: {hint('sim')}") from error
    notes = Console(stderr=True)
    try:
        out.mkdir(parents=True, exist_ok=True)
        result = run(notes.print, quick=quick, keep=out, learn=learn, policy=policy)
        (out / "result.json").write_text(jsonlib.dumps(result, indent=2) + "\n", "utf-8")
    except OSError as error:
        raise BackendError(f"cannot write to {out}: {error}") from error
    except KeyboardInterrupt:
        notes.print(f"{out} keeps what was done: the same command goes on from there")
        raise
    draw(result, out / "uara.png")
    if json:
        print(jsonlib.dumps(result))
        return
    print(f"{out / 'uara.png'}: latency, gains and the battery's trade")
    print(f"{out / 'result.json'}: every figure")
    print(
        f"{result['default_policy']} with optimised shares: latency {result['reduction_mean']:.1%} "
        f"lower than the paper's three baselines with equal shares (mean), "
        f"{result['reduction_vs_greedy_mean']:.1%} lower than greedy with optimised shares"
    )
    if learn:
        print(result["learning"]["verdict"])
