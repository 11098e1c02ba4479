"""``outrider link``: what the link to a cloud is like, and which mode it asks for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli import drafters, logs
from outrider.cli import options as o
from outrider.cli import sampling_options as s

if TYPE_CHECKING:
    from outrider.cli.edge import Edge
    from outrider.edge_client.answer import Answer
    from outrider.edge_client.client import EdgeClient
    from outrider.runtime.net.probe import Measured

PROMPT = "And it came to pass in those days, that the king of"
"""What is asked where nothing else is: any target goes on with it."""

FRAME, WINDOW = 4, 8
"""How the measured answer is drafted: so that the drafter is judged whatever the link is like."""

SETTLED = 32
"""Looks at a policy that moves a step at a time."""


def link(
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="What to ask (default: a sentence).")
    ] = None,
    *,
    cloud: o.Cloud = o.DEFAULT_CLOUD,
    api_key: o.ApiKey = None,
    api_key_file: o.ApiKeyFile = None,
    tls_fingerprint: o.TlsFingerprint = None,
    tls_ca: o.TlsCa = None,
    draft_model: drafters.DraftModels = None,
    draft_key: drafters.DraftKey = None,
    draft_key_file: drafters.DraftKeyFile = None,
    drafter_backend: o.DrafterBackendOption = o.DrafterBackend.AUTO,
    draft: o.DraftOption = o.Draft.AUTO,
    draft_max: o.DraftMax = None,
    draft_p_min: o.DraftPMin = o.DEFAULT_DRAFT_P_MIN,
    ctx_size: o.DraftCtx = 0,
    threads: o.DraftThreads = 1,
    max_tokens: s.MaxTokens = 48,
    json: o.Json = False,
    verbose: o.Verbose = False,
    config: o.Config = None,  # noqa: ARG001 - its callback reads it
) -> None:
    """Measure the link to a cloud and say how far to draft over it.

    Pings give the round trip and the goodput of the slower direction, one
    short answer the pass, the drafter and how often it is right.

    Example: outrider link --cloud ws://127.0.0.1:8471
    """
    logs.configure(verbose)
    import asyncio

    from outrider.cli import report
    from outrider.cli.edge import EdgeOptions, load_edge

    edge = load_edge(
        EdgeOptions(
            cloud=cloud,
            api_key=api_key,
            api_key_file=api_key_file,
            tls_fingerprint=tls_fingerprint,
            tls_ca=tls_ca,
            **drafters.given(draft_model, draft_key, draft_key_file),
            drafter_backend=drafter_backend.value,
            draft_max=0 if draft is o.Draft.OFF else draft_max,
            draft_p_min=draft_p_min,
            ctx_size=ctx_size,
            threads=threads,
        )
    )
    found = asyncio.run(measure(edge, prompt or PROMPT, max_tokens))
    if json:
        report.print_json(found)
    else:
        show(found)


async def measure(edge: Edge, prompt: str, max_tokens: int) -> dict[str, Any]:
    """The link by pings, then one answer over it, then what follows from both.

    Raises:
        NotConnectedError: the cloud cannot be reached or the two ends do not fit.
    """
    from outrider.cli.edge import connected, read_key, tls_context
    from outrider.cli.exits import not_connected
    from outrider.edge_client.policy import Plan, Steady
    from outrider.protocol.errors import HandshakeError, LinkError
    from outrider.runtime.net import probe
    from outrider.runtime.net.client import connect
    from outrider.runtime.net.link import Tuning

    options = edge.options
    try:
        # A connection of its own, without a hello: nothing else is on it while it is measured.
        quiet = Tuning(ping_interval=None)
        context = tls_context(options)
        async with await connect(
            options.cloud, key=read_key(options), context=context, tuning=quiet
        ) as probed:
            measured = await probe.measure(probed)
    except (HandshakeError, LinkError) as error:
        raise not_connected(error) from error
    policy = Steady(Plan(FRAME, WINDOW, options.draft_p_min))
    async with connected(edge, policy=policy if edge.drafter else None) as client:
        answered = await _answer(client, edge, prompt, max_tokens)
        welcome = client.welcome
    return {
        "url": client.url,
        "target": welcome.model,
        "agent": welcome.agent,
        "n_ctx": welcome.n_ctx,
        "drafter": edge.drafter_name,
        "never_drafted_ids": len(client.machine.never_draft),
        "link": _link_figures(measured),
        "answer": answered,
        "modes": _modes(client, measured, answered, options.draft_max),
    }


def _link_figures(measured: Measured) -> dict[str, Any]:
    rate = measured.goodput
    return {
        "rtt_min_ms": 1000 * measured.lowest,
        "rtt_median_ms": 1000 * measured.median,
        "rtt_p95_ms": 1000 * measured.p95,
        "jitter_ms": 1000 * measured.jitter,
        "pings": len(measured.trips),
        "unanswered": measured.unanswered,
        "goodput_bytes_per_second": rate,
        "goodput_is_at_least": measured.at_least,
        "probe_bytes": measured.sent,
    }


async def _answer(client: EdgeClient, edge: Edge, prompt: str, max_tokens: int) -> dict[str, Any]:
    """One real answer; what it says of the target and of the drafter. None: not known.

    Raises:
        OutriderError: it was refused or broke off.
    """
    from outrider.cli import prompt as prompts
    from outrider.edge_client.answer import Answer
    from outrider.protocol.decoding.sampling import Sampling

    request = prompts.build_request(
        edge.tokenizer, prompt, Sampling(), max_tokens=max_tokens, ignore_eos=True
    )
    session = client.session()
    async for event in client.stream(session, request):
        if isinstance(event, Answer):
            answer = event
    known, stats = client.machine.link, client.stats
    told = known.passes.of(1) if known.passes.known else None
    target = told or known.target or _by_the_clock(answer)
    step = stats.draft_seconds / stats.drafted if stats and stats.drafted else None
    return {
        "tokens": len(answer.ids),
        "tokens_per_second": answer.tokens_per_second,
        "ttft_s": answer.first_token,
        "pass_ms": None if target is None else 1000 * target,
        "queue_ms": None if known.queue is None else 1000 * known.queue,
        "draft_step_ms": None if step is None else 1000 * step,
        "acceptance": session.right / session.judged if session.judged >= 1 else None,
        "judged": session.judged,
        "bytes_up_per_token": answer.bytes_up / max(1, len(answer.ids)),
        "bytes_down_per_token": answer.bytes_down / max(1, len(answer.ids)),
        "reconnects": answer.reconnects,
    }


def _by_the_clock(answer: Answer) -> float | None:
    """Seconds of a pass where no frame was answered, so that the cloud told none."""
    if not answer.passes or answer.passes < 2 or answer.first_token is None:
        return None
    return (answer.seconds - answer.first_token) / (answer.passes - 1)


def _modes(
    client: EdgeClient, measured: Measured, answered: dict[str, Any], longest: int | None
) -> list[dict[str, Any]]:
    """For each objective what the adaptive policy will settle on, and the speeds predicted."""
    from outrider.edge_client import forecast as f
    from outrider.edge_client.adaptive import LONGEST, Adaptive
    from outrider.edge_client.policy import Observed
    from outrider.protocol.link import LinkEstimator

    passes = client.machine.link.passes
    target, step, right = answered["pass_ms"], answered["draft_step_ms"], answered["acceptance"]
    most = LONGEST if longest is None else longest
    found = []
    for objective in ("latency", "balanced", "cost"):
        row: dict[str, Any] = {"objective": objective, "mode": "cloud", "frame": 0, "window": 0}
        row |= {"lockstep_length": None, "why": "there is no drafter here"}
        row |= dict.fromkeys(("cloud_tps", "lockstep_tps", "streaming_tps", "predicted_tps"))
        if target:
            row["cloud_tps"] = row["predicted_tps"] = 1000 / target
        if client.stats is not None:
            row["why"] = "nothing that was drafted was judged: too little is known"
        if target and step and right is not None and most:
            figures = f.Figures(
                acceptance=min(0.98, max(0.02, right)),
                step=step / 1000,
                target=target / 1000,
                rtt=measured.median,
                passes=passes,
            )
            length, rate = f.best_lockstep(figures, most)
            row |= {"lockstep_length": length, "lockstep_tps": rate}
            row["streaming_tps"] = f.streaming(figures)
            seen = Observed(
                session=0,
                answer=1,
                now=0.0,
                link=LinkEstimator(
                    srtt=measured.median,
                    rttvar=measured.jitter,
                    min_rtt=measured.lowest,
                    goodput_up=measured.goodput,
                    queue=(answered["queue_ms"] or 0.0) / 1000,
                    target=figures.target,
                    passes=passes,
                ),
                objective=objective,
                acceptance=right,
                judged=answered["judged"],
                draft_step=figures.step,
                prefill_rate=None,
                behind=0,
                left=512,
                emitted=SETTLED,
            )
            row |= _settled(Adaptive(most), seen, figures)
        found.append(row)
    return found


def _settled(policy: Any, seen: Any, figures: Any) -> dict[str, Any]:
    """The plan that the policy comes to when nothing changes."""
    from outrider.edge_client import forecast as f

    for i in range(SETTLED):
        plan = policy.plan(replace(seen, emitted=seen.emitted + i))
    mode = "cloud" if not plan.frame else "lockstep" if plan.frame == plan.window else "streaming"
    speed = {
        "cloud": f.cloud_alone(figures),
        "lockstep": f.lockstep(figures, max(1, plan.frame)),
        "streaming": f.streaming(figures),
    }[mode]
    chosen = {"mode": mode, "frame": plan.frame, "window": plan.window}
    return chosen | {"why": policy.reason, "predicted_tps": speed}


def show(found: dict[str, Any]) -> None:
    """Two tables for people."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    facts = Table(box=None, show_header=False, pad_edge=False)
    for name, value in _facts(found):
        facts.add_row(name, value)
    console.print(facts)
    modes = Table(box=None, pad_edge=False, header_style="dim", title_justify="left")
    for head in ("objective", "best mode", *_SPEEDS):
        modes.add_column(head, justify="right" if head in _SPEEDS else "left", no_wrap=True)
    for row in found["modes"]:
        length = row["lockstep_length"]
        lockstep = _rate(row["lockstep_tps"]) + (f" at {length}" if length else "")
        speeds = (_rate(row["cloud_tps"]), lockstep, _rate(row["streaming_tps"]))
        modes.add_row(row["objective"], _mode(row), *speeds)
    console.print("\nPredicted tokens a second, and what the adaptive policy will do:")
    console.print(modes)
    reasons: dict[str, list[str]] = {}
    for row in found["modes"]:
        if row["mode"] == "cloud":
            reasons.setdefault(row["why"], []).append(row["objective"])
    for why, objectives in reasons.items():
        console.print(f"{', '.join(objectives)}: {why}")


_SPEEDS = ("cloud", "lockstep", "streaming")


def _facts(found: dict[str, Any]) -> list[tuple[str, str]]:
    link_, answer = found["link"], found["answer"]
    rate = link_["goodput_bytes_per_second"]
    at_least = "at least " if link_["goodput_is_at_least"] else ""
    speed = "not measured" if rate is None else f"{at_least}{rate * 8 / 1000:.0f} kbit/s"
    acceptance = answer["acceptance"]
    right = "not known" if acceptance is None else f"{acceptance:.0%} of {answer['judged']:.0f}"
    never = found["never_drafted_ids"]
    agree = f"; {never} special tokens differ and are never drafted" if never else ""
    lost = f", {link_['unanswered']} unanswered" if link_["unanswered"] else ""
    return [
        ("cloud", f"{found['url']}: {found['target']}, context {found['n_ctx']}"),
        ("handshake", f"accepted by {found['agent']}, the tokenizers agree{agree}"),
        (
            "round trip",
            f"min {link_['rtt_min_ms']:.1f} ms, median {link_['rtt_median_ms']:.1f}, "
            f"p95 {link_['rtt_p95_ms']:.1f}, jitter {link_['jitter_ms']:.1f}{lost}",
        ),
        ("goodput", f"{speed}, the slower direction ({link_['probe_bytes']} bytes sent)"),
        ("pass", f"{_ms(answer['pass_ms'])}, queue {_ms(answer['queue_ms'])}"),
        *(
            [
                ("drafter", f"{found['drafter']}, {_ms(answer['draft_step_ms'])} a token"),
                ("guesses right", right),
            ]
            if found["drafter"]
            else [("drafter", "none")]
        ),
    ]


def _mode(row: dict[str, Any]) -> str:
    if row["mode"] == "cloud":
        return "cloud alone"
    ahead = f", {row['window']} ahead" if row["mode"] == "streaming" else ""
    return f"{row['mode']} {row['frame']}{ahead}"


def _ms(value: float | None) -> str:
    return "not known" if value is None else f"{value:.1f} ms"


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
