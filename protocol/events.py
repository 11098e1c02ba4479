"""What the edge's machine reports to its engine and, through it, to the user."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from outrider.protocol.errors import HandshakeError
from outrider.protocol.logprobs import TokenLogprob
from outrider.protocol.messages import Ack, Welcome

if TYPE_CHECKING:
    from outrider.protocol.edge_session import EdgeSession


@dataclass(frozen=True, slots=True)
class LinkReady:
    """The cloud accepted the hello. ``never_draft`` are ids that mean other things there."""

    welcome: Welcome
    never_draft: frozenset[int]


@dataclass(frozen=True, slots=True)
class LinkFailed:
    """This connection was refused or broke the protocol; answers under way wait for another."""

    error: HandshakeError


@dataclass(frozen=True, slots=True)
class AnswerOpened:
    """The cloud took the answer. ``cached`` prompt ids were not evaluated again."""

    session: EdgeSession
    answer: int
    prompt_len: int
    cached: int


@dataclass(frozen=True, slots=True)
class Committed:
    """Verified tokens, from sequence index ``start`` on.

    The first ``accepted`` were this edge's own guesses; ``refused`` are the guesses that the cloud
    contradicted here. ``ack`` has the times of the last frame, if one was answered by this.
    ``logprobs`` are those of the tokens, where they were asked for.
    """

    session: EdgeSession
    answer: int
    start: int
    tokens: tuple[int, ...]
    accepted: int
    refused: tuple[int, ...]
    ack: Ack | None
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class AnswerEnded:
    """The answer is over: stop, length, cancel. ``text_bytes`` None: all of its text is kept.

    ``passes`` of the target were spent on it; None where the cloud was not asked (cancel).
    """

    session: EdgeSession
    answer: int
    reason: str
    tokens: int
    text_bytes: int | None
    passes: int | None


@dataclass(frozen=True, slots=True)
class AnswerRefused:
    """The cloud would not take the answer, or not go on with it."""

    session: EdgeSession
    answer: int
    code: str
    message: str
    retry_after: float | None


Event = LinkReady | LinkFailed | AnswerOpened | Committed | AnswerEnded | AnswerRefused
