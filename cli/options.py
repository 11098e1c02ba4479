"""The flags that several commands share: one spelling, one help text, one range each."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from outrider.cli.settings import config_callback

DEFAULT_CLOUD = "ws://127.0.0.1:8471"
DEFAULT_DRAFT_P_MIN = 0.0
"""Off: with shared noise a token may be improbable and yet the one that both ends draw."""

CONNECTION = "Connection"
DRAFTING = "Drafting"
SAMPLING = "Sampling"
TEXT = "Prompt and text"
MODEL = "Model"
OUTPUT = "Output"

_OBJECTIVE = "What to save: the user's time (latency), the cloud's (cost), or both alike (balanced)"


class DrafterBackend(StrEnum):
    """What runs the drafter."""

    AUTO = "auto"
    ONNX = "onnx"
    LLAMA = "llama"


class TargetBackend(StrEnum):
    """What runs the target."""

    AUTO = "auto"
    TRANSFORMERS = "transformers"
    LLAMA = "llama"


class Objective(StrEnum):
    """What to optimise."""

    LATENCY = "latency"
    BALANCED = "balanced"
    COST = "cost"


class Scheduler(StrEnum):
    """How the cloud fills its steps."""

    COSINE = "cosine"
    FIFO = "fifo"


class LogFormat(StrEnum):
    """How log lines look."""

    TEXT = "text"
    JSON = "json"


class PolicyName(StrEnum):
    """How far to draft ahead."""

    ADAPTIVE = "adaptive"
    FIXED = "fixed"


class Offline(StrEnum):
    """What happens while the link is down."""

    OFF = "off"
    LOCAL = "local"


class Draft(StrEnum):
    """Whether to draft at all."""

    AUTO = "auto"
    OFF = "off"


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="TOML file with settings, by flag name.",
        callback=config_callback,
        is_eager=True,
        rich_help_panel=OUTPUT,
    ),
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", help="Say more on stderr; errors with a traceback.", rich_help_panel=OUTPUT
    ),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object instead of text.", rich_help_panel=OUTPUT),
]

# --- connection -----------------------------------------------------------------------------

Cloud = Annotated[
    str,
    typer.Option(
        "--cloud",
        metavar="URL",
        help="The cloud: ws://, wss:// or host:port, or the line of an invitation.",
        rich_help_panel=CONNECTION,
    ),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        "--api-key",
        metavar="KEY",
        show_default=False,
        rich_help_panel=CONNECTION,
        help="Key for the cloud; better in OUTRIDER_API_KEY or a file: others can list "
        "a command's arguments.",
    ),
]
ApiKeyFile = Annotated[
    Path | None,
    typer.Option(
        "--api-key-file",
        metavar="FILE",
        rich_help_panel=CONNECTION,
        help="File with the key: its first line, KEY or NAME:KEY.",
    ),
]
TlsFingerprint = Annotated[
    str | None,
    typer.Option(
        "--tls-fingerprint",
        metavar="SHA256",
        rich_help_panel=CONNECTION,
        help="Trust only the certificate with this fingerprint (the cloud prints it).",
    ),
]
TlsCa = Annotated[
    Path | None,
    typer.Option(
        "--tls-ca",
        metavar="FILE",
        rich_help_panel=CONNECTION,
        help="Trust only certificates signed by this authority (PEM).",
    ),
]

Target = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="NAME",
        rich_help_panel=CONNECTION,
        help="The target that is expected; another one is refused.",
    ),
]
Reconnect = Annotated[
    float,
    typer.Option(
        "--reconnect",
        min=0.0,
        metavar="SECONDS",
        rich_help_panel=CONNECTION,
        help="How long a link lost in mid answer is tried again.",
    ),
]
OfflineOption = Annotated[
    Offline,
    typer.Option(
        "--offline",
        rich_help_panel=CONNECTION,
        help="local: while the link is down the drafter goes on alone; its text is marked as "
        "unverified, and verified or corrected once the link is back.",
    ),
]
ObjectiveOption = Annotated[
    Objective | None,
    typer.Option(
        "--objective",
        rich_help_panel=DRAFTING,
        help=f"{_OBJECTIVE} (default: balanced). The cloud may grant a cheaper one.",
    ),
]
DemoObjective = Annotated[
    Objective, typer.Option("--objective", rich_help_panel=DRAFTING, help=f"{_OBJECTIVE}.")
]

# --- drafting -------------------------------------------------------------------------------

DrafterBackendOption = Annotated[
    DrafterBackend,
    typer.Option(
        "--drafter-backend",
        help="What runs the drafter; auto prefers llama.",
        rich_help_panel=DRAFTING,
    ),
]
DraftOption = Annotated[
    Draft,
    typer.Option(
        "--draft",
        help="off: plain cloud streaming; no drafter is loaded.",
        rich_help_panel=DRAFTING,
    ),
]
DraftMax = Annotated[
    int | None,
    typer.Option(
        "--draft-max",
        min=0,
        max=64,
        metavar="N",
        rich_help_panel=DRAFTING,
        help="Longest draft: of the fixed policy the tokens in a frame; 0 is --draft off.",
    ),
]
PolicyOption = Annotated[
    PolicyName,
    typer.Option(
        "--policy",
        rich_help_panel=DRAFTING,
        help="How far to draft: adaptive measures link, drafter and cloud; fixed is lockstep.",
    ),
]
DecisionLogOption = Annotated[
    Path | None,
    typer.Option(
        "--decision-log",
        metavar="FILE",
        rich_help_panel=DRAFTING,
        help="Append a JSON line for every change of plan: measured, chosen, why, what came of it.",
    ),
]
DraftPMin = Annotated[
    float,
    typer.Option(
        "--draft-p-min",
        min=0.0,
        max=1.0,
        metavar="P",
        rich_help_panel=DRAFTING,
        help="End a frame before a guess less probable than this.",
    ),
]
DraftCtx = Annotated[
    int,
    typer.Option(
        "--ctx-size",
        "-c",
        min=0,
        metavar="N",
        rich_help_panel=DRAFTING,
        help="Context of the drafter; 0 is its own, of a GGUF file at most 4096. It never limits "
        "the answer.",
    ),
]
DraftThreads = Annotated[
    int,
    typer.Option(
        "--threads",
        "-t",
        min=1,
        metavar="N",
        help="CPU threads of the drafter.",
        rich_help_panel=DRAFTING,
    ),
]
