"""How much memory a model may take: small boards kill a process rather than say no."""

from __future__ import annotations

from pathlib import Path

from outrider.protocol.errors import BackendError

MIB = 2**20

DEFAULT_CTX = 4096
"""Ids a GGUF model holds where nobody says how many: those of today are made for far more, and
llama.cpp takes the memory for all of them at once."""

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def available(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int | None:
    """Bytes that can still be used here, the container's limit included; None if unknown."""
    found = [_from_meminfo(meminfo), _from_cgroup(cgroup)]
    return min((value for value in found if value is not None), default=None)


def check_fits(name: str, weights: int, cache: int, what: str) -> None:
    """Refuse a model that would not fit, before anything large is allocated.

    ``weights`` and ``cache`` are in bytes, ``what`` describes the cache.

    Raises:
        BackendError: more is needed than is available; gives the figures.
    """
    room = available()
    if room is not None and weights + cache > room:
        raise BackendError(
            f"{name} needs about {(weights + cache) / MIB:,.0f} MiB "
            f"({weights / MIB:,.0f} of weights, {cache / MIB:,.0f} for {what}) and "
            f"{room / MIB:,.0f} MiB are available; use a smaller context, fewer sequences or a "
            "smaller model"
        )


def _from_meminfo(file: Path) -> int | None:
    try:
        for line in file.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return None
    return None


def _from_cgroup(folder: Path) -> int | None:
    """What a container (cgroup v2) has left: pages of files can be given up, so they are free."""
    try:
        limit = int((folder / "memory.max").read_text())
        used = int((folder / "memory.current").read_text())
        facts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return limit - used + int(facts.get("inactive_file", 0)) + int(facts.get("active_file", 0))
    except (OSError, ValueError):  # no limit reads "max"
        return None
