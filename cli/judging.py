"""The flags that say by what guesses are judged: the rule, and the models that are combined."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from outrider.cli.options import DRAFTING


class RuleName(StrEnum):
    """How sampled guesses are judged."""

    AUTO = "auto"
    COUPLED = "coupled"
    RATIO = "ratio"


RuleOption = Annotated[
    RuleName,
    typer.Option(
        "--rule",
        rich_help_panel=DRAFTING,
        help="With --temp: coupled (a seed repeats the text), ratio (the drafter's probabilities "
        "are sent along: more guesses pass, more bytes; a seed repeats no text), or what is "
        "expected to be faster. With --collaborate either is exact for the combination.",
    ),
]
Collaborate = Annotated[
    str | None,
    typer.Option(
        "--collaborate",
        metavar="HOW",
        rich_help_panel=DRAFTING,
        help="A text of several models, not of the target alone: ensemble=W gives the drafter the "
        "weight W, contrastive=MU takes MU times its logits off the target's. Further ones behind "
        "commas: a weight for each further --draft-model, NAME=W for a model of the cloud's.",
    ),
]
