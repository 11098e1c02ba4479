"""``outrider run``: one answer from the cloud, drafted here, streamed as it is verified."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from outrider.cli import judging, logs
from outrider.cli import options as o
from outrider.cli.exits import WorkFailedError
from outrider.cli.settings import given_as_flag
from outrider.protocol.errors import OutriderError, SettingError

TEXT = "Prompt and text"


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
    draft_model: o.DraftModel = None,
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
    temp: o.Temp = 0.0,
    top_k: o.TopK = 0,
    top_p: o.TopP = 1.0,
    min_p: o.MinP = 0.0,
    repeat_penalty: o.RepeatPenalty = 1.0,
    repeat_last_n: o.RepeatLastN = 64,
    presence_penalty: o.PresencePenalty = 0.0,
    frequency_penalty: o.FrequencyPenalty = 0.0,
    logit_bias: o.LogitBias = None,
    seed: o.Seed = None,
    max_tokens: o.MaxTokens = 256,
    ignore_eos: Annotated[
        bool,
        typer.Option("--ignore-eos", help="Go on after end tokens.", rich_help_panel=o.SAMPLING),
    ] = False,
    stop: Annotated[
        list[str] | None,
        typer.Option(
            "--stop",
            metavar="TEXT",
            rich_help_panel=TEXT,
            allow_from_autoenv=False,
            help="End before this text; may be repeated.",
        ),
    ] = None,
    system: Annotated[
        str | None,
        typer.Option("--system", metavar="TEXT", rich_help_panel=TEXT, help="System message."),
    ] = None,
    raw: Annotated[
        bool,
        typer.Option(
            "--raw",
            rich_help_panel=TEXT,
            help="Continue the prompt as it is, without the model's chat template.",
        ),
    ] = False,
    json: o.Json = False,
    verbose: o.Verbose = False,
    config: o.Config = None,  # noqa: ARG001 - its callback reads it
) -> None:
    """Answer one prompt.

    The drafter here guesses, the target in the cloud verifies: the text is
    exactly the target's. Only the text goes to standard output; its figures
    follow on standard error, at a terminal or with --verbose.

    Example: outrider run --cloud ws://127.0.0.1:8471 "And it came to pass" -n 64
    """
    logs.configure(verbose)
    _contradictions(ctx, stop or [])
    from outrider.cli import prompt as prompts
    from outrider.cli.edge import EdgeOptions, load_edge
    from outrider.protocol.decoding.combine import parse
    from outrider.protocol.decoding.sampling import Sampling

    sampling = Sampling(
        temperature=temp,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repeat_penalty,
        repetition_window=repeat_last_n,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        logit_bias=prompts.parse_bias(logit_bias or ()),
        seed=prompts.fresh_seed() if seed is None else seed,
        collaborate=parse(collaborate) if collaborate else None,
    )
    text = prompts.read_prompt(prompt)
    edge = load_edge(
        EdgeOptions(
            cloud=cloud,
            api_key=api_key,
            api_key_file=api_key_file,
            tls_fingerprint=tls_fingerprint,
            tls_ca=tls_ca,
            draft_model=draft_model,
            drafter_backend=drafter_backend.value,
            policy=policy.value,
            decision_log=decision_log,
            draft_max=0 if draft is o.Draft.OFF else draft_max,
            draft_p_min=draft_p_min,
            collaborate=collaborate,
            rule="coupled" if rule is judging.RuleName.AUTO and seed is not None else rule.value,
            ctx_size=ctx_size,
            threads=threads,
            reconnect=reconnect,
            offline=offline is o.Offline.LOCAL,
        )
    )
    # The embedded pair has a template but only ever saw plain text: without --system, no chat.
    wants_chat = edge.tokenizer.chat is not None and draft_model is not None
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


def _contradictions(ctx: typer.Context, stops: list[str]) -> None:
    """Flags that cannot both be meant. The environment and the file may hold what is not used."""
    if any(not stop for stop in stops):
        raise SettingError("--stop is empty; it must be at least one character")
    typed = given_as_flag(
        ctx, "draft", "draft_max", "draft_p_min", "drafter_backend", "threads", "policy"
    )
    if "--draft" in typed and ctx.params["draft"] is o.Draft.OFF and len(typed) > 1:
        if typed[1:] == ["--draft-max"] and ctx.params["draft_max"] == 0:
            return
        raise SettingError(f"--draft off and {typed[1]} contradict each other")


def _finish(edge: Any, request: Any, model: str | None, *, as_json: bool) -> None:
    """Stream the answer, then its figures; an error that broke it off is raised last."""
    import asyncio

    from outrider.cli import report
    from outrider.cli.edge import answer, connected, make_policy, undrafted
    from outrider.cli.unverified import offline_screen

    policy = make_policy(edge.options)

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
        extra |= {"error": said, "bytes": traffic}
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
