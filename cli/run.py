"""``outrider run``: one answer from the cloud, drafted here, streamed as it is verified."""

# ruff: noqa: ARG001 - the shared flags are read from the context
from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from outrider.cli import drafters, flags, judging, logs
from outrider.cli import options as o
from outrider.cli import sampling_options as s
from outrider.cli.exits import WorkFailedError
from outrider.protocol.errors import OutriderError


def run(
    ctx: typer.Context,
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="The prompt; - or nothing reads standard input."),
    ] = None,
    *,
    cloud: o.Cloud = o.DEFAULT_CLOUD,
    api_key: o.ApiKey = None,
    api_key_file: o.ApiKeyFile = None,
    tls_fingerprint: o.TlsFingerprint = None,
    tls_ca: o.TlsCa = None,
    reconnect: o.Reconnect = 30.0,
    offline: o.OfflineOption = o.Offline.OFF,
    model: o.Target = None,
    draft_model: drafters.DraftModels = None,
    draft_key: drafters.DraftKey = None,
    draft_key_file: drafters.DraftKeyFile = None,
    drafter_backend: o.DrafterBackendOption = o.DrafterBackend.AUTO,
    draft: o.DraftOption = o.Draft.AUTO,
    policy: o.PolicyOption = o.PolicyName.ADAPTIVE,
    draft_max: o.DraftMax = None,
    draft_p_min: o.DraftPMin = o.DEFAULT_DRAFT_P_MIN,
    rule: judging.RuleOption = judging.RuleName.COUPLED,
    collaborate: judging.Collaborate = None,
    decision_log: o.DecisionLogOption = None,
    objective: o.ObjectiveOption = None,
    ctx_size: o.DraftCtx = 0,
    threads: o.DraftThreads = 1,
    temp: s.Temp = 0.0,
    top_k: s.TopK = 0,
    top_p: s.TopP = 1.0,
    min_p: s.MinP = 0.0,
    repeat_penalty: s.RepeatPenalty = 1.0,
    repeat_last_n: s.RepeatLastN = 64,
    presence_penalty: s.PresencePenalty = 0.0,
    frequency_penalty: s.FrequencyPenalty = 0.0,
    logit_bias: s.LogitBias = None,
    seed: s.Seed = None,
    max_tokens: s.MaxTokens = 256,
    ignore_eos: s.IgnoreEos = False,
    stop: s.Stop = None,
    system: s.System = None,
    raw: Annotated[
        bool,
        typer.Option(
            "--raw",
            rich_help_panel=o.TEXT,
            help="Continue the prompt as it is, without the model's chat template.",
        ),
    ] = False,
    json: o.Json = False,
    verbose: o.Verbose = False,
    config: o.Config = None,
) -> None:
    """Answer one prompt.

    The drafter here guesses, the target in the cloud verifies: the text is
    exactly the target's. Only the text goes to standard output; its figures
    follow on standard error, at a terminal or with --verbose.

    Example: outrider run --cloud ws://127.0.0.1:8471 "And it came to pass" -n 64
    """
    logs.configure(verbose)
    flags.check(ctx, stop or [])
    from outrider.cli import prompt as prompts
    from outrider.cli.edge import load_edge

    sampling = flags.sampling(ctx.params, prompts.fresh_seed() if seed is None else seed)
    text = prompts.read_prompt(prompt)
    edge = load_edge(flags.edge_options(ctx.params, offline=offline is o.Offline.LOCAL))
    # The embedded pair has a template but only ever saw plain text: without --system, no chat.
    wants_chat = edge.tokenizer.chat is not None and not edge.options.is_embedded
    request = prompts.build_request(
        edge.tokenizer,
        text,
        sampling,
        max_tokens=max_tokens,
        chat=not raw and (wants_chat or system is not None),
        system=system,
        stops=stop or (),
        ignore_eos=ignore_eos,
        objective=objective.value if objective else None,
    )
    _finish(edge, request, model, as_json=json)


def _finish(edge: Any, request: Any, model: str | None, *, as_json: bool) -> None:
    """Stream the answer, then its figures; an error that broke it off is raised last."""
    import asyncio

    from outrider.cli import report
    from outrider.cli.edge import answer, connected, make_policy, undrafted
    from outrider.cli.unverified import offline_screen

    policy = make_policy(edge.options)

    notices: dict[str, int] = {}

    async def work(screen: Any) -> tuple[Any, OutriderError | None, str | None, Any]:
        async with connected(edge, model=model, policy=policy) as client:
            if logs.verbose():
                welcome = client.machine.welcome
                target = welcome.model if welcome else "not reached yet"
                logs.note(f"{edge.mode}; target {target} at {client.url}")
            result, error = await answer(
                client, request, screen.piece, screen.unverified, edge.options.reconnect
            )
            welcome = client.machine.welcome
            notices.update(client.notices)
            served = welcome.model if welcome else None
            return result, error, served, client.machine.traffic.figures()

    with offline_screen(as_json=as_json, offline=edge.options.offline) as screen:
        result, error, target, traffic = asyncio.run(work(screen))
        screen.end(result)
    mode, reason = edge.mode, policy.reason if edge.drafter is not None else None
    if edge.drafter is not None and not result.drafted:
        reason = undrafted(result, policy)
        mode = f"did not draft: {reason}"
    if as_json:
        said = None if error is None else str(error)
        extra = {"drafter": edge.drafter_name, "target": target, "mode": mode, "reason": reason}
        extra |= {"error": said, "bytes": traffic, "notices": notices}
        if edge.options.collaborate:
            extra |= report.origins(result)
        if edge.options.offline:
            extra |= report.unverified(result)
        report.print_json(report.figures(result) | extra)
    if (sys.stderr.isatty() or logs.verbose()) and not as_json:
        print(report.summary(result, mode), file=sys.stderr)
    if error is None and result.reason == "unverified":
        error = WorkFailedError(
            f"the link did not come back: {result.unverified_tokens} tokens are not verified"
        )
    if error is not None:
        raise error
