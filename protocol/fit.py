"""What the edge refuses by itself: answers that the cloud could not read, or not give.

One connection carries many answers. A message that breaks a limit of the connection ends it for
all of them, so it must never leave.
"""

from __future__ import annotations

from typing import NamedTuple

from outrider.protocol import messages as m
from outrider.protocol.admission import MAX_STOP_CHARS, MAX_STOPS
from outrider.protocol.edge_session import EdgeSession, Phase
from outrider.protocol.errors import SessionError
from outrider.protocol.request import Request

MOST_TOKENS = 2**63 - 1
"""The largest count that the wire has."""


class Misfit(NamedTuple):
    """Why an answer is refused: a code as the cloud's refusals have, and words."""

    code: str
    message: str


def check_request(request: Request) -> None:
    """Refuse what no cloud would take, before anything is begun.

    Raises:
        SessionError: ``max_tokens`` or the stops are out of bounds.
    """
    if not 0 < request.max_tokens <= MOST_TOKENS:
        raise SessionError(
            f"max_tokens is {request.max_tokens}; it must be 1 to {MOST_TOKENS}", code="max_tokens"
        )
    stops = request.stops
    if "" in stops or len(stops) > MAX_STOPS or sum(map(len, stops)) > MAX_STOP_CHARS:
        raise SessionError(
            f"stop strings must not be empty; at most {MAX_STOPS} of {MAX_STOP_CHARS} "
            "characters in all are allowed",
            code="stops",
        )


def missing_rule(session: EdgeSession, welcome: m.Welcome | None) -> Misfit | None:
    """The rule that an answer asks for and the cloud does not have."""
    request = session.request
    together = request is not None and request.sampling.collaborate is not None
    needed = m.COLLABORATE if together else m.RATIO
    known = welcome.features if welcome else m.FEATURES
    if session.phase is Phase.IDLE or not session.ratio or needed in known:
        return None
    return Misfit(
        "unsupported",
        f"this cloud does not know {needed!r}: leave the option out, or upgrade the cloud",
    )


def too_large(size: int, limit: int) -> Misfit:
    """An open of more bytes than the cloud takes in a message."""
    return Misfit(
        "prompt_too_long",
        f"the prompt takes {size} bytes; this cloud takes at most {limit} in a message. "
        "Shorten it, or start the cloud with a larger context.",
    )
