"""Log-probabilities as the OpenAI API tells them: the target's, with the text they belong to.

An entry goes with the chunk in which its token's text begins. What is no part of the text, such as
an end token or those of a stop string, has none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from outrider.edge_client.endpoint.errors import ApiError, bad, unsupported
from outrider.protocol.logprobs import MAX_TOP, TokenLogprob
from outrider.protocol.messages import LOGPROBS, Welcome
from outrider.runtime.text.tokenizer import Tokenizer
from outrider.runtime.text.utf8 import Utf8Stream

LEAST = -9999.0
"""For a probability of 0, whose logarithm JSON cannot write: OpenAI's number."""


class Entry(NamedTuple):
    """A token, the character of the text that it begins in, and what the target gives it."""

    start: int
    token: int
    value: TokenLogprob


def asked_for(field: str, count: int, welcome: Welcome) -> int:
    """The alternatives that a request's ``field`` asks for.

    Raises:
        ApiError: too many, or this cloud tells none.
    """
    if not 0 <= count <= MAX_TOP:
        raise bad(f"{field} is {count}; it must be 0 to {MAX_TOP}", field)
    if LOGPROBS not in welcome.features:
        raise _unknown(field)
    return count


def _unknown(field: str) -> ApiError:
    return unsupported(field, "this cloud tells no log-probabilities; upgrade it")


class Told:
    """Those of one choice as its text grows."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = Utf8Stream()
        self._chars = 0
        self._waiting: deque[Entry] = deque()

    def feed(self, tokens: Sequence[int], values: Sequence[TokenLogprob]) -> None:
        """Tokens were verified; their text may not be shown yet."""
        for token, value in zip(tokens, values, strict=True):
            self._waiting.append(Entry(self._chars, token, value))
            self._chars += len(self._utf8.feed(self._tokenizer.token_bytes(token)))

    def shown(self, chars: int) -> list[Entry]:
        """Those that were not given before, of tokens in the first ``chars`` characters."""
        found = []
        while self._waiting and self._waiting[0].start < chars:
            found.append(self._waiting.popleft())
        return found

    # --- how they are written ---------------------------------------------------------------

    def of_chat(self, entries: Iterable[Entry]) -> dict[str, Any]:
        """For ``/v1/chat/completions``."""
        made = [
            self._one(e.token, e.value.logprob)
            | {"top_logprobs": [self._one(*pair) for pair in e.value.top]}
            for e in entries
        ]
        return {"content": made, "refusal": None}

    def of_completion(self, entries: Sequence[Entry]) -> dict[str, Any]:
        """For ``/v1/completions``; offsets count from the beginning of the answer."""
        tops: list[dict[str, float]] = []
        for entry in entries:
            top: dict[str, float] = {}
            for token, value in (*entry.value.top, (entry.token, entry.value.logprob)):
                top.setdefault(self._text(token), _finite(value))
            tops.append(top)
        return {
            "tokens": [self._text(e.token) for e in entries],
            "token_logprobs": [_finite(e.value.logprob) for e in entries],
            "top_logprobs": tops if any(e.value.top for e in entries) else None,
            "text_offset": [e.start for e in entries],
        }

    def _one(self, token: int, logprob: float) -> dict[str, Any]:
        data = self._tokenizer.token_bytes(token)
        return {"token": self._text(token), "logprob": _finite(logprob), "bytes": list(data)}

    def _text(self, token: int) -> str:
        data = self._tokenizer.specials.get(token) or self._tokenizer.token_bytes(token)
        return data.decode("utf-8", "replace")


def _finite(value: float) -> float:
    return max(value, LEAST)
