"""What a drafter that learns is told of a request, and what a guess beside the chain is worth."""

from __future__ import annotations

from outrider.protocol.edge import EdgeMachine
from outrider.protocol.edge_session import EdgeSession
from outrider.protocol.link import LinkEstimator
from outrider.protocol.messages import TREES
from outrider.runtime.lm.drafter import Standing

LIKELY = 0.95
"""Acceptance is taken to be at most this, where a verdict's worth is reckoned."""

WIDE = 8
"""Tokens over which the slope of the verify time is taken."""

MOST_NODES = 24
"""Guesses in one draft at most."""


def stand(session: EdgeSession, machine: EdgeMachine, acceptance: float | None) -> Standing:
    """Where a session's answer stands."""
    link = machine.link
    passes = link.passes.of(1) if link.passes.known else (link.target or 0.0)
    return Standing(
        request=(session.handle, session.answer),
        verified=len(session.ids),
        round=(link.srtt or 0.0) + passes,
        load=link.load,
        price=_price(machine, acceptance) if not session.ratio else 1.0,
        nodes=min(MOST_NODES, session.max_frame_nodes),
    )


def _price(machine: EdgeMachine, acceptance: float | None) -> float:
    """The chance from which on one more guess in a pass pays; 1: never.

    It lengthens the pass for everybody in it, and if it is right it saves the time of one token as
    they come now: (round trip + pass) / tokens a round. A cloud under load asks for more.
    """
    welcome, link = machine.welcome, machine.link
    if welcome is None or TREES not in welcome.features or not link.passes.known:
        return 1.0
    alpha = min(LIKELY, acceptance or 0.0)
    saved = _round(link) * (1 - alpha)
    longer = (link.passes.of(1 + WIDE) - link.passes.of(1)) / WIDE
    return float(min(1.0, max(longer / max(1e-9, saved), link.load)))


def _round(link: LinkEstimator) -> float:
    return (link.srtt or 0.0) + link.passes.of(1)
