"""``/stats``: what the last answer and the whole chat cost."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich.console import Console

from outrider.cli import paint
from outrider.cli.chat_commands import tell
from outrider.cli.chat_screen import visible

if TYPE_CHECKING:
    from outrider.cli.chat_loop import Chat


def show(chat: Chat) -> None:
    """The figures, on standard error."""
    if not chat.outcomes:
        tell("no answer yet")
    else:
        answers = [outcome.answer for outcome in chat.outcomes]
        last = answers[-1:]
        rows = [("last", paint.totals(last)), (f"all {len(answers)}", paint.totals(answers))]
        Console(file=sys.stderr, highlight=False).print(paint.table(rows))
    tell(f"mode       {chat.mode()}")
    tell(f"link       {_link(chat)}")
    if chat.outcomes:
        tell(f"tokens     {_tokens(chat)}")
        tell(f"context    {_context(chat)}")


def _link(chat: Chat) -> str:
    client = chat.link.client
    rtt = client.machine.link.srtt
    parts = [
        f"{visible(client.welcome.model)} at {client.url}",
        "RTT not measured yet" if rtt is None else f"RTT {rtt * 1e3:.1f} ms",
        f"reconnected {client.courier.reconnects} times",
    ]
    return "; ".join(parts)


def _tokens(chat: Chat) -> str:
    last, every = chat.outcomes[-1], chat.outcomes
    prompts = sum(len(outcome.answer.prompt_ids) for outcome in every)
    cached = sum(outcome.cached for outcome in every)
    said = sum(len(outcome.answer.ids) for outcome in every)
    return (
        f"{said} answered; {cached} of {prompts} read were cached "
        f"(last: {last.cached} of {len(last.answer.prompt_ids)})"
    )


def _context(chat: Chat) -> str:
    return f"{len(chat.session.ids)} of {chat.link.client.welcome.n_ctx} tokens used"
