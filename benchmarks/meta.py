"""What a benchmark's result was made with, so that two results can be told apart later."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

LIBRARIES = ("outrider", "numpy", "torch", "transformers", "llama-cpp-python", "onnxruntime")

_CPUINFO = Path("/proc/cpuinfo")


def collect(seeds: Sequence[int] = ()) -> dict[str, Any]:
    """Versions (None: not installed), machine, command line, date, and the seeds that were used.

    Seeds that are no flag are constants of the version; then the list is empty.
    """
    return {
        "versions": {name: _version(name) for name in LIBRARIES},
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu": cpu_model(_read(_CPUINFO)) or platform.processor() or None,
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load": os.getloadavg()[0],
        "arguments": sys.argv[1:],
        "seeds": list(seeds),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def emit(result: dict[str, Any], seeds: Sequence[int] = ()) -> None:
    """Print a benchmark's result as one line of JSON, with :func:`collect` under ``meta``."""
    print(json.dumps({**result, "meta": collect(seeds)}))


def cpu_model(cpuinfo: str) -> str | None:
    """The processor's name; boards with Arm processors call it ``Model`` or ``Hardware``."""
    found: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        name, colon, value = line.partition(":")
        if colon and value.strip():
            found.setdefault(name.strip().lower(), value.strip())
    return found.get("model name") or found.get("model") or found.get("hardware")


def _read(file: Path) -> str:
    try:
        return file.read_text("utf-8", "replace")
    except OSError:
        return ""


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
