"""Finding stop strings in a stream of bytes that is cut anywhere.

The rule, the same at both ends and independent of how the bytes are cut: the stop string that is
*complete* first wins, because generation ends there; of several that are complete at the same byte
the longest wins. The text is cut before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from outrider.protocol.errors import SettingError


class StopMatcher:
    """An Aho-Corasick automaton: one step a byte, however many stops there are.

    Its state is the longest suffix of the text that could begin a stop string: exactly the bytes
    that must be held back.
    """

    def __init__(self, stops: Sequence[str | bytes]) -> None:
        """Build the automaton.

        Raises:
            SettingError: a stop string is empty or not valid Unicode.
        """
        self._stops = [_as_bytes(stop) for stop in stops]
        self._next: list[dict[int, int]] = [{}]
        self._depth = [0]
        self._found: list[bytes | None] = [None]
        for stop in self._stops:
            self._add(stop)
        self._fail = self._link()
        self._state = 0
        self._pending = b""
        self.matched: bytes | None = None

    def _add(self, stop: bytes) -> None:
        state = 0
        for byte in stop:
            following = self._next[state].get(byte)
            if following is None:
                following = len(self._next)
                self._next[state][byte] = following
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._found.append(None)
            state = following
        self._found[state] = stop

    def _link(self) -> list[int]:
        """For each state the state of its longest proper suffix, breadth first."""
        fail = [0] * len(self._next)
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            if self._found[state] is None:
                self._found[state] = self._found[fail[state]]
            for byte, child in self._next[state].items():
                back = fail[state]
                while back and byte not in self._next[back]:
                    back = fail[back]
                fail[child] = self._next[back].get(byte, 0)
                queue.append(child)
        return fail

    def feed(self, data: bytes) -> tuple[bytes, bytes | None]:
        """(bytes that are now safe to show, the stop string if one is complete).

        After a match nothing more comes out.
        """
        if self.matched is not None:
            return b"", self.matched
        if not self._stops:
            return data, None
        for i, byte in enumerate(data):
            self._step(byte)
            stop = self._found[self._state]
            if stop is not None:
                text = self._pending + data[: i + 1]
                self._pending, self._state, self.matched = b"", 0, stop
                return text[: len(text) - len(stop)], stop
        text = self._pending + data
        safe = len(text) - self._depth[self._state]
        self._pending = text[safe:]
        return text[:safe], None

    def _step(self, byte: int) -> None:
        state = self._state
        while state and byte not in self._next[state]:
            state = self._fail[state]
        self._state = self._next[state].get(byte, 0)

    @property
    def held(self) -> bytes:
        """The bytes that are held back because a stop string could begin with them."""
        return self._pending

    def flush(self) -> bytes:
        """The answer has ended otherwise: what was held back. Ready for a new stream."""
        rest, self._pending = self._pending, b""
        self._state, self.matched = 0, None
        return rest


def _as_bytes(stop: str | bytes) -> bytes:
    try:
        raw = stop.encode() if isinstance(stop, str) else bytes(stop)
    except UnicodeEncodeError:
        raise SettingError("a stop string is not valid Unicode") from None
    if not raw:
        raise SettingError("a stop string is empty")
    return raw
