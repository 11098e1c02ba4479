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


class LogFormat(StrEnum):
    """How log lines look."""

    TEXT = "text"
    JSON = "json"
