"""How a verifier is doing right now, for people: what ``outrider cloud status`` shows."""

from __future__ import annotations

import os
from collections import Counter, deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.cloud_server.metrics import counts, reserved
from outrider.runtime.lm.memory import available

if TYPE_CHECKING:
    from outrider.cloud_server.driver import Verifier
    from outrider.cloud_server.engine import Forward
    from outrider.runtime.net.server import Server

WINDOW = 10.0
"""Seconds that "lately" looks back."""


@dataclass(frozen=True, slots=True)
class _Pass:
    """When one ended, how long it took, its rows, and the counters then."""

    at: float
    seconds: float
    rows: int
    tokens: int
    drafted: int
    accepted: int


class Status:
    """Keeps the passes of the last seconds. Never a word of anybody's text."""

    def __init__(self, verifier: Verifier, server: Server, started: float) -> None:
        self._verifier, self._server, self._started = verifier, server, started
        self._passes: deque[_Pass] = deque(maxlen=100_000)

    def passed(self, work: Forward, now: float) -> None:
        """A pass is over."""
        if work.known:
            return  # there was none
        stats = self._verifier.engine.stats
        self._passes.append(
            _Pass(
                now,
                now - work.started,
                len(work.rows),
                stats.tokens,
                stats.num_draft_tokens,
                stats.num_accepted_tokens,
            )
        )
        self._forget(now)

    def _forget(self, now: float) -> None:
        while self._passes and self._passes[0].at < now - WINDOW:
            self._passes.popleft()

    def facts(self, now: float) -> dict[str, Any]:
        """The names are a contract; None: nothing known."""
        self._forget(now)
        verifier, stats = self._verifier, self._verifier.engine.stats
        info, table = verifier.target.info, verifier.table
        running, waiting = counts(verifier)
        into, out = self._server.traffic
        return {
            "state": "draining" if table.closing else "ok",
            "model": info.name,
            "uptime_s": round(now - self._started, 1),
            "connections": self._server.connections,
            "sessions": len(table.sessions),
            "running": running,
            "waiting": waiting,
            "slots": info.slots,
            "refused": dict(table.refused),
            "connections_refused": dict(self._server.refused),
            "tokens": stats.tokens,
            "passes": stats.passes,
            "acceptance_rate": _share(stats.num_accepted_tokens, stats.num_draft_tokens),
            "kv_cache_usage": round(reserved(verifier), 4),
            "memory_bytes": resident(),
            "memory_available_bytes": available(),
            "bytes_up": into,
            "bytes_down": out,
            "lately": self._lately(now),
            "keys": self._by_key(),
        }

    def _lately(self, now: float) -> dict[str, Any]:
        passes = self._passes
        if len(passes) < 2:
            return {
                "tokens_per_second": 0.0, "batch": None, "pass_s": None, "acceptance_rate": None
            }  # fmt: skip
        first, last = passes[0], passes[-1]
        count = len(passes)
        return {
            "tokens_per_second": round((last.tokens - first.tokens) / max(1e-6, now - first.at), 2),
            "batch": round(sum(p.rows for p in passes) / count, 2),
            "pass_s": round(sum(p.seconds for p in passes) / count, 5),
            "acceptance_rate": _share(last.accepted - first.accepted, last.drafted - first.drafted),
        }

    def _by_key(self) -> dict[str, dict[str, int]]:
        """Sessions of each key that has any; without keys the name is empty."""
        sessions = self._verifier.table.sessions.values()
        every, active = (
            Counter(s.owner for s in sessions),
            Counter(s.owner for s in sessions if s.active),
        )
        return {name: {"sessions": every[name], "running": active[name]} for name in sorted(every)}


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def resident() -> int | None:
    """Bytes of memory that this process holds; None where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGESIZE")
