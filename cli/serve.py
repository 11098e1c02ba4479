"""``outrider cloud serve``: one target, served to many edges until it is told to stop."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli import embedded, logs
from outrider.cli import options as o
from outrider.cli.exits import WorkFailedError
from outrider.protocol.errors import SettingError

if TYPE_CHECKING:
    from outrider.cloud_server.driver import ServiceSettings, Verifier
    from outrider.runtime.text.tokenizer import Tokenizer

ADDRESS = "Address and access"
QUEUE = 4
"""Sessions that may exist for each one that is served at once; the others wait their turn."""


def serve(
    *,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar="PATH",
            rich_help_panel=o.MODEL,
            help="A folder, a .gguf file, a hub id or the name of a pulled model "
            "(default: the embedded target).",
        ),
    ] = None,
    target_backend: Annotated[
        o.TargetBackend,
        typer.Option(
            "--target-backend",
            rich_help_panel=o.MODEL,
            help="What runs the target; auto goes by the model.",
        ),
    ] = o.TargetBackend.AUTO,
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype",
            metavar="TYPE",
            rich_help_panel=o.MODEL,
            help="transformers: float32 (default), bfloat16 or float16.",
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="DEVICE",
            rich_help_panel=o.MODEL,
            help="transformers: cpu (default), cuda or cuda:N.",
        ),
    ] = None,
    ctx_size: Annotated[
        int,
        typer.Option(
            "--ctx-size",
            "-c",
            min=0,
            metavar="N",
            rich_help_panel=o.MODEL,
            help="Tokens a session holds; 0 is the model's own.",
        ),
    ] = 0,
    threads: Annotated[
        int,
        typer.Option(
            "--threads",
            "-t",
            min=1,
            metavar="N",
            rich_help_panel=o.MODEL,
            help="CPU threads of the target.",
        ),
    ] = 1,
    alias: Annotated[
        str | None,
        typer.Option(
            "--alias",
            metavar="NAME",
            rich_help_panel=o.MODEL,
            help="Name that edges see (default: the model's).",
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            "--host",
            metavar="HOST",
            rich_help_panel=ADDRESS,
            help="Where to listen; beyond loopback needs a key file and a certificate.",
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            "--port",
            min=0,
            max=65535,
            metavar="N",
            rich_help_panel=ADDRESS,
            help="Port; 0 takes a free one.",
        ),
    ] = 8471,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            "--api-key-file",
            metavar="FILE",
            rich_help_panel=ADDRESS,
            help="Keys to accept, one a line: KEY or NAME:KEY.",
        ),
    ] = None,
    ssl_certfile: Annotated[
        Path | None,
        typer.Option(
            "--ssl-certfile",
            metavar="FILE",
            rich_help_panel=ADDRESS,
            help="Certificate chain (PEM).",
        ),
    ] = None,
    ssl_keyfile: Annotated[
        Path | None,
        typer.Option(
            "--ssl-keyfile", metavar="FILE", rich_help_panel=ADDRESS, help="Its private key (PEM)."
        ),
    ] = None,
    max_sessions: Annotated[
        int,
        typer.Option(
            "--max-sessions",
            min=1,
            max=1024,
            metavar="N",
            rich_help_panel=ADDRESS,
            help="Answers served at once; some more wait, the rest are refused.",
        ),
    ] = 8,
    drain_seconds: Annotated[
        float,
        typer.Option(
            "--drain-seconds",
            min=0.0,
            metavar="S",
            rich_help_panel=ADDRESS,
            help="How long a stop waits for the answers under way.",
        ),
    ] = 30.0,
    json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print one JSON line on stdout once ready.", rich_help_panel=o.OUTPUT
        ),
    ] = False,
    with_stdin: Annotated[bool, typer.Option("--with-stdin", hidden=True)] = False,
    verbose: o.Verbose = False,
    config: o.Config = None,  # noqa: ARG001 - its callback reads it
) -> None:
    """Serve a target to edges until SIGTERM or Ctrl-C.

    A first signal finishes the answers under way, a second one ends at once.

    Example: outrider cloud serve --model ./my-target --port 8471
    """
    logs.configure(verbose)
    import asyncio

    from outrider.cloud_server.driver import ServiceSettings, Verifier

    settings = ServiceSettings(
        host=host,
        port=port,
        keys=_keys(api_key_file),
        tls=_tls(ssl_certfile, ssl_keyfile),
        max_sessions=max_sessions * QUEUE,
        drain_seconds=drain_seconds,
    )
    _check_address(settings)
    target, tokenizer, backend = load(
        model, target_backend.value, dtype=dtype, device=device, n_ctx=ctx_size or None,
        slots=max_sessions, threads=threads,
    )  # fmt: skip
    if alias:
        target.info = replace(target.info, name=alias)
    facts = {"backend": backend, "certificate": ssl_certfile}
    verifier = Verifier(target, tokenizer, settings)
    asyncio.run(_serve(verifier, facts, as_json=json, with_stdin=with_stdin))


def load(
    model: str | None,
    backend: str,
    *,
    dtype: str | None = None,
    device: str | None = None,
    n_ctx: int | None = None,
    slots: int = 1,
    threads: int = 1,
) -> tuple[Any, Tokenizer, str]:
    """(target, its tokenizer, the backend chosen) for what the user named; None is the embedded."""
    from outrider.cloud_server.targets.factory import load_target
    from outrider.runtime.hub.resolve import resolve_target
    from outrider.runtime.text.tokenizer import load_tokenizer

    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # progress bars are for a terminal
    if model is None:
        model = str(embedded.target(backend))
    model = resolve_target(model)
    if backend == "llama" and Path(model).expanduser().is_dir():
        model = str(embedded.gguf_in(Path(model).expanduser()))
    target = load_target(
        model, backend=backend, dtype=dtype, device=device, n_ctx=n_ctx, slots=slots,
        threads=threads,
    )  # fmt: skip
    place = Path(model).expanduser()
    tokenizer = load_tokenizer(place if place.exists() else _hub_files(model))
    for warning in tokenizer.warnings:
        logs.warn(warning)
    return target, tokenizer, "transformers" if target.info.dtype in _TORCH_TYPES else "llama"


_TORCH_TYPES = ("float32", "bfloat16", "float16")


def _hub_files(model: str) -> Path:
    """The folder where the hub's client keeps the small files of a model that it has loaded."""
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(model, allow_patterns=["*.json", "*.jinja", "tokenizer*"]))


def _keys(file: Path | None) -> Any:
    if file is None:
        return None
    from outrider.runtime.net.keys import KeyFile

    return KeyFile.load(file.expanduser())


def _tls(certificate: Path | None, key: Path | None) -> Any:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise SettingError("--ssl-certfile and --ssl-keyfile belong together: give both")
    from outrider.runtime.net.tls import server_context

    return server_context(certificate.expanduser(), key.expanduser())


def _check_address(settings: ServiceSettings) -> None:
    """Complain about the address before minutes are spent on loading a model."""
    import asyncio

    from outrider.runtime.net.link import Link
    from outrider.runtime.net.server import serve as listen

    async def nobody(link: Link) -> None:
        await link.close()

    async def probe() -> None:
        server = await listen(
            nobody, settings.host, settings.port, keys=settings.keys, context=settings.tls
        )
        await server.close()

    asyncio.run(probe())


async def _serve(
    verifier: Verifier, facts: dict[str, Any], *, as_json: bool, with_stdin: bool
) -> None:
    """Until a signal, the end of standard input if asked for, or the death of the engine."""
    import asyncio

    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()

    def asked(number: int) -> None:
        if stopping.is_set():
            os._exit(128 + number)  # asked twice: at once means at once
        stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked, number)
    if with_stdin:
        loop.add_reader(sys.stdin.fileno(), _on_stdin, stopping)
    server = await verifier.start()
    try:
        _announce(verifier, server.url, facts, as_json=as_json)
        await _until(stopping, verifier)
    finally:
        if with_stdin:
            loop.remove_reader(sys.stdin.fileno())
        if stopping.is_set() and not with_stdin:
            print("stopping: no new answers; those under way may finish", file=sys.stderr)
        failed = verifier.failed
        await verifier.stop(drain=failed is None)
    if failed is not None:
        raise WorkFailedError(f"the engine stopped: {type(failed).__name__}: {failed}") from failed


async def _until(stopping: Any, verifier: Verifier) -> None:
    import asyncio

    asked = asyncio.create_task(stopping.wait())
    ended = asyncio.create_task(verifier.ended())
    await asyncio.wait({asked, ended}, return_when=asyncio.FIRST_COMPLETED)
    for task in (asked, ended):
        task.cancel()


def _on_stdin(stopping: Any) -> None:
    """Whoever started us holds the other end: when it goes, however it goes, so do we."""
    if not os.read(sys.stdin.fileno(), 4096):
        stopping.set()


def _announce(verifier: Verifier, url: str, facts: dict[str, Any], *, as_json: bool) -> None:
    """The lines that say what runs, where, and who may come in."""
    info, settings = verifier.target.info, verifier.settings
    names = "none (loopback only)" if settings.keys is None else f"{len(settings.keys)} accepted"
    lines = [
        f"model {info.name}: {facts['backend']}, {info.dtype} on {info.device}, "
        f"context {info.n_ctx}, {info.slots} slots",
        f"keys: {names}; TLS: {'on' if settings.tls else 'off'}",
    ]
    if settings.tls is not None:
        from outrider.runtime.net.tls import certificate_fingerprint

        lines.append(f"certificate fingerprint: {certificate_fingerprint(facts['certificate'])}")
    lines.append(f"ready: {url}")
    print("\n".join(lines), file=sys.stderr, flush=True)
    if as_json:
        from outrider.cli.report import print_json

        print_json(
            {
                "event": "ready",
                "url": url,
                "model": info.name,
                "backend": facts["backend"],
                "dtype": info.dtype,
                "device": info.device,
                "n_ctx": info.n_ctx,
                "slots": info.slots,
                "pid": os.getpid(),
            }
        )
