"""The flags about the text that several commands share: how tokens are chosen, where it ends."""

from __future__ import annotations

from typing import Annotated

import typer

from outrider.cli.options import SAMPLING, TEXT

Temp = Annotated[
    float,
    typer.Option(
        "--temp", min=0.0, metavar="T", help="Temperature; 0 is greedy.", rich_help_panel=SAMPLING
    ),
]
TopK = Annotated[
    int,
    typer.Option(
        "--top-k",
        min=0,
        metavar="K",
        help="Keep the K likeliest tokens; 0 is off.",
        rich_help_panel=SAMPLING,
    ),
]
TopP = Annotated[
    float,
    typer.Option(
        "--top-p",
        metavar="P",
        rich_help_panel=SAMPLING,
        help="Keep the likeliest tokens with this mass together; 1 is off.",
    ),
]
MinP = Annotated[
    float,
    typer.Option(
        "--min-p",
        metavar="P",
        rich_help_panel=SAMPLING,
        help="Drop tokens under this share of the likeliest one; 0 is off.",
    ),
]
RepeatPenalty = Annotated[
    float,
    typer.Option(
        "--repeat-penalty",
        metavar="X",
        rich_help_panel=SAMPLING,
        help="Divide the scores of tokens seen before; 1 is off.",
    ),
]
RepeatLastN = Annotated[
    int,
    typer.Option(
        "--repeat-last-n",
        min=-1,
        metavar="N",
        rich_help_panel=SAMPLING,
        help="How far back that looks, prompt included; -1 is all.",
    ),
]
PresencePenalty = Annotated[
    float,
    typer.Option(
        "--presence-penalty",
        metavar="X",
        rich_help_panel=SAMPLING,
        help="Take this off tokens that the answer has already.",
    ),
]
FrequencyPenalty = Annotated[
    float,
    typer.Option(
        "--frequency-penalty",
        metavar="X",
        rich_help_panel=SAMPLING,
        help="Take this off as often as the answer has them.",
    ),
]
LogitBias = Annotated[
    list[str] | None,
    typer.Option(
        "--logit-bias",
        metavar="ID=BIAS",
        rich_help_panel=SAMPLING,
        allow_from_autoenv=False,
        help="Add to the score of a token id; may be repeated.",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        "--seed",
        "-s",
        metavar="N",
        rich_help_panel=SAMPLING,
        help="Repeats a sampled answer (default: fresh, and reported).",
    ),
]
MaxTokens = Annotated[
    int,
    typer.Option(
        "--max-tokens",
        "-n",
        min=1,
        metavar="N",
        rich_help_panel=SAMPLING,
        help="Most tokens of an answer.",
    ),
]
IgnoreEos = Annotated[
    bool,
    typer.Option("--ignore-eos", help="Go on after end tokens.", rich_help_panel=SAMPLING),
]

# --- prompt and text ------------------------------------------------------------------------

Stop = Annotated[
    list[str] | None,
    typer.Option(
        "--stop",
        metavar="TEXT",
        rich_help_panel=TEXT,
        allow_from_autoenv=False,
        help="End an answer before this text; may be repeated.",
    ),
]
System = Annotated[
    str | None,
    typer.Option("--system", metavar="TEXT", rich_help_panel=TEXT, help="System message."),
]
