"""``outrider cloud serve``: one target, served to many edges until it is told to stop."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.cli import embedded, hosting, listening, logs
from outrider.cli import options as o
from outrider.cli.targets import Collaborators

QUEUE = 3
"""Answers that may wait for each one that is served at once."""

LEAST_SESSIONS = 64
"""Sessions that may exist: those between two answers take next to nothing."""

REHEARSAL = 2.0
"""Seconds at most in which the target's passes are timed before the first edge comes."""


def serve(
    *,
    model: hosting.Model = None,
    target_backend: hosting.Backend = o.TargetBackend.AUTO,
    dtype: hosting.Dtype = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="DEVICE",
            rich_help_panel=o.MODEL,
            help="transformers: cpu (default), cuda or cuda:N.",
        ),
    ] = None,
    device_map: Annotated[
        str | None,
        typer.Option(
            "--device-map",
            metavar="MAP",
            rich_help_panel=o.MODEL,
            help="transformers: spread the layers over all GPUs: auto, balanced, "
            "balanced_low_0 or sequential (default: all on --device).",
        ),
    ] = None,
    tensor_parallel: Annotated[
        int,
        typer.Option(
            "--tensor-parallel",
            min=1,
            max=64,
            metavar="N",
            rich_help_panel=o.MODEL,
            help="transformers: share each layer between N GPUs, or N processes on a CPU.",
        ),
    ] = 1,
    verify_width: Annotated[
        int,
        typer.Option(
            "--verify-width",
            min=0,
            max=64,
            metavar="N",
            rich_help_panel=o.MODEL,
            help="Strict: judge drafts N positions at a time, always, so that their number "
            "cannot change a low-precision result; costs time. 0 is off.",
        ),
    ] = 0,
    tree_leaves: Annotated[
        int,
        typer.Option(
            "--tree-leaves",
            min=1,
            max=64,
            metavar="N",
            rich_help_panel=o.MODEL,
            help="llama.cpp: judge trees of drafts with up to N ends. Passes of many sessions get "
            "slower, as all share one buffer. 1: chains only.",
        ),
    ] = 1,
    ctx_size: hosting.CtxSize = 0,
    threads: hosting.Threads = 1,
    collaborator: Collaborators = None,
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
    host: listening.Host = "127.0.0.1",
    port: listening.Port = 8471,
    api_key_file: listening.Keys = None,
    ssl_certfile: listening.Certificate = None,
    ssl_keyfile: listening.CertificateKey = None,
    max_sessions: Annotated[
        int,
        typer.Option(
            "--max-sessions",
            min=0,
            max=1024,
            metavar="N",
            rich_help_panel=listening.ADDRESS,
            help="Answers served at once, each with a context of its own in memory; 0: as many as "
            "fit. Some more wait, the rest are refused.",
        ),
    ] = 8,
    max_queue: Annotated[
        int | None,
        typer.Option(
            "--max-queue",
            min=0,
            metavar="N",
            show_default=False,
            rich_help_panel=listening.ADDRESS,
            help="Answers that may wait (default: three for each served at once); further ones "
            "are told when to come back.",
        ),
    ] = None,
    idle_seconds: Annotated[
        float,
        typer.Option(
            "--idle-seconds",
            min=1.0,
            metavar="S",
            rich_help_panel=listening.ADDRESS,
            help="A connection on which nothing happens for so long is closed.",
        ),
    ] = 600.0,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            min=0,
            max=65535,
            metavar="N",
            rich_help_panel=listening.ADDRESS,
            help="Serve /metrics and /status on 127.0.0.1 at this port too, without a key "
            "(default: only on --port, with a key where there are keys).",
        ),
    ] = None,
    drain_seconds: Annotated[
        float,
        typer.Option(
            "--drain-seconds",
            min=0.0,
            metavar="S",
            rich_help_panel=listening.ADDRESS,
            help="How long a stop waits for the answers under way.",
        ),
    ] = 30.0,
    json: listening.Ready = False,
    log_format: listening.Log = o.LogFormat.TEXT,
    log_prompts: Annotated[
        bool,
        typer.Option(
            "--log-prompts",
            rich_help_panel=o.OUTPUT,
            help="Write every prompt to the log as well, for debugging your own cloud.",
        ),
    ] = False,
    with_stdin: listening.WithStdin = False,
    verbose: o.Verbose = False,
    config: o.Config = None,  # noqa: ARG001 - its callback reads it
) -> None:
    """Serve a target to edges until SIGTERM or Ctrl-C.

    A first signal finishes the answers under way, a second one ends at once;
    SIGHUP reads the key file again.

    Example: outrider cloud serve --model ./my-target --port 8471
    """
    logs.configure(verbose, log_format.value)
    import asyncio

    from outrider.cli.serving import announce_cloud, serve_until_told
    from outrider.cli.targets import fitting_slots, load, load_collaborators, load_own
    from outrider.cloud_server.driver import ServiceSettings, Verifier
    from outrider.cloud_server.planner import EngineSettings
    from outrider.cloud_server.service import Service

    if max_sessions == 0:
        max_sessions = fitting_slots(model, target_backend.value, dtype=dtype, n_ctx=ctx_size)
    queue = QUEUE * max_sessions if max_queue is None else max_queue
    settings = ServiceSettings(
        host=host,
        port=port,
        keys=listening.keys(api_key_file),
        tls=listening.tls(ssl_certfile, ssl_keyfile),
        max_sessions=max(LEAST_SESSIONS, 2 * (max_sessions + queue)),
        max_queue=queue,
        idle_seconds=idle_seconds,
        drain_seconds=drain_seconds,
        objective=objective.value,
        draft_max=draft_max,
        rehearse=REHEARSAL,
        engine=EngineSettings(lookup=lookup, scheduler=scheduler.value),
    )

    def build() -> tuple[Verifier, dict[str, Any]]:
        target, tokenizer, backend = load(
            model, target_backend.value, dtype=dtype, device=device, n_ctx=ctx_size or None,
            slots=max_sessions, threads=threads, announce=True, verify_width=verify_width,
            device_map=device_map, tensor_parallel=tensor_parallel, tree_leaves=tree_leaves,
        )  # fmt: skip
        own = None
        if draft_model is not None and draft_max:
            own = load_own(draft_model, n_ctx=target.info.n_ctx, threads=threads)
        if alias or model is None:
            target.info = replace(target.info, name=alias or embedded.TARGET_NAME)
        target = load_collaborators(collaborator, target, tokenizer, threads=threads)
        facts = {"backend": backend, "certificate": ssl_certfile, "drafter": own and own[0].name}
        return Verifier(target, tokenizer, settings, own), facts

    service = Service(
        settings,
        key_file=api_key_file.expanduser() if api_key_file else None,
        metrics_port=metrics_port,
        log_prompts=log_prompts,
    )
    asyncio.run(
        serve_until_told(service, build, announce_cloud, as_json=json, with_stdin=with_stdin)
    )
