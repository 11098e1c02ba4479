"""``outrider cloud serve``: one target, served to many edges until it is told to stop."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli import embedded, logs
from outrider.cli import options as o
from outrider.protocol.errors import SettingError

if TYPE_CHECKING:
    from outrider.runtime.lm.drafter import Drafter
    from outrider.runtime.text.tokenizer import Tokenizer

ADDRESS = "Address and access"
QUEUE = 4
"""Sessions that may exist for each one that is served at once; the others wait their turn."""

REHEARSAL = 2.0
"""Seconds at most in which the target's passes are timed before the first edge comes."""


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
            help="Tokens a session holds; 0 is the model's own, for a .gguf file at most 4096.",
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
    draft_model: Annotated[
        Path | None,
        typer.Option(
            "--draft-model",
            "-md",
            metavar="PATH",
            rich_help_panel=o.DRAFTING,
            help="A drafter beside the target, for when an edge has none or its guesses come "
            "late: a .gguf or .onnx file, a draft pack, or the name of a pulled model "
            "(default: none).",
        ),
    ] = None,
    draft_max: Annotated[
        int,
        typer.Option(
            "--draft-max",
            min=0,
            max=64,
            metavar="N",
            rich_help_panel=o.DRAFTING,
            help="Most guesses that it makes at a time; 0 is none.",
        ),
    ] = 16,
    lookup: Annotated[
        int,
        typer.Option(
            "--lookup",
            min=0,
            max=64,
            metavar="N",
            rich_help_panel=o.DRAFTING,
            help="Most guesses looked up in the text so far; 0 is off.",
        ),
    ] = 8,
    objective: Annotated[
        o.Objective,
        typer.Option(
            "--objective",
            rich_help_panel=o.DRAFTING,
            help="The dearest that edges may ask for: latency, balanced or cost.",
        ),
    ] = o.Objective.LATENCY,
    scheduler: Annotated[
        o.Scheduler,
        typer.Option(
            "--scheduler",
            rich_help_panel=o.DRAFTING,
            help="How steps are filled: cosine (least weighted latency) or fifo.",
        ),
    ] = o.Scheduler.COSINE,
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

    from outrider.cli.serving import check_address, ends_at_once, serve_until_told
    from outrider.cloud_server.driver import ServiceSettings, Verifier
    from outrider.cloud_server.planner import EngineSettings

    settings = ServiceSettings(
        host=host,
        port=port,
        keys=_keys(api_key_file),
        tls=_tls(ssl_certfile, ssl_keyfile),
        max_sessions=max_sessions * QUEUE,
        drain_seconds=drain_seconds,
        objective=objective.value,
        draft_max=draft_max,
        rehearse=REHEARSAL,
        engine=EngineSettings(lookup=lookup, scheduler=scheduler.value),
    )
    check_address(settings)
    with ends_at_once():
        target, tokenizer, backend = load(
            model, target_backend.value, dtype=dtype, device=device, n_ctx=ctx_size or None,
            slots=max_sessions, threads=threads, announce=True,
        )  # fmt: skip
        own = None
        if draft_model is not None and draft_max:
            own = load_own(draft_model, n_ctx=target.info.n_ctx, threads=threads)
    if alias or model is None:
        target.info = replace(target.info, name=alias or embedded.TARGET_NAME)
    facts = {"backend": backend, "certificate": ssl_certfile, "drafter": own and own[0].name}
    verifier = Verifier(target, tokenizer, settings, own)
    asyncio.run(serve_until_told(verifier, facts, as_json=json, with_stdin=with_stdin))


def load(
    model: str | None,
    backend: str,
    *,
    dtype: str | None = None,
    device: str | None = None,
    n_ctx: int | None = None,
    slots: int = 1,
    threads: int = 1,
    announce: bool = False,
) -> tuple[Any, Tokenizer, str]:
    """(target, its tokenizer, the backend chosen) for what the user named; None is the embedded.

    ``announce``: say what is about to be loaded, and how much memory it will take.
    """
    from outrider.cloud_server.targets.factory import is_gguf, load_target
    from outrider.runtime.hub.resolve import resolve_target
    from outrider.runtime.text.tokenizer import load_tokenizer

    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # progress bars are for a terminal
    if model is None:
        model = str(embedded.target(backend))
    model = resolve_target(model)
    if backend == "llama" and Path(model).expanduser().is_dir():
        model = str(embedded.gguf_in(Path(model).expanduser()))
    if is_gguf(model):
        about = _check_gguf(Path(model).expanduser(), n_ctx or 0, slots)
        if announce:
            print(about, file=sys.stderr, flush=True)
    target = load_target(
        model, backend=backend, dtype=dtype, device=device, n_ctx=n_ctx, slots=slots,
        threads=threads,
    )  # fmt: skip
    place = Path(model).expanduser()
    tokenizer = load_tokenizer(place if place.exists() else _hub_files(model))
    for warning in tokenizer.warnings:
        logs.warn(warning)
    return target, tokenizer, "transformers" if target.info.dtype in _TORCH_TYPES else "llama"


def _check_gguf(file: Path, n_ctx: int, slots: int) -> str:
    """The line that says what loading takes; refused where there is not that much."""
    from outrider.runtime.hub.gguf import read_header
    from outrider.runtime.hub.need import check_fits, estimate_gguf, mib

    header = read_header(file)
    need = estimate_gguf(header, n_ctx, n_seq=slots)
    check_fits(file.name, need)
    trained = header.number("context_length") or 0
    if not n_ctx and need.n_ctx < trained:
        more = f"; the model would allow {trained} ids: --ctx-size"
    else:
        more = ""
    return (
        f"loading {file.name}: about {mib(need.total)} (weights {mib(need.weights)}, "
        f"cache of {slots} x {need.n_ctx} ids {mib(need.cache)}){more}"
    )


def load_own(model: Path, *, n_ctx: int, threads: int = 1) -> tuple[Drafter, Tokenizer]:
    """The draft model beside the target, and its tokenizer, which is to be compared."""
    from outrider.runtime.hub.need import check_memory
    from outrider.runtime.hub.resolve import resolve
    from outrider.runtime.lm.drafter import Drafter
    from outrider.runtime.lm.factory import load_lm
    from outrider.runtime.text.tokenizer import load_tokenizer

    place = resolve(str(model))
    check_memory(place, n_ctx)
    tokenizer = load_tokenizer(place)
    loaded = load_lm(place, n_ctx=n_ctx, threads=threads)
    return Drafter(loaded.lm, tokenizer.size, tokenizer.eos), tokenizer


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
