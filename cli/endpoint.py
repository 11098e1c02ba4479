"""``outrider serve``: an OpenAI-compatible endpoint here, for apps that change one URL."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.cli import drafters, flags, listening, logs
from outrider.cli import options as o
from outrider.protocol.errors import SettingError

if TYPE_CHECKING:
    from outrider.runtime.net.keys import KeyFile


def serve(
    ctx: typer.Context,
    *,
    cloud: o.Cloud = o.DEFAULT_CLOUD,
    api_key: Annotated[
        str | None,
        typer.Option(
            "--cloud-api-key",
            metavar="KEY",
            show_default=False,
            rich_help_panel=o.CONNECTION,
            help="Key for the cloud; better in OUTRIDER_API_KEY or a file.",
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            "--cloud-api-key-file",
            metavar="FILE",
            rich_help_panel=o.CONNECTION,
            help="File with that key (OUTRIDER_API_KEY_FILE).",
        ),
    ] = None,
    tls_fingerprint: o.TlsFingerprint = None,
    tls_ca: o.TlsCa = None,
    reconnect: o.Reconnect = 30.0,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar="NAME",
            rich_help_panel=o.CONNECTION,
            help="The target that is expected; another one is refused.",
        ),
    ] = None,
    draft_model: drafters.DraftModels = None,
    draft_key: drafters.DraftKey = None,
    draft_key_file: drafters.DraftKeyFile = None,
    drafter_backend: o.DrafterBackendOption = o.DrafterBackend.AUTO,
    draft: o.DraftOption = o.Draft.AUTO,
    policy: o.PolicyOption = o.PolicyName.ADAPTIVE,
    draft_max: o.DraftMax = None,
    draft_p_min: o.DraftPMin = o.DEFAULT_DRAFT_P_MIN,
    decision_log: o.DecisionLogOption = None,
    ctx_size: o.DraftCtx = 0,
    threads: o.DraftThreads = 1,
    host: listening.Host = "127.0.0.1",
    port: listening.Port = 8080,
    endpoint_key: Annotated[
        str | None,
        typer.Option(
            "--api-key",
            metavar="KEY",
            show_default=False,
            rich_help_panel=listening.ADDRESS,
            help="Key that apps must show (OUTRIDER_ENDPOINT_KEY; default: none, loopback only).",
        ),
    ] = None,
    endpoint_key_file: Annotated[
        Path | None,
        typer.Option(
            "--api-key-file",
            metavar="FILE",
            rich_help_panel=listening.ADDRESS,
            help="Keys that apps may show, one a line: KEY or NAME:KEY.",
        ),
    ] = None,
    ssl_certfile: listening.Certificate = None,
    ssl_keyfile: listening.CertificateKey = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(
            "--cors-origin",
            metavar="ORIGIN",
            rich_help_panel=listening.ADDRESS,
            help="Web pages of this origin may use the endpoint; * is any. May be repeated.",
        ),
    ] = None,
    alias: Annotated[
        str | None,
        typer.Option(
            "--alias",
            "-a",
            metavar="NAME",
            rich_help_panel=listening.ADDRESS,
            help="Another name for the model, for apps that insist on one.",
        ),
    ] = None,
    max_sessions: Annotated[
        int,
        typer.Option(
            "--max-sessions",
            min=1,
            max=256,
            metavar="N",
            rich_help_panel=listening.ADDRESS,
            help="Answers at a time; others wait their turn.",
        ),
    ] = 8,
    max_body: Annotated[
        int,
        typer.Option(
            "--max-body",
            min=1024,
            metavar="BYTES",
            rich_help_panel=listening.ADDRESS,
            help="Largest request that is read.",
        ),
    ] = 8 << 20,
    json: listening.Ready = False,
    with_stdin: listening.WithStdin = False,
    verbose: o.Verbose = False,
    config: o.Config = None,  # noqa: ARG001 - its callback reads it
) -> None:
    """Serve an OpenAI-compatible endpoint, drafted here, verified in the cloud.

    Point an app's base URL at http://127.0.0.1:8080/v1. The address itself
    shows a page with the answer and the guesses as they come. --api-key is
    what apps must show; the key for the cloud is --cloud-api-key, and in the
    environment and the file it is called as for every command.

    Example: outrider serve --cloud wss://gpu.example:8471 -md qwen2.5-coder
    """
    logs.configure(verbose)
    flags.check(ctx, [])
    _check_library()
    from outrider.cli.edge import EdgeOptions
    from outrider.cli.endpoint_life import Settings, serve_until_told

    serve_until_told(
        EdgeOptions(
            cloud=cloud,
            api_key=api_key,
            api_key_file=api_key_file,
            tls_fingerprint=tls_fingerprint,
            tls_ca=tls_ca,
            **drafters.given(draft_model, draft_key, draft_key_file),
            drafter_backend=drafter_backend.value,
            policy=policy.value,
            decision_log=decision_log,
            draft_max=0 if draft is o.Draft.OFF else draft_max,
            draft_p_min=draft_p_min,
            ctx_size=ctx_size,
            threads=threads,
            reconnect=reconnect,
        ),
        Settings(
            host=host,
            port=port,
            keys=_keys(endpoint_key, endpoint_key_file),
            certificate=listening.both(ssl_certfile, ssl_keyfile),
            origins=tuple(cors_origin or ()),
            alias=alias,
            model=model,
            parallel=max_sessions,
            max_body=max_body,
            as_json=json,
            with_stdin=with_stdin,
        ),
    )


def _check_library() -> None:
    from outrider.cli.embedded import installed
    from outrider.protocol.errors import BackendError
    from outrider.runtime.extras import hint

    missing = [
        name for name in ("starlette", "uvicorn", "prometheus_client") if not installed(name)
    ]
    if missing:
        raise BackendError(f"the endpoint needs {', '.join(missing)}: {hint('edge')}")


def _keys(key: str | None, file: Path | None) -> KeyFile | None:
    from outrider.runtime.net.keys import KeyFile

    if key and file:
        raise SettingError("--api-key and --api-key-file contradict each other: give one")
    if file is not None:
        return listening.keys_alone(file, "apps")
    return KeyFile.of(key, "flag") if key else None
