"""``outrider cloud status``: how a verifier is doing, once or as a live view."""

from __future__ import annotations

import os
from time import sleep
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli import logs
from outrider.cli import options as o
from outrider.cli.exits import NotConnectedError
from outrider.cli.report import print_json
from outrider.protocol.errors import HandshakeError, LinkError

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table


def status(
    *,
    cloud: o.Cloud = o.DEFAULT_CLOUD,
    api_key: o.ApiKey = None,
    api_key_file: o.ApiKeyFile = None,
    tls_fingerprint: o.TlsFingerprint = None,
    tls_ca: o.TlsCa = None,
    interval: Annotated[
        float,
        typer.Option(
            "--interval",
            min=0.2,
            metavar="S",
            help="Seconds between looks.",
            rich_help_panel=o.OUTPUT,
        ),
    ] = 1.0,
    json: o.Json = False,
    verbose: o.Verbose = False,
    config: o.Config = None,  # noqa: ARG001 - its callback reads it
) -> None:
    """Show sessions, batch, acceptance, queue, memory and tokens a second of a cloud.

    Of a cluster's gateway: its replicas, and which sessions are placed where.

    At a terminal a live view until Ctrl-C; elsewhere, or with --json, once.

    Example: outrider cloud status --cloud ws://127.0.0.1:8471
    """
    logs.configure(verbose)
    from outrider.cli.edge import EdgeOptions, read_key, tls_context
    from outrider.runtime.net.pages import read_page

    options = EdgeOptions(
        cloud=cloud,
        api_key=api_key,
        api_key_file=api_key_file,
        tls_fingerprint=tls_fingerprint,
        tls_ca=tls_ca,
    )
    key, context = read_key(options), tls_context(options)

    def look() -> dict[str, Any]:
        try:
            return read_page(options.cloud, "/status", key=key, context=context)
        except (HandshakeError, LinkError) as error:
            raise NotConnectedError(str(error)) from error

    if json:
        print_json(look())
        return
    from rich.console import Console
    from rich.live import Live

    # With NO_COLOR no styles at all: Rich by itself would leave bold and italic.
    console = Console(color_system=None if os.environ.get("NO_COLOR") else "auto")
    facts = look()
    if not console.is_terminal:
        console.print(view(facts))
        return
    try:
        with Live(view(facts), console=console, auto_refresh=False) as live:
            while True:
                sleep(interval)
                live.update(view(look()), refresh=True)
    except KeyboardInterrupt:
        return


def view(facts: dict[str, Any]) -> Group | Table:
    """A table of what ``/status`` says. A cloud of another version may leave things out."""
    from rich.table import Table

    if "replicas" in facts:
        return cluster_view(facts)

    table = Table(title=f"{facts.get('model', 'loading')}: {facts.get('state')}", show_header=False)
    lately = facts.get("lately") or {}
    rows = {
        "up": _unit(facts.get("uptime_s"), "s"),
        "answers": f"{facts.get('running', 0)} of {facts.get('slots', 0)} slots, "
        f"{facts.get('waiting', 0)} waiting",
        "sessions, links": f"{facts.get('sessions', 0)}, {facts.get('connections', 0)}",
        "tokens a second": _unit(lately.get("tokens_per_second")),
        "batch": f"{_unit(lately.get('batch'))} rows, {_unit(lately.get('pass_s'), 's')} a pass",
        "acceptance": f"{_percent(lately.get('acceptance_rate'))} lately, "
        f"{_percent(facts.get('acceptance_rate'))} in all",
        "cache promised": _percent(facts.get("kv_cache_usage")),
        "memory": f"{_mib(facts.get('memory_bytes'))}, "
        f"{_mib(facts.get('memory_available_bytes'))} free",
        "refused": ", ".join(f"{k} {v}" for k, v in (facts.get("refused") or {}).items()) or "none",
        "keys": ", ".join(
            f"{name or '(none)'} {counts.get('running', 0)}/{counts.get('sessions', 0)}"
            for name, counts in (facts.get("keys") or {}).items()
        )
        or "nobody",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def cluster_view(facts: dict[str, Any]) -> Group:
    """What a gateway says: a row a replica, and below a row for each answer under way."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table

    replicas = Table(
        box=SIMPLE_HEAD,
        pad_edge=False,
        title=f"{facts.get('model') or 'a cluster'}: {facts.get('state')}, "
        f"{facts.get('running', 0)} answers, {facts.get('waiting', 0)} waiting; "
        f"{facts.get('moved', 0)} moved, {facts.get('replicas_lost', 0)} replicas lost",
    )
    for column in ("replica", "state", "answers", "way", "queue", "pass", "tokens/s", "free"):
        replicas.add_column(column, justify="left" if column in ("replica", "state") else "right")
    for name, replica in facts["replicas"].items():
        replicas.add_row(
            name,
            replica.get("why") or replica.get("state"),
            f"{replica.get('working', 0)} of {_unit(replica.get('slots'))}",
            _ms(replica.get("round_trip_s")),
            _ms(replica.get("queue_s")),
            _ms(replica.get("pass_s")),
            _unit(replica.get("tokens_per_second")),
            _mib(replica.get("memory_available_bytes")),
        )
    placed = facts.get("placement") or []
    return Group(replicas, _sessions(placed)) if placed else Group(replicas)


def _sessions(placed: list[dict[str, Any]]) -> Table:
    """Whose they are, where, and what shares they have there."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in ("session", "key", "replica", "way", "ids", "moves", "weight", "guesses"):
        left = column in ("session", "key", "replica")
        table.add_column(column, justify="left" if left else "right")
    for session in sorted(placed, key=lambda s: (s.get("replica") or "", s.get("session") or "")):
        cap = session.get("draft_bytes_per_second")
        table.add_row(
            session.get("session", "")[:8],
            session.get("key") or "(none)",
            session.get("replica") or "waits",
            _ms(session.get("round_trip_s")),
            str(session.get("ids")),
            str(session.get("moves", 0)),
            f"{session.get('weight', 1.0):.2f}",
            "no cap" if cap is None else f"{cap:.0f} B/s",
        )
    return table


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.1f} ms"


def _unit(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{value:g} {unit}".rstrip()


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f}%"


def _mib(value: int | None) -> str:
    if value is None:
        return "-"
    return f"{value / 2**30:.1f} GiB" if value >= 10 << 30 else f"{value / 2**20:.0f} MiB"
