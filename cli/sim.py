"""``outrider sim``: experiments in simulation, with everything they draw."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated

import typer

from outrider.cli import logs
from outrider.cli import options as o


def uara(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for rows, policies, figures and the result.")
    ] = Path("uara"),
    quick: Annotated[bool, typer.Option("--quick", help="A smaller grid, in minutes.")] = False,
    learn: Annotated[
        bool, typer.Option(help="Also learn the two actor-critic policies (needs torch).")
    ] = True,
    *,
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
    result = run(notes.print, quick=quick, keep=out, learn=learn)
    (out / "result.json").write_text(jsonlib.dumps(result, indent=2) + "\n", "utf-8")
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
    if "learned" in result:
        print(result["learned"]["verdict"])
