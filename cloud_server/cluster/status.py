"""What a gateway says of its cluster: ``/status``, and what ``outrider cloud status`` shows."""

from __future__ import annotations

import math
from typing import Any

from outrider.cloud_server.cluster.gateway import Gateway
from outrider.cloud_server.cluster.replica import Replica


def facts(gateway: Gateway, uptime: float) -> dict[str, Any]:
    """The names are a contract; None: nothing known. Never a word of anybody's text."""
    table, relays = gateway.table, list(gateway.relays.values())
    wanted = [r for r in relays if r.wanted]
    state = "loading" if not gateway.known else "draining" if table.closing else "ok"
    return {
        "state": state,
        "model": table.config.model,
        "uptime_s": round(uptime, 1),
        "sessions": len(table.sessions),
        "running": sum(r.at_work for r in wanted),
        "waiting": sum(r.waiting is not None for r in wanted),
        "refused": dict(table.refused),
        "moved": gateway.moved,
        "replicas_lost": gateway.lost,
        "elsewhere": list(table.config.elsewhere),
        "replicas": {name: _replica(r) for name, r in sorted(gateway.replicas.items())},
        "placement": [
            {
                "session": relay.session.key.hex(),
                "key": relay.session.owner,
                "replica": relay.replica.name if relay.replica else None,
                "ids": len(relay.session.ids),
                "moves": relay.moves,
                "round_trip_s": _rounded(relay.rtt or None),
                "weight": round(relay.weight, 3),
                "draft_bytes_per_second": _finite(relay.session.cap),
            }
            for relay in wanted
        ],
    }


def _replica(replica: Replica) -> dict[str, Any]:
    link, page = replica.machine.link, replica.page
    lately = page.get("lately") or {}
    return {
        "state": replica.state,
        "why": replica.alien or (str(replica.machine.failure) if replica.machine.failure else None),
        "working": replica.working,
        "sessions": len(replica.relays),
        "round_trip_s": _rounded(replica.way),
        "queue_s": _rounded(link.queue),
        "pass_s": _rounded(lately.get("pass_s")),
        "slots": page.get("slots"),
        "running": page.get("running"),
        "waiting": page.get("waiting"),
        "memory_available_bytes": page.get("memory_available_bytes"),
        "tokens_per_second": lately.get("tokens_per_second"),
    }


def _finite(value: float) -> float | None:
    return None if math.isinf(value) else round(value, 1)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
