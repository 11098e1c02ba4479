"""Where an answer ends: the same scan of the accepted tokens at both ends.

Tokens are looked at in order, and the answer is cut at the first that ends it. A token that ends
the answer counts as emitted; an end token has no text; a stop string is not part of the text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Literal, NamedTuple

from outrider.protocol.errors import SettingError
from outrider.runtime.text.stops import StopMatcher

Reason = Literal["stop", "length"]


class Scan(NamedTuple):
    """The outcome of looking at some tokens.

    ``keep``: how many of them belong to the answer. ``reason``: why it ended, None if it goes on.
    ``text_bytes``: how many bytes of the answer's whole text so far to keep. ``safe_bytes``: how
    many of these can be shown already (the others could begin a stop string); the same as
    ``text_bytes`` once the answer has ended.
    """

    keep: int
    reason: Reason | None
    text_bytes: int
    safe_bytes: int


class Ending:
    """Scans one answer from its first token on. Pure: a lost one is rebuilt by scanning again."""

    def __init__(
        self,
        stops: Sequence[str | bytes],
        eos: Collection[int],
        max_tokens: int | None,
        token_bytes: Callable[[int], bytes],
    ) -> None:
        """``max_tokens`` None is no limit; ``eos`` may be empty (a user can ask to ignore it).

        Raises:
            SettingError: ``max_tokens`` is negative or a stop string is empty.
        """
        if max_tokens is not None and max_tokens < 0:
            raise SettingError(f"max_tokens is {max_tokens}; it must be at least 0")
        self._stops = bool(stops)
        self._matcher = StopMatcher(stops)
        self._eos = frozenset(eos)
        self._max_tokens = max_tokens
        self._token_bytes = token_bytes
        self.tokens = 0
        self.text_bytes = 0
        self.reason: Reason | None = "length" if max_tokens == 0 else None

    def scan(self, tokens: Sequence[int]) -> Scan:
        """Look at the next accepted tokens. After the end nothing more is kept."""
        if self.reason is None and not self._stops and self._eos.isdisjoint(tokens):
            return self._without_stops(tokens)
        keep = 0
        for token in tokens:
            if self.reason is not None:
                break
            keep += 1
            self._take(token)
        held = 0 if self.reason else len(self._matcher.held)
        return Scan(keep, self.reason, self.text_bytes, self.text_bytes - held)

    def _without_stops(self, tokens: Sequence[int]) -> Scan:
        """The same where nothing but the length can end the answer: most tokens of most answers."""
        left = len(tokens) if self._max_tokens is None else self._max_tokens - self.tokens
        kept = tokens[:left]
        self.tokens += len(kept)
        self.text_bytes += sum(map(len, map(self._token_bytes, kept)))
        if self.tokens == self._max_tokens:
            self.reason = "length"
        return Scan(len(kept), self.reason, self.text_bytes, self.text_bytes)

    def _take(self, token: int) -> None:
        self.tokens += 1
        if token in self._eos:
            self.reason = "stop"
            return
        data = self._token_bytes(token)
        before = self.text_bytes - len(self._matcher.held)
        safe, stop = self._matcher.feed(data)
        if stop is not None:
            self.text_bytes = before + len(safe)
            self.reason = "stop"  # before the limit is looked at: stop beats length
            return
        self.text_bytes += len(data)
        if self.tokens == self._max_tokens:
            self.reason = "length"
