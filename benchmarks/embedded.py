"""The embedded pair and its prompts, and a verifier of it in a process of its own."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from outrider.protocol.errors import BackendError

DOMAINS = ("scripture", "docs", "source")


def models() -> Path:
    """The folder of the embedded pair."""
    return Path(str(files("outrider.models")))


def prompts(domain: str) -> list[str]:
    """The default prompts of one domain."""
    texts: dict[str, list[str]] = json.loads((models() / "prompts.json").read_text())
    return texts[domain]


@dataclass(frozen=True, slots=True)
class Cloud:
    """A running verifier: its address, what runs its target, its process."""

    url: str
    backend: str
    process: subprocess.Popen[str]

    def passes(self) -> list[dict[str, Any]]:
        """The passes so far: ``seconds`` and ``rows`` of (committed length, decisions wanted)."""
        asked, told = self.process.stdin, self.process.stdout
        assert asked is not None
        assert told is not None
        print(file=asked, flush=True)
        passes: list[dict[str, Any]] = json.loads(told.readline())
        return passes


def default_backend() -> str:
    """What runs the target: transformers, or llama.cpp where only that is installed."""

    def installed(*modules: str) -> bool:
        return all(importlib.util.find_spec(module) is not None for module in modules)

    return (
        "llama"
        if installed("llama_cpp") and not installed("torch", "transformers")
        else "transformers"
    )


@contextlib.contextmanager
def cloud(
    step_ms: float = 0.0,
    backend: str | None = None,
    lookup: int | None = None,
    *,
    model: Path | None = None,
    own: Path | None = None,
    own_step_ms: float = 0.0,
) -> Iterator[Cloud]:
    """A verifier process with the embedded target or another, ended when the block is left.

    ``backend``: what runs the target; None: :func:`default_backend`.

    ``lookup``: how many guesses it adds of its own; None: the default. ``own``: a draft model
    beside the target, paced to ``own_step_ms`` a token.

    Raises:
        BackendError: it did not start.
    """
    backend = backend or default_backend()
    if model is None:
        model = models() / "target"
        if backend == "llama":
            model = model / "target-f16.gguf"
    command = [sys.executable, "-m", "outrider.benchmarks.paced_cloud"]
    command += ["--model", str(model), "--backend", backend]
    command += ["--step-ms", str(step_ms)]
    command += [] if lookup is None else ["--lookup", str(lookup)]
    command += [] if own is None else ["--own", str(own), "--own-step-ms", str(own_step_ms)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None  # asked for above
        url = process.stdout.readline().strip()
        if not url:
            _, errors = process.communicate(timeout=10)
            raise BackendError(f"the verifier did not start: {_said(errors)}")
        yield Cloud(url, backend, process)
    finally:
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _said(errors: str) -> str:
    """Its own line about what is wrong, else the end of whatever it wrote."""
    lines = errors.strip().splitlines()
    if lines and lines[-1].startswith("error: "):
        return lines[-1].removeprefix("error: ")
    return errors.strip()[-2000:]
