"""Bytes to text, piece by piece, never half a character."""

from __future__ import annotations

import codecs


class Utf8Stream:
    """Decodes a stream of bytes cut anywhere.

    The pieces together equal ``bytes.decode("utf-8", "replace")`` of the whole: what can never
    become a character turns into U+FFFD as soon as that is certain.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> str:
        """The text of all characters that are complete by now and were not given before."""
        return self._decoder.decode(data)

    def flush(self) -> str:
        """The end has come: an unfinished character turns into U+FFFD. Ready for a new stream."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest

    @property
    def held(self) -> int:
        """How many bytes wait for the rest of their character."""
        return len(self._decoder.getstate()[0])
