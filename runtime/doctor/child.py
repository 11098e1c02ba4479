"""Run something in a process of its own, which may crash, hang or be killed without harm."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

TIMEOUT = 120.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """``facts`` is what the child printed as JSON. ``failure`` is None if all went well.

    ``killed_by`` names the signal that ended it, if one did.
    """

    facts: dict[str, Any] = field(default_factory=dict)
    failure: str | None = None
    killed_by: str | None = None


def run(code: str, *arguments: str, timeout: float = TIMEOUT) -> Outcome:
    """Run Python code whose last line of output is a JSON object."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Outcome(failure=f"it did not end within {timeout:g} s")
    if done.returncode < 0:
        name = _signal(-done.returncode)
        return Outcome(failure=f"it was ended by {name}", killed_by=name)
    if done.returncode:
        lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
        return Outcome(failure=lines[-1][:300] if lines else f"exit status {done.returncode}")
    try:
        return Outcome(facts=json.loads(done.stdout.strip().splitlines()[-1]))
    except (ValueError, IndexError):
        return Outcome(failure="it printed nothing that can be read")


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
