"""What an answer may be optimised for: asked by the edge, granted by the cloud."""

from __future__ import annotations

from typing import Literal

from outrider.protocol.errors import SessionError

Objective = Literal["latency", "balanced", "cost"]
OBJECTIVES: tuple[Objective, ...] = ("cost", "balanced", "latency")
"""What may be optimised, cheapest for the operator first. Of two, the cheaper is granted."""


def granted(asked: str | None, allowed: str) -> Objective:
    """The cheaper of what the edge asks (None: ``balanced``) and what the operator allows.

    Raises:
        SessionError: no such objective.
    """
    names = ["balanced" if asked is None else asked, allowed]
    for name in names:
        if name not in OBJECTIVES:
            raise SessionError(
                f"objective {name!r}; it must be one of {', '.join(OBJECTIVES)}", code="objective"
            )
    return min((o for o in OBJECTIVES if o in names), key=OBJECTIVES.index)
