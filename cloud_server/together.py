"""Collaborative decoding at the cloud: the target's row at the text's end, ahead of the edge's.

Nothing can be chosen there without the edge's row, but the target need not wait for it: as soon as
it comes, both are combined and no pass stands between. So a token never takes longer than a round
trip or a pass, as in plain collaborative decoding with both models at work at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.cloud_server.targets.base import Decided, Row
from outrider.cloud_server.targets.rows import decided
from outrider.protocol.decoding import combine
from outrider.protocol.decoding.processors import F32
from outrider.protocol.session import CloudSession


@dataclass(frozen=True, slots=True)
class _Row:
    """Logits after the first ``length`` ids of answer ``begun``."""

    begun: int
    length: int
    logits: F32


@dataclass(slots=True)
class OpenRows:
    """One row a session: that of the text's end, as long as nothing follows there."""

    _rows: dict[bytes, _Row] = field(default_factory=dict)

    def of(self, session: CloudSession) -> F32 | None:
        """float32 ``[usable]``; None: not known where the text ends now."""
        row = self._rows.get(session.key)
        here = row is not None and (row.begun, row.length) == (session.begun, len(session.ids))
        return row.logits if here and row is not None else None

    def learn(self, session: CloudSession, logits: F32 | None) -> None:
        """A decision was made: the row behind it, if it was evaluated, or none."""
        self._rows.pop(session.key, None)
        if logits is not None and session.running:
            self._rows[session.key] = _Row(session.begun, len(session.ids), logits)

    def forget(self, alive: set[bytes]) -> None:
        """Only these sessions are still there."""
        self._rows = {key: row for key, row in self._rows.items() if key in alive}


def combined(rows: Sequence[Row], known: Sequence[F32], usable: int) -> list[Decided]:
    """Decide the one guess of each row with the target's logits that are known already."""
    return [
        decided(combine.decide([z], row.sampling, row.ids, row.prompt_len, usable, rows=row.rows))
        for row, z in zip(rows, known, strict=True)
    ]
