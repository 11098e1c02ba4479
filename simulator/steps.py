"""Small steps of a :class:`ConnectionPair` for tests: a target, right guesses, events."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.protocol.edge_session import EdgeSession
from outrider.protocol.errors import LocalProtocolError
from outrider.protocol.events import AnswerRefused, Committed, Event
from outrider.simulator.pair import ConnectionPair


def after(ids: list[int]) -> int:
    """The target's choice: a little arithmetic."""
    return (3 * ids[-1] + len(ids)) % 26


def right(session: EdgeSession, count: int) -> list[int]:
    """The next tokens that the target will choose."""
    ids = [*session.ids, *session.window.ahead]
    tokens: list[int] = []
    for _ in range(count):
        tokens.append(after([*ids, *tokens]))
    return tokens


def right_of(pair: ConnectionPair, session: EdgeSession) -> list[int]:
    """The next token after what the cloud holds."""
    return [after(pair.cloud_session(session).ids)]


def committed(events: Sequence[Event]) -> list[int]:
    """All tokens that these events say were verified."""
    return [t for event in events if isinstance(event, Committed) for t in event.tokens]


def refusals(events: Sequence[Event]) -> list[str]:
    """The codes of the answers that were refused."""
    return [event.code for event in events if isinstance(event, AnswerRefused)]


def opened(pair: ConnectionPair, *ids: int) -> EdgeSession:
    """A new session whose answer the cloud serves.

    Raises:
        LocalProtocolError: it does not.
    """
    session = pair.open(*ids)
    pair.settle()
    if pair.table.sessions.get(session.key) is None:
        raise LocalProtocolError("the cloud does not serve this session")
    return session
