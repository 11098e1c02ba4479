"""One answer as the user sees it: whole characters, stops cut off, and what it cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outrider.protocol.logprobs import TokenLogprob
from outrider.protocol.origins import Origin
from outrider.runtime.text.ending import Ending
from outrider.runtime.text.utf8 import Utf8Stream

if TYPE_CHECKING:
    from outrider.protocol.edge_session import EdgeSession


@dataclass(frozen=True, slots=True)
class Piece:
    """Something happened to the text.

    ``text`` may be empty while a character or a possible stop string is incomplete. Of ``tokens``,
    verified all, the first ``accepted`` were the drafter's; ``refused`` guesses were wrong here.
    ``logprobs`` are the target's, one a token, where they were asked for.
    """

    text: str
    tokens: tuple[int, ...]
    accepted: int
    refused: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Ahead:
    """The drafter's guesses at what follows the text shown so far; unverified, may change."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The whole answer and its figures. Times in seconds, sizes in bytes.

    ``ids`` are the emitted tokens after ``prompt_ids``. ``bytes_up`` and ``bytes_down`` are those
    of draft frames and verdicts, WebSocket framing included.
    ``passes`` of the target were spent (None: not told). ``seed`` repeats a sampled answer, unless
    the ``rule`` that judged the guesses was ratio.
    ``cached`` ids of the prompt were in the target's cache already. ``reconnects`` counts links
    made again meanwhile. Of ``offline_tokens`` that the drafter wrote
    without one, ``corrected`` were wrong, and the last ``unverified_tokens`` are not part of the
    answer: their text is ``unverified``. ``logprobs`` are the target's, one for each of ``ids``;
    None: they were not asked for. ``origins``: of a text
    of several models, who proposed each of its tokens.
    """

    text: str
    ids: tuple[int, ...]
    prompt_ids: tuple[int, ...]
    reason: str
    seed: int | None
    rule: str
    frames: int
    drafted: int
    accepted: int
    bytes_up: int
    bytes_down: int
    passes: int | None
    first_token: float | None
    seconds: float
    rtt: float | None
    degraded: str | None
    cached: int = 0
    unverified: str = ""
    unverified_tokens: int = 0
    offline_tokens: int = 0
    corrected: int = 0
    reconnects: int = 0
    logprobs: tuple[TokenLogprob, ...] | None = None
    origins: tuple[Origin, ...] = ()

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over drafted tokens; None if nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens a round, the target's own included: 1 + accepted / drafts."""
        return 1 + self.accepted / self.frames if self.frames else None

    @property
    def tokens_per_second(self) -> float:
        """Emitted tokens over the whole time, prefill included."""
        return len(self.ids) / self.seconds if self.seconds > 0 else 0.0

    @property
    def decode_tokens_per_second(self) -> float | None:
        """Tokens after the first over the time after the first."""
        if self.first_token is None or len(self.ids) < 2 or self.seconds <= self.first_token:
            return None
        return (len(self.ids) - 1) / (self.seconds - self.first_token)


def as_it_stands(
    session: EdgeSession,
    *,
    text: str,
    reason: str,
    first_token: float | None,
    seconds: float,
    rtt: float | None,
    **more: Any,
) -> Answer:
    """The answer of a session as far as it came, ``more`` being further fields of it."""
    sampling = session.request.sampling if session.request else None
    length = session.prompt_len
    known = {"passes": None, "degraded": None} | more
    return Answer(
        text=text,
        ids=tuple(session.ids[length:]) if length else (),
        prompt_ids=tuple(session.ids[:length]),
        reason=reason,
        seed=sampling.seed if sampling and sampling.temperature else None,
        rule=sampling.rule.value if sampling else "greedy",
        frames=session.frames_sent,
        drafted=session.nodes_sent,
        accepted=session.nodes_accepted,
        bytes_up=session.bytes_up,
        bytes_down=session.bytes_down,
        first_token=first_token,
        seconds=seconds,
        rtt=rtt,
        cached=session.cached,
        origins=tuple(session.origins.tokens),
        logprobs=None if session.logprobs is None else tuple(session.logprobs[: session.emitted]),
        **known,
    )


def held_back(
    session: EdgeSession, token_bytes: Callable[[int], bytes], shown: Sequence[str]
) -> str:
    """Verified text that waited for the rest of a stop string, which will not come any more."""
    ids = session.ids[session.prompt_len :] if session.prompt_len else []
    whole = b"".join(map(token_bytes, ids)).decode("utf-8", "ignore")
    so_far = "".join(shown)
    return whole[len(so_far) :] if whole.startswith(so_far) else ""


class AnswerText:
    """Grows with verified tokens; gives text as soon as it is safe to show."""

    def __init__(
        self,
        stops: Sequence[str],
        eos: frozenset[int],
        max_tokens: int,
        token_bytes: Callable[[int], bytes],
    ) -> None:
        self._ending = Ending(stops, eos, max_tokens, token_bytes)
        self._token_bytes = token_bytes
        self._utf8 = Utf8Stream()
        self._bytes = bytearray()
        self._shown = 0

    def feed(self, tokens: Sequence[int]) -> str:
        """The text that became safe to show: whole characters that cannot begin a stop string."""
        for token in tokens:
            self._bytes += self._token_bytes(token)
        return self._show(self._ending.scan(tokens).safe_bytes)

    def beyond(self, tokens: Sequence[int], text_bytes: int) -> str:
        """What unverified ``tokens`` would add to the text shown, up to so many bytes in all."""
        data = bytes(self._bytes) + b"".join(map(self._token_bytes, tokens))
        return deepcopy(self._utf8).feed(data[self._shown : text_bytes])

    def finish(self, text_bytes: int | None) -> str:
        """The rest, once the cloud said how much of the text to keep (None: all of it)."""
        end = len(self._bytes) if text_bytes is None else text_bytes
        return self._show(end) + self._utf8.flush()

    def _show(self, end: int) -> str:
        data = bytes(self._bytes[self._shown : end])
        self._shown = max(self._shown, end)
        return self._utf8.feed(data)
