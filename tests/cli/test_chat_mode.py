"""What a chat says of itself: never that it drafts beside a reason why it does not."""

from __future__ import annotations

from types import SimpleNamespace as Part
from typing import Any

import pytest

from outrider.cli.chat_loop import Chat

WHY = "riding gave 3.0 tokens/s, the cloud alone 5.0"


def said(*, drafted: int | None, reason: str = WHY, on: bool = True, degraded: Any = None) -> str:
    """The mode after an answer with so many guesses; None: before the first one."""
    answers = [] if drafted is None else [Part(answer=Part(drafted=drafted, degraded=degraded))]
    chat: Any = Part(
        link=Part(switch=Part(on=on, reason=reason)),
        outcomes=answers,
        edge=Part(mode="drafting with d.gguf, adaptive", drafter_name="d.gguf"),
    )
    chat.reason = lambda: Chat.reason(chat)
    return Chat.mode(chat)


@pytest.mark.parametrize("drafted", [None, 4])
def test_drafting(drafted: int | None) -> None:
    assert said(drafted=drafted) == "drafting with d.gguf, adaptive"
    assert said(drafted=0, reason="fixed") == "drafting with d.gguf, adaptive"


def test_not_drafting_for_a_reason() -> None:
    assert said(drafted=0) == f"plain cloud streaming with d.gguf at hand: {WHY}"
    assert said(drafted=0, on=False).startswith("plain cloud streaming: drafting is off")
    assert said(drafted=0, degraded="no memory").endswith("the drafter failed: no memory")
