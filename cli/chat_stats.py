"""``/stats``: what the last answer and the whole chat cost."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from outrider.cli import paint
from outrider.cli.chat_screen import visible

if TYPE_CHECKING:
    from outrider.cli.chat_loop import Chat


def show(chat: Chat) -> None:
    """The figures, on standard error."""
    console = Console(file=sys.stderr, highlight=False)
    answers = [outcome.answer for outcome in chat.outcomes]
    if answers:
        rows = [("last", paint.totals(answers[-1:]))]
        rows.append((f"all {len(answers)}", paint.totals(answers)))
        console.print(paint.table(rows))
    grid = Table.grid(padding=(0, 2))
    for name, text in _facts(chat).items():
        grid.add_row(Text(name), Text(visible(text)))
    console.print(grid)


def _facts(chat: Chat) -> dict[str, str]:
    client = chat.link.client
    rtt = client.machine.link.srtt
    round_trip = "not measured yet" if rtt is None else f"{rtt * 1e3:.1f} ms"
    mode, why = chat.mode(), chat.reason() or ""
    facts = {
        "mode": mode,
        "why": "" if why in mode else why,
        "target": f"{client.welcome.model} at {client.url}",
        "link": f"round trip {round_trip}; reconnects: {client.courier.reconnects}",
        "context": f"{len(chat.session.ids)} of {client.welcome.n_ctx} tokens",
        "cached": _cached(chat) if chat.outcomes else "",
    }
    return {name: text for name, text in facts.items() if text}


def _cached(chat: Chat) -> str:
    last, every = chat.outcomes[-1], chat.outcomes
    prompts = sum(len(outcome.answer.prompt_ids) for outcome in every)
    cached = sum(outcome.answer.cached for outcome in every)
    return (
        f"{last.answer.cached} of the last prompt's {len(last.answer.prompt_ids)} tokens, "
        f"{cached} of all {prompts}"
    )
