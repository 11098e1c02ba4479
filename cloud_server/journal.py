"""A line in the log for each answer that begins or ends. Who and how much; what, only if asked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from outrider.protocol.session import CloudSession

_log = logging.getLogger("outrider.cloud.answers")

MAX_PROMPT = 4000
"""Characters of a prompt that a line holds."""


class Journal:
    """``decode`` turns ids into text where prompts are to be logged; None: they are not."""

    def __init__(self, decode: Callable[[Sequence[int]], str] | None) -> None:
        self._decode = decode

    def opened(self, session: CloudSession) -> None:
        """An answer begins."""
        request = session.request
        fields: dict[str, object] = {
            "session": name_of(session),
            "key": session.owner,
            "answer": session.answer,
            "prompt_tokens": session.prompt_len,
            "max_tokens": request.max_tokens if request else None,
        }
        if self._decode is not None:
            fields["prompt"] = self._decode(session.ids[: session.prompt_len])[-MAX_PROMPT:]
        _log.info("answer opened", extra={"fields": fields})

    def ended(self, session: CloudSession, now: float) -> None:
        """An answer is over, or its session is gone."""
        fields = {
            "session": name_of(session),
            "key": session.owner,
            "answer": session.answer,
            "tokens": len(session.ids) - session.prompt_len,
            "passes": session.passes,
            "seconds": round(now - session.opened_at, 3),
            "reason": session.ended.reason if session.ended else "gone",
        }
        _log.info("answer ended", extra={"fields": fields})


def name_of(session: CloudSession) -> str:
    """Enough of a session's name to tell lines of one from those of others; no secret."""
    return session.key[:4].hex()
