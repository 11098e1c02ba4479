"""``outrider chat``: a conversation with the target in the cloud, drafted here."""

# ruff: noqa: ARG001 - the shared flags are read from the context
from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from outrider.cli import drafters, flags, judging, logs
from outrider.cli import options as o
from outrider.cli import sampling_options as s

if TYPE_CHECKING:
    from outrider.cli.chat_link import ChatLink
    from outrider.cli.chat_loop import ChatSettings
    from outrider.cli.edge import Edge

DEFAULT_MAX_TOKENS = 1024


def chat(
    ctx: typer.Context,
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
    max_tokens: s.MaxTokens = DEFAULT_MAX_TOKENS,
    ignore_eos: s.IgnoreEos = False,
    stop: s.Stop = None,
    system: s.System = None,
    raw: Annotated[
        bool,
        typer.Option(
            "--raw",
            rich_help_panel=o.TEXT,
            help="Continue one plain text by turns, without the model's chat template.",
        ),
    ] = False,
    no_history: Annotated[
        bool,
        typer.Option(
            "--no-history",
            rich_help_panel=o.TEXT,
            help="Neither read nor write the history of typed lines.",
        ),
    ] = False,
    json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object an answer.", rich_help_panel=o.OUTPUT),
    ] = False,
    verbose: o.Verbose = False,
    config: o.Config = None,
) -> None:
    """Talk with the target.

    Guesses of the drafter here stand dim behind the text until the target in
    the cloud has confirmed them (with NO_COLOR set they are not shown at
    all). Ctrl-C cancels an answer, /help lists what else there is. From a
    pipe every line is a message, and only answers go to standard output.
    With --offline local an answer goes on without a link, marked unverified.

    Example: outrider chat --cloud wss://gpu.example:8471 -md qwen2.5-coder
    """
    logs.configure(verbose)
    flags.check(ctx, stop or [])
    from outrider.cli.chat_loop import ChatSettings
    from outrider.cli.edge import load_edge

    sampling = flags.sampling(ctx.params, seed or 0)
    edge = load_edge(flags.edge_options(ctx.params, offline=offline is o.Offline.LOCAL))
    settings = ChatSettings(
        sampling=sampling,
        seed=seed,
        max_tokens=max_tokens,
        stops=tuple(stop or ()),
        ignore_eos=ignore_eos,
        as_json=json,
    )
    from outrider.cli.chat_link import ChatLink, notices

    with _orderly_end(), ChatLink(edge, model) as link, notices(link):
        _converse(
            edge,
            link,
            settings,
            raw=raw,
            system=system,
            objective=objective.value if objective else None,
            history=not no_history,
        )


def _converse(
    edge: Edge,
    link: ChatLink,
    settings: ChatSettings,
    *,
    raw: bool,
    system: str | None,
    objective: str | None,
    history: bool,
) -> None:
    from outrider.cli.chat_commands import WORDS
    from outrider.cli.chat_input import Reader, history_file
    from outrider.cli.chat_loop import Chat
    from outrider.cli.chat_offline import OfflineChatScreen
    from outrider.cli.chat_screen import Screen
    from outrider.cli.chat_talk import Conversation

    person = sys.stdin is not None and sys.stdin.isatty()
    shown = sys.stdout.isatty() and not settings.as_json
    tails = not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"
    why = _plain_because(edge, link, raw=raw, system=system)
    talk = Conversation(plain=why is not None, system=system)
    screen = (
        OfflineChatScreen(sys.stdout, terminal=shown and tails, silent=settings.as_json)
        if edge.options.offline
        else Screen(sys.stdout, terminal=shown, tails=tails, silent=settings.as_json)
    )
    chat = Chat(edge, link, talk, screen, settings, interactive=person)
    chat.objective = objective
    if person or logs.verbose():
        chat.greet()
    if why:
        logs.note(f"{why}: text is continued as it is, turn by turn")
    reader = Reader(interactive=person, history=history_file() if history else None, words=WORDS)
    chat.run(reader)


def _plain_because(edge: Edge, link: ChatLink, *, raw: bool, system: str | None) -> str | None:
    """Why this is no chat with messages, if it is not."""
    if raw:
        return "--raw"
    if edge.options.is_embedded and system is None:
        return "the embedded models know no chat"  # they have a template, and never saw it used
    if edge.tokenizer.chat is None and link.client.welcome.same_template:
        return "the model has no chat template"
    return None


@contextlib.contextmanager
def _orderly_end() -> Iterator[None]:
    """A chat that is terminated puts the terminal's settings back and tells the cloud."""

    def leave(number: int, _frame: FrameType | None) -> NoReturn:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
