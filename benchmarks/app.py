"""``outrider bench``: measurements side by side, each in one run, as a table or as JSON."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from outrider.benchmarks.compare import compare
from outrider.benchmarks.endpoint import endpoint
from outrider.benchmarks.meta import emit
from outrider.benchmarks.real import real

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Measure speed, bytes and target passes."
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
Plot = Annotated[
    Path | None, typer.Option(help="Write a picture here (needs matplotlib: extra bench).")
]


app.command()(real)
app.command()(endpoint)
app.command()(compare)


@app.callback()
def bench() -> None:
    """Measure speed, bytes and target passes."""


@app.command()
def quick(
    json_output: Json = False,
    draft_max: Annotated[int, typer.Option(help="Draft length of the lockstep runs.")] = 6,
    tokens: Annotated[int, typer.Option("--max-tokens", "-n", help="Tokens an answer.")] = 96,
    prompts: Annotated[int, typer.Option(help="Prompts a domain, at most 8.")] = 4,
    drafter_backend: Annotated[str, typer.Option(help="auto, onnx or llama.")] = "auto",
) -> None:
    """The stream's overhead on loopback, and the gain over plain cloud streaming (paced, 25 ms).

    Example: outrider bench quick --json
    """
    from outrider.benchmarks.quick import quick as run

    notes = Console(stderr=True)
    result = asyncio.run(run(draft_max, tokens, prompts, drafter_backend, notes.print))
    if json_output:
        emit(result)
        return
    console = Console()
    console.print(quick_table(result))
    overhead, rounds = result["round_overhead_ms_p50"], result["rounds"]
    console.print(
        "cloud: tokens a second of plain cloud streaming; ours: with drafts;\n"
        "right: share of the guesses; passes: the target's, a token; B: bytes a token"
    )
    console.print(f"overhead of a round: {overhead:.2f} ms (median of {rounds})")


def quick_table(result: dict[str, Any]) -> Table:
    """The rows of the result; fits 80 columns."""
    table = Table(
        title=f"Embedded pair, target paced to {result['paced_ms']:.0f} ms a pass, loopback"
    )
    for column in (
        "domain",
        "T",
        "cloud",
        "ours",
        "gain",
        "right",
        "passes",
        "B up",
        "B down",
    ):
        table.add_column(column, justify="left" if column == "domain" else "right")
    for row in result["rows"]:
        table.add_row(
            row["domain"],
            f"{row['temperature']:g}",
            f"{row['cloud_streaming_tokens_per_second']:.1f}",
            f"{row['tokens_per_second']:.1f}",
            f"{row['speedup']:.2f}",
            f"{row['acceptance_rate']:.2f}",
            f"{row['target_passes_per_token']:.2f}",
            f"{row['bytes_up_per_token']:.1f}",
            f"{row['bytes_down_per_token']:.1f}",
        )
    return table


@app.command()
def load(
    quick: Annotated[bool, typer.Option("--quick", help="Four points of the grid.")] = False,
    plot: Plot = None,
    workers: Annotated[int, typer.Option(min=0, help="Processes at a time; 0: as cores.")] = 0,
    keep: Annotated[
        Path | None, typer.Option(help="File for finished points; what is in it is not run again.")
    ] = None,
    json_output: Json = False,
) -> None:
    """Clients that one verifier serves, with drafts and without, against an oracle: virtual time.

    Targets and drafters are paced. Example: outrider bench load --quick --json
    """
    from outrider.benchmarks.load import load as run

    notes = Console(stderr=True)
    result = run(notes.print, quick=quick, workers=workers, keep=keep)
    if plot is not None:
        from outrider.benchmarks.load_plot import draw_load

        draw_load(result, plot)
    if json_output:
        emit(result)
    else:
        Console().print_json(data=result)
    if not result["all_exact"]:
        raise typer.Exit(1)


@app.command()
def sim(
    schedules: Annotated[int, typer.Option(min=0, help="Random schedules to check.")] = 1000,
    first: Annotated[int, typer.Option(min=0, help="Seed of the first one.")] = 0,
    record: Annotated[
        str,
        typer.Option(
            help="What the drafter gets right: qwen-prose-t1, say; a wrong name lists all."
        ),
    ] = "",
    workers: Annotated[int, typer.Option(min=0, help="Processes at a time; 0: as cores.")] = 0,
    json_output: Json = False,
) -> None:
    """Correctness under random trouble and speed on every link, in virtual time.

    Example: outrider bench sim --schedules 1000 --json
    """
    from outrider.benchmarks.sim import CODE
    from outrider.benchmarks.sim import sim as run

    notes = Console(stderr=True)
    result = run(schedules, notes.print, first=first, workers=workers, record=record or CODE)
    if json_output:
        emit(result, range(first, first + schedules))
    else:
        Console().print_json(data=result)
    if result["violations"] or not result["all_exact"]:
        raise typer.Exit(1)


@app.command()
def links(
    *,
    quick: Annotated[
        bool, typer.Option("--quick", help="Sockets: two links and six strategies.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Write a picture here, and one of each sweep beside it (needs matplotlib: "
            "extra bench)."
        ),
    ] = None,
    part: Annotated[
        list[str] | None,
        typer.Option(help="Only this: virtual, prompts, sweeps, sockets or real. Repeatable."),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Write down here what is measured; what stands there is not measured again."
        ),
    ] = None,
    minutes: Annotated[
        float, typer.Option(min=0, help="Begin nothing new after so long; 0: no bound.")
    ] = 0.0,
    workers: Annotated[int, typer.Option(min=0, help="Processes at a time; 0: as cores.")] = 0,
    json_output: Json = False,
) -> None:
    """Strategies side by side on every link: virtual time, and real sockets through a proxy.

    Speeds are of paced models but for the part real. Example: outrider bench links --quick --json
    """
    from outrider.benchmarks.journal import Journal
    from outrider.benchmarks.links import PARTS, show
    from outrider.benchmarks.links import links as run

    unknown = set(part or ()) - set(PARTS)
    if unknown:
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if quick and part:
        raise typer.BadParameter("--quick has one part only; leave --part or --quick out")
    notes = Console(stderr=True)
    journal, parts = Journal(resume), part or PARTS
    result = asyncio.run(
        run(
            notes.print,
            quick=quick,
            workers=workers,
            parts=parts,
            journal=journal,
            minutes=minutes,
        )
    )
    if plot is not None:
        from outrider.benchmarks.plots import draw_links

        draw_links(result, plot)
    if json_output:
        emit(result)
    else:
        show(result, Console())
    if left := result["unfinished"]:
        again = f"again with --resume {resume}" if resume else "with --resume FILE, or for longer"
        notes.print(f"{len(left)} pieces are left; run it {again}", markup=False)
    if not all(r["exact"] for r in result["rows"]):
        raise typer.Exit(1)


@app.command()
def quantize(
    quick: Annotated[
        bool, typer.Option("--quick", help="4 minutes of distillation instead of 30.")
    ] = False,
    json_output: Json = False,
) -> None:
    """Every form of the embedded drafter side by side, and what distillation gains.

    Example: outrider bench quantize --quick --json
    """
    from outrider.benchmarks.quantize import quantize as run

    notes = Console(stderr=True)
    result = run(notes.print, quick=quick)
    if json_output:
        emit(result)
    else:
        Console().print_json(data=result)


@app.command()
def wire(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer answers.")] = False,
    plot: Plot = None,
    json_output: Json = False,
) -> None:
    """Bytes a token, counted, and what distributions on a budget buy under the ratio rule.

    Example: outrider bench wire --quick --json
    """
    from outrider.benchmarks.wire import wire as run

    result = run(Console(stderr=True).print, quick=quick)
    if plot is not None:
        from outrider.benchmarks.plots import draw_wire

        draw_wire(result, plot)
    if json_output:
        emit(result)
    else:
        Console().print_json(data=result)


@app.command()
def cosine(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer loads and shorter runs.")] = False,
    plot: Plot = None,
    json_output: Json = False,
) -> None:
    """Cooperating drafters beside single ones: real engines, virtual time; scripted and embedded.

    Example: outrider bench cosine --quick --json
    """
    from outrider.benchmarks.cosine import cosine as run
    from outrider.benchmarks.embedded_group import embedded
    from outrider.benchmarks.group_step import step_overhead

    say = Console(stderr=True).print
    result = run(say, quick=quick)
    result["embedded"] = embedded(say, quick=quick)
    result |= step_overhead(say, steps=200 if quick else 1000)
    result["all_exact"] = result["all_exact"] and result["embedded"]["all_exact"]
    if plot is not None:
        from outrider.benchmarks.plots import draw_cosine

        draw_cosine(result, plot)
    if json_output:
        emit(result)
    else:
        Console().print_json(data=result)
    if not result["all_exact"]:
        raise typer.Exit(1)


@app.command()
def cos(
    quick: Annotated[bool, typer.Option("--quick", help="Shorter texts, two links.")] = False,
    plot: Plot = None,
    json_output: Json = False,
) -> None:
    """Collaborative decoding against the plain one: one machine and over links, virtual time.

    Example: outrider bench cos --quick --json
    """
    from outrider.benchmarks.cos import cos as run

    result = run(Console(stderr=True).print, quick=quick)
    if plot is not None:
        from outrider.benchmarks.plots import draw_speedups

        draw_speedups(result["rows"], plot)
    if json_output:
        emit(result)
    else:
        Console().print_json(data=result)
    if not result["all_exact"]:
        raise typer.Exit(1)


@app.command()
def uara(
    quick: Annotated[bool, typer.Option("--quick", help="Four points, three seeds.")] = False,
    plot: Plot = None,
    json_output: Json = False,
) -> None:
    """Placement of devices on verifiers in a simulated cell, against the paper's baselines.

    Example: outrider bench uara --quick --json
    """
    from outrider.benchmarks.uara import uara as run

    result = run(Console(stderr=True).print, quick=quick)
    if plot is not None:
        from outrider.benchmarks.uara_plots import draw

        draw(result, plot)
    if json_output:
        emit(result)
    else:
        Console().print_json(data=result)


@app.command()
def cluster(
    quick: Annotated[bool, typer.Option("--quick", help="Three kills of each kind.")] = False,
    json_output: Json = False,
    plot: Plot = None,
) -> None:
    """A cluster of processes: what a gateway costs, what failures cost, placement and shares.

    Example: outrider bench cluster --quick --json
    """
    from outrider.benchmarks.cluster import cluster as run

    result = asyncio.run(run(Console(stderr=True).print, quick=quick))
    if plot is not None:
        from outrider.benchmarks.cluster_plot import draw_cluster

        draw_cluster(result, plot)
    if json_output:
        emit(result)
    else:
        Console().print_json(data=result)
    if result["answers_lost"] or result["answers_changed"]:
        raise typer.Exit(1)
