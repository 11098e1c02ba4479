"""Log-probabilities of committed tokens: what they are, and how both ends keep them in step.

They are the target's own: of its logits as the model gave them, before bias, penalties,
temperature, cuts and grammar. They travel beside the verdicts, ahead of the tokens that they belong
to, so that whoever holds a token of such an answer holds its log-probability too.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from outrider.protocol.errors import RemoteProtocolError
from outrider.protocol.messages import Logprobs

MAX_TOP = 20
"""Alternatives a token, as in the OpenAI API."""

MAX_TOKENS = 64
"""Tokens in one message: with all their alternatives still a short one, for slow links."""


class TokenLogprob(NamedTuple):
    """Natural logarithms: of a token's probability, and those of the likeliest ids, best first."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class CloudLogprobs:
    """Those of one answer at the cloud: of the ids from ``start`` on, told up to ``told``."""

    top: int
    start: int
    told: int
    values: list[TokenLogprob] = field(default_factory=list)

    def message(self, handle: int, answer: int, length: int) -> Logprobs | None:
        """The next ones to tell, of ids before ``length``; None: all of them were."""
        if self.told >= length:
            return None
        at = max(0, self.told - self.start)
        values = self.values[at : at + min(MAX_TOKENS, length - self.told)]
        made = Logprobs(
            handle=handle,
            answer=answer,
            at=self.told,
            top=len(values[0].top),
            data=_pack(values),
        )
        self.told += len(values)
        return made


class EdgeLogprobs(list[TokenLogprob]):
    """Those of one answer at the edge, from its first token on: never fewer than its tokens."""

    @classmethod
    def after(cls, tokens: int) -> Self:
        """So many tokens came from elsewhere, and were told there."""
        return cls([TokenLogprob(0.0)] * tokens)

    def take(self, message: Logprobs, prompt_len: int) -> None:
        """The next ones came.

        Raises:
            RemoteProtocolError: they are not the next, or not as many as their bytes say.
        """
        if message.at != prompt_len + len(self):
            raise RemoteProtocolError(
                f"log-probabilities from {message.at} on; {prompt_len + len(self)} is next"
            )
        self += _unpack(message)

    def check(self, tokens: int) -> None:
        """So many tokens of the answer are committed.

        Raises:
            RemoteProtocolError: they came without what was asked for.
        """
        if tokens > len(self):
            raise RemoteProtocolError("tokens came before their log-probabilities")


def _pack(values: Sequence[TokenLogprob]) -> bytes:
    out = bytearray()
    for value in values:
        out += struct.pack("<f", value.logprob)
        for token, logprob in value.top:
            out += struct.pack("<If", token, logprob)
    return bytes(out)


def _unpack(message: Logprobs) -> list[TokenLogprob]:
    data, size = message.data, 4 + 8 * message.top
    if message.top > MAX_TOP or not data or len(data) % size:
        raise RemoteProtocolError(f"log-probabilities of {message.top} ids in {len(data)} bytes")
    found = []
    for at in range(0, len(data), size):
        (logprob,) = struct.unpack_from("<f", data, at)
        pairs = struct.iter_unpack("<If", data[at + 4 : at + size])
        found.append(TokenLogprob(logprob, tuple((token, value) for token, value in pairs)))
    return found
