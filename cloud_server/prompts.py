"""Prompts that the edge leaves to the cloud: chats for the target's own template, and texts."""

from __future__ import annotations

from outrider.protocol.errors import OutriderError, SessionError
from outrider.protocol.messages import Open
from outrider.runtime.text.tokenizer import Tokenizer


def render(tokenizer: Tokenizer, request: Open) -> tuple[int, ...]:
    """Ids of an open that carries messages, with the tools that they may call, or text.

    Raises:
        SessionError: they do not fit the template.
    """
    try:
        if request.messages is not None:
            return tuple(tokenizer.encode_chat(request.messages, tools=request.tools))
        return tuple(tokenizer.encode_prompt(request.text or ""))
    except OutriderError as error:
        raise SessionError(str(error), code="prompt") from error
