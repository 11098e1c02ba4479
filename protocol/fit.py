"""What the edge refuses by itself: answers that the cloud could not read, or not give.

One connection carries many answers. A message that breaks a limit of the connection ends it for
all of them, so it must never leave.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from outrider.protocol import messages as m
from outrider.protocol.admission import check_bounds, unknown
from outrider.protocol.edge_session import EdgeSession, Phase
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
    check_bounds(request.max_tokens, request.stops, MOST_TOKENS)


def missing_feature(session: EdgeSession, welcome: m.Welcome | None) -> Misfit | None:
    """What an answer asks for and the cloud does not have."""
    known = welcome.features if welcome else m.FEATURES
    request = session.request
    if session.phase is Phase.IDLE or request is None:
        return None
    missing = next((name for name in _needed(request) if name not in known), None)
    if missing is None:
        return _missing_model(request, welcome)
    return Misfit(
        "unsupported",
        f"this cloud does not offer {missing!r}: leave the option out, upgrade the cloud, or "
        "install there what it takes",
    )


def _needed(request: Request) -> Iterator[str]:
    """The features that an answer cannot do without."""
    if request.sampling.collaborate is not None:
        yield m.COLLABORATE
    elif request.sampling.rowed:
        yield m.RATIO
    if request.logprobs is not None:
        yield m.LOGPROBS
    if request.grammar is not None:
        yield m.GRAMMAR
    if request.tools is not None and not request.ids:
        yield m.TOOLS


def can_render(request: Request | None, welcome: m.Welcome | None) -> bool:
    """Whether the cloud could write the messages out, instead of the edge that did."""
    known = welcome.features if welcome else ()
    if request is None or not request.messages:
        return False
    return request.tools is None or m.TOOLS in known


def _missing_model(request: Request, welcome: m.Welcome | None) -> Misfit | None:
    """A model that is to take part beside the target and that the cloud does not host."""
    if welcome is None:
        return None
    wrong = unknown(request.collaborators, welcome.collaborators)
    return Misfit("collaborators", wrong) if wrong else None


def too_large(size: int, limit: int) -> Misfit:
    """An open of more bytes than the cloud takes in a message."""
    return Misfit(
        "prompt_too_long",
        f"the prompt takes {size} bytes; this cloud takes at most {limit} in a message. "
        "Shorten it, or start the cloud with a larger context.",
    )
