"""``outrider demo``: a cloud and an edge as two processes, shown at work, checked on the spot."""

from __future__ import annotations

import signal
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli import embedded, logs
from outrider.cli import options as o
from outrider.cli import sampling_options as s
from outrider.cli.exits import WorkFailedError
from outrider.cli.settings import given_as_flag
from outrider.protocol.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outrider.cli.check import Verdict
    from outrider.cli.edge import Edge
    from outrider.edge_client.answer import Answer
    from outrider.protocol.decoding.sampling import Sampling

PROMPTS = "Prompts"


@dataclass(frozen=True, slots=True)
class Plan:
    """What to ask: (domain, prompt) pairs, how to sample, how long."""

    prompts: list[tuple[str, str]]
    sampling: Sampling
    max_tokens: int
    objective: str | None
    as_json: bool


def demo(
    ctx: typer.Context,
    *,
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt",
            metavar="TEXT",
            rich_help_panel=PROMPTS,
            help="Your own prompt (the embedded models only continue texts).",
        ),
    ] = None,
    domain: Annotated[
        str | None,
        typer.Option(
            "--domain",
            metavar="NAME",
            rich_help_panel=PROMPTS,
            help="All prompts of scripture, docs or source (default: one of each).",
        ),
    ] = None,
    max_tokens: s.MaxTokens = 96,
    temp: s.Temp = 0.0,
    seed: s.Seed = None,
    policy: o.PolicyOption = o.PolicyName.FIXED,
    draft_max: o.DraftMax = 4,
    draft_p_min: o.DraftPMin = o.DEFAULT_DRAFT_P_MIN,
    objective: o.DemoObjective = o.Objective.COST,
    drafter_backend: o.DrafterBackendOption = o.DrafterBackend.AUTO,
    target_backend: Annotated[
        o.TargetBackend,
        typer.Option(
            "--target-backend",
            help="What runs the target; auto prefers transformers.",
            rich_help_panel=o.DRAFTING,
        ),
    ] = o.TargetBackend.AUTO,
    live: Annotated[
        bool,
        typer.Option(
            "--live", help="Serve a page to watch it on, with a link that can be changed."
        ),
    ] = False,
    port: Annotated[
        int,
        typer.Option("--port", min=0, max=65535, metavar="N", help="--live: where; 0 is any."),
    ] = 8080,
    json: o.Json = False,
    verbose: o.Verbose = False,
    config: o.Config = None,  # noqa: ARG001 - its callback reads it
) -> None:
    """Show it working, with the embedded models: nothing to download.

    Starts a cloud verifier as a second process on this machine, streams
    answers from it over a real socket, and compares them with what the
    target says alone.

    Example: outrider demo --temp 1 --seed 7
    """
    logs.configure(verbose)
    from outrider.cli.edge import SECOND_CHOICE, EdgeOptions, load_edge
    from outrider.cli.prompt import fresh_seed
    from outrider.protocol.decoding.sampling import Sampling

    if live:
        from outrider.cli.demo_live import live as watch

        backend = None if target_backend is o.TargetBackend.AUTO else target_backend.value
        chosen = bool(given_as_flag(ctx, "policy"))  # to watch, the one that measures
        drafting = EdgeOptions(
            cloud="",
            policy=policy.value if chosen else o.PolicyName.ADAPTIVE.value,
            draft_max=draft_max if chosen else None,
            draft_p_min=draft_p_min,
            drafter_backend=drafter_backend.value,
        )
        with _termination():
            watch(backend, drafting, port=port)
        return
    plan = Plan(
        prompts=_prompts(prompt, domain),
        sampling=Sampling(temperature=temp, seed=fresh_seed() if seed is None else seed),
        max_tokens=max_tokens,
        objective=objective.value,
        as_json=json,
    )
    model = str(embedded.target(target_backend.value))
    backend = "llama" if model.endswith(".gguf") else "transformers"
    edge = load_edge(
        EdgeOptions(
            cloud="",
            policy=policy.value,
            draft_max=draft_max,
            draft_p_min=draft_p_min,
            drafter_backend=drafter_backend.value,
            reconnect=0.0,  # a child that is gone does not come back
        )
    )
    if edge.drafter_name and SECOND_CHOICE in edge.drafter_name and sys.stderr.isatty():
        logs.note(f"drafting with {edge.drafter_name}")
    with _termination():
        _play(plan, edge, model, backend, verbose=verbose)


def _prompts(prompt: str | None, domain: str | None) -> list[tuple[str, str]]:
    if prompt is not None:
        if domain is not None:
            raise SettingError("--prompt and --domain contradict each other: give one")
        if not prompt:
            raise SettingError("the prompt is empty")
        return [("prompt", prompt)]
    known = embedded.prompts()
    if domain is None:
        return [(name, known[name][0]) for name in embedded.DOMAINS]
    if domain not in known:
        raise SettingError(f"--domain {domain!r}: there are {', '.join(known)}")
    return [(domain, text) for text in known[domain]]


@contextmanager
def _termination() -> Iterator[None]:
    """SIGTERM unwinds like any other exit, so that the child ends with us."""

    def leave(number: int, _frame: Any) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _play(plan: Plan, edge: Edge, model: str, backend: str, *, verbose: bool) -> None:
    import asyncio
    from dataclasses import replace

    from rich.console import Console

    from outrider.cli.child import CloudChild

    console = Console(stderr=plan.as_json, highlight=False, quiet=plan.as_json)
    console.print(
        f"starting a cloud verifier with the embedded target on {backend} ...", style="dim"
    )
    arguments = ["--model", model, "--target-backend", backend, "--max-sessions", "1"]
    arguments += ["--alias", embedded.TARGET_NAME]
    with CloudChild([*arguments, "--drain-seconds", "0"], verbose=verbose) as child:
        edge = replace(edge, options=replace(edge.options, cloud=child.ready["url"]))
        answers = asyncio.run(_converse(plan, edge, console, child))
    verdicts = _verify(plan, answers, model, backend, console)
    _conclude(plan, edge, answers, verdicts, backend=backend, console=console)


def _introduce(console: Any, child: Any, edge: Edge) -> None:
    from outrider.cli.paint import legend

    ready = child.ready
    console.print(
        f"cloud: {ready['model']}, {ready['backend']}, {ready['dtype']}, process {ready['pid']}\n"
        f"at:    {ready['url']}\nedge:  {edge.mode}",
        style="dim",
    )
    if console.is_terminal:
        console.print(legend())


async def _converse(plan: Plan, edge: Edge, console: Any, child: Any) -> list[Answer]:
    """All answers over one connection. The first one that breaks off ends it."""
    from outrider.cli.edge import answer, connected
    from outrider.cli.paint import PROMPT, Painter, table, totals
    from outrider.cli.prompt import build_request

    _introduce(console, child, edge)
    answers = []
    async with connected(edge) as client:
        for domain, prompt in plan.prompts:
            request = build_request(
                edge.tokenizer,
                prompt,
                plan.sampling,
                max_tokens=plan.max_tokens,
                objective=plan.objective,
            )
            console.print(f"\n{domain}", style="bold underline")
            console.print(prompt, style=PROMPT, end="", soft_wrap=True, markup=False)
            painter = Painter(console, edge.tokenizer.token_bytes)
            result, error = await answer(client, request, painter.show)
            painter.finish()
            if error is not None:
                raise error
            console.print(table([(domain, totals([result]))]))
            answers.append(result)
    return answers


def _verify(
    plan: Plan, answers: list[Answer], model: str, backend: str, console: Any
) -> list[Verdict]:
    """Load the same target here, in float32, and ask it alone."""
    from outrider.cli.check import check
    from outrider.cli.targets import load

    console.print("\nasking the target alone ...", style="dim")
    target, tokenizer, _ = load(model, backend)
    try:
        eos = target.info.eos | tokenizer.eos
        return [check(target, eos, a, plan.sampling, plan.max_tokens) for a in answers]
    finally:
        target.close()


def _conclude(
    plan: Plan,
    edge: Edge,
    answers: list[Answer],
    verdicts: list[Verdict],
    *,
    backend: str,
    console: Any,
) -> None:
    from outrider.cli import report
    from outrider.cli.check import together
    from outrider.cli.paint import UNITS, table, totals

    whole = together(verdicts)
    if plan.as_json:
        report.print_json(_as_json(plan, edge, answers, verdicts, backend))
    if len(answers) > 1:
        console.print(table([("all", totals(answers))]))
    console.print(UNITS, style="dim")
    if plan.sampling.temperature:
        console.print(f"seed {plan.sampling.seed}", style="dim")
    if whole.identical:
        console.print(f"identical to the target alone: yes ({whole.tokens} tokens)", style="bold")
    elif whole.exact:
        console.print(
            f"identical to the target alone: no; exact: yes ({whole.tokens} tokens, "
            f"{whole.near_ties} near-ties)",
            style="bold",
        )
    else:
        raise WorkFailedError("the text is not the target's own: this is a bug, please report it")


def _as_json(
    plan: Plan, edge: Edge, answers: list[Answer], verdicts: list[Verdict], backend: str
) -> dict[str, Any]:
    from dataclasses import asdict

    from outrider.cli.check import together
    from outrider.cli.paint import totals
    from outrider.cli.report import figures

    return {
        "text": "\n\n".join(answer.text for answer in answers),
        **totals(answers),
        **asdict(together(verdicts)),
        "seed": plan.sampling.seed if plan.sampling.temperature else None,
        "drafter": edge.drafter_name,
        "mode": edge.mode,
        "target_backend": backend,
        "answers": [
            {"domain": domain, "prompt": prompt, **figures(answer), **asdict(verdict)}
            for (domain, prompt), answer, verdict in zip(
                plan.prompts, answers, verdicts, strict=True
            )
        ],
    }
