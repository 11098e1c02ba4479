"""``outrider drafter serve``: a drafter for the groups of other machines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli import embedded, listening, logs
from outrider.cli import options as o

if TYPE_CHECKING:
    from outrider.edge_client.group.sequences import Sequences
    from outrider.protocol.fingerprint import Vocabulary

WAITING = 4
"""Steps that may wait for each text that is drafted at once."""


def serve(
    *,
    draft_model: Annotated[
        Path | None,
        typer.Option(
            "--draft-model",
            "-md",
            metavar="PATH",
            rich_help_panel=o.MODEL,
            help="The drafter: a .gguf file, an .onnx file, a draft pack folder, or the name of a "
            "pulled model (default: the embedded drafter).",
        ),
    ] = None,
    drafter_backend: o.DrafterBackendOption = o.DrafterBackend.AUTO,
    ctx_size: o.DraftCtx = 0,
    threads: o.DraftThreads = 1,
    max_sessions: Annotated[
        int,
        typer.Option(
            "--max-sessions",
            min=1,
            max=64,
            metavar="N",
            rich_help_panel=listening.ADDRESS,
            help="Texts that it holds and drafts for at once, each with a context of its own.",
        ),
    ] = 4,
    host: listening.Host = "127.0.0.1",
    port: listening.Port = 9100,
    api_key_file: listening.Keys = None,
    ssl_certfile: listening.Certificate = None,
    ssl_keyfile: listening.CertificateKey = None,
    max_leads: Annotated[
        int,
        typer.Option(
            "--max-leads",
            min=1,
            max=256,
            metavar="N",
            rich_help_panel=listening.ADDRESS,
            help="Edges that may be connected.",
        ),
    ] = 16,
    json: listening.Ready = False,
    log_format: listening.Log = o.LogFormat.TEXT,
    with_stdin: listening.WithStdin = False,
    verbose: o.Verbose = False,
    config: o.Config = None,  # noqa: ARG001 - its callback reads it
) -> None:
    """Draft for the groups of other machines until SIGTERM or Ctrl-C.

    An edge names it by its address: --draft-model ws://HOST:9100. Beyond this
    machine it wants keys and a certificate, like a cloud; whoever runs it can
    read what the edges write.

    Example: outrider drafter serve -md qwen2.5-coder --port 9100
    """
    logs.configure(verbose, log_format.value)
    import asyncio

    from outrider.cli.serving import serve_until_told
    from outrider.edge_client.group.service import DrafterService, DrafterSettings

    service = DrafterService(
        DrafterSettings(
            host=host,
            port=port,
            keys=listening.keys_alone(api_key_file, "leads"),
            key_file=api_key_file.expanduser() if api_key_file else None,
            tls=listening.tls(ssl_certfile, ssl_keyfile),
            max_leads=max_leads,
            max_queue=WAITING * max(max_sessions, max_leads),
        )
    )

    def build() -> tuple[tuple[Sequences, Vocabulary], dict[str, Any]]:
        from outrider.edge_client.group.sequences import sequences
        from outrider.runtime.hub.need import check_memory
        from outrider.runtime.hub.resolve import resolve
        from outrider.runtime.lm.factory import load_lm
        from outrider.runtime.text.fingerprint import describe
        from outrider.runtime.text.tokenizer import load_tokenizer

        place = resolve(str(draft_model)) if draft_model else embedded.drafter()
        check_memory(place, ctx_size, backend=drafter_backend.value)
        tokenizer = load_tokenizer(place)
        loaded = load_lm(
            place, drafter_backend.value, n_ctx=ctx_size, threads=threads, n_seq=max_sessions
        )
        made = sequences(loaded.lm, max_sessions)
        facts = {
            "model": loaded.path.name,
            "backend": loaded.backend,
            "n_ctx": made.n_ctx,
            "sessions": made.count,
            "steps": made.how,
            "keys": api_key_file is not None,
            "certificate": ssl_certfile,
        }
        return (made, describe(tokenizer)), facts

    asyncio.run(serve_until_told(service, build, _announce, as_json=json, with_stdin=with_stdin))


def _announce(_built: object, url: str, facts: dict[str, Any], *, as_json: bool) -> None:
    """The lines that say what drafts, where, and for whom."""
    certificate = facts.pop("certificate")
    lines = [
        f"drafter {facts['model']}: {facts['backend']}, context {facts['n_ctx']}, "
        f"{facts['sessions']} texts at once, {facts['steps']}",
        f"keys: {'asked for' if facts['keys'] else 'none (loopback only)'}; "
        f"TLS: {'on' if certificate else 'off'}",
    ]
    if certificate is not None:
        from outrider.runtime.net.tls import certificate_fingerprint

        lines.append(f"certificate fingerprint: {certificate_fingerprint(certificate)}")
    lines.append(f"ready: {url}")
    logs.say("\n".join(lines))
    if as_json:
        import os

        from outrider.cli.report import print_json

        print_json({"event": "ready", "url": url, "pid": os.getpid(), **facts})
