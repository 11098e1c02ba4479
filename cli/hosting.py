"""The flags of whatever runs a target: a cloud, a cluster, its gateways."""

from __future__ import annotations

from typing import Annotated

import typer

from outrider.cli import options as o

Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="PATH",
        rich_help_panel=o.MODEL,
        help="A folder, a .gguf file, a hub id or the name of a pulled model "
        "(default: the embedded target).",
    ),
]
Backend = Annotated[
    o.TargetBackend,
    typer.Option(
        "--target-backend",
        rich_help_panel=o.MODEL,
        help="What runs the target; auto goes by the model.",
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        metavar="TYPE",
        rich_help_panel=o.MODEL,
        help="transformers: float32 (default), bfloat16 or float16.",
    ),
]
CtxSize = Annotated[
    int,
    typer.Option(
        "--ctx-size",
        "-c",
        min=0,
        metavar="N",
        rich_help_panel=o.MODEL,
        help="Tokens a session holds; 0 is the model's own, for a .gguf file at most 4096.",
    ),
]
Threads = Annotated[
    int,
    typer.Option(
        "--threads",
        "-t",
        min=1,
        metavar="N",
        rich_help_panel=o.MODEL,
        help="CPU threads of each target.",
    ),
]
