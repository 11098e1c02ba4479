"""Open sessions, kept for the next request that goes on where one of them stands.

An HTTP client sends the whole conversation every time. The session whose text is the longest prefix
of it is used again, so that neither end evaluates the earlier turns a second time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outrider.edge_client.client import EdgeClient
from outrider.protocol.edge_session import EdgeSession
from outrider.runtime.lm.base import common_prefix

LEAST_SHARED = 0.5
"""A session is used again if at least this share of its text is kept: else another conversation,
which only begins alike, would lose its place."""


class SessionPool:
    """The sessions of one client that are not at work, the longest unused first."""

    def __init__(self, client: EdgeClient, most: int) -> None:
        """``most``: sessions that may be idle at a time."""
        self._client = client
        self._most = most
        self._idle: list[EdgeSession] = []
        self._chats: dict[int, Sequence[Mapping[str, Any]]] = {}

    @property
    def idle(self) -> int:
        """Sessions that wait for a request."""
        return len(self._idle)

    def take(self, ids: Sequence[int]) -> tuple[EdgeSession, int]:
        """A session for this prompt, and how many of its ids the session has already.

        At least one id is left over: the target must read something to go on from.
        """
        best, base = None, 0
        for session in self._idle:
            shared = min(common_prefix(session.ids, ids), len(ids) - 1)
            if shared > base and shared >= LEAST_SHARED * len(session.ids):
                best, base = session, shared
        if best is None:
            return self._client.session(), 0
        self._idle.remove(best)
        return best, base

    def take_chat(self, chat: Sequence[Mapping[str, Any]]) -> EdgeSession:
        """A session for messages that the cloud renders: one whose messages these go on from.

        Which ids they become is the cloud's to say; its cache then keeps what they share.
        """
        known = [s for s in self._idle if s.handle in self._chats]
        fitting = [s for s in known if _begins(chat, self._chats[s.handle])]
        best = max(fitting, key=lambda s: len(self._chats[s.handle]), default=None)
        if best is None:
            return self._client.session()
        self._idle.remove(best)
        return best

    def give(self, session: EdgeSession, chat: Sequence[Mapping[str, Any]] | None = None) -> None:
        """An answer is over: keep its session, and if these become too many, drop the oldest.

        ``chat``: the messages that the cloud rendered for it.
        """
        self._chats.pop(session.handle, None)
        if chat is not None:
            self._chats[session.handle] = chat
        self._idle.append(session)
        if len(self._idle) > self._most:
            self.drop()

    def drop(self) -> bool:
        """Close the longest unused session; False if there is none."""
        if not self._idle:
            return False
        self.close(self._idle.pop(0))
        return True

    def close(self, session: EdgeSession) -> None:
        """Forget a session at both ends."""
        self._chats.pop(session.handle, None)
        self._client.machine.close(session)
        # What its handle still has to say must not be taken for news of the handle's next owner.
        self._client.machine.events()
        self._client.courier.wake()


def _begins(chat: Sequence[Mapping[str, Any]], earlier: Sequence[Mapping[str, Any]]) -> bool:
    """The chat goes on from those messages."""
    return len(earlier) < len(chat) and list(chat[: len(earlier)]) == list(earlier)
