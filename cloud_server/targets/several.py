"""Several models of one vocabulary at one cloud: a target, and others that can take part in a text.

The target decides all ordinary texts alone. Of a text that names others, each evaluates the same
rows in a cache of its own, and the decisions are those of the combination.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from outrider.cloud_server.targets.base import Decided, Row, Target
from outrider.cloud_server.targets.rows import decide_rows
from outrider.protocol.decoding.processors import F32
from outrider.protocol.errors import BackendError, SettingError
from outrider.runtime.lm.base import common_prefix


class SeveralTargets(Target):
    """``main`` with ``others`` by name. It owns them all."""

    def __init__(self, main: Target, others: Mapping[str, Target]) -> None:
        """Raises SettingError: a model has fewer ids, slots or a smaller context than the main."""
        info = main.info
        for name, other in others.items():
            for what in ("usable", "slots", "n_ctx"):
                ours, theirs = getattr(info, what), getattr(other.info, what)
                if theirs < ours:
                    raise SettingError(
                        f"the model {name!r} beside {info.name} has {what} {theirs}, less than "
                        f"the target's {ours}"
                    )
        self.main, self.others = main, dict(others)
        self.info = replace(info, collaborators=tuple(others))
        self._held: dict[str, list[list[int]]] = {
            name: [[] for _ in range(info.slots)] for name in others
        }

    def forward(self, rows: Sequence[Row]) -> list[Decided]:
        own = [row for row in rows if not _named(row)]
        shared = [row for row in rows if _named(row)]
        found = {row.slot: made for row, made in zip(own, self._alone(own), strict=True)}
        for row, made in zip(shared, self._together(shared), strict=True):
            found[row.slot] = made
        return [found[row.slot] for row in rows]

    def _alone(self, rows: list[Row]) -> list[Decided]:
        return self.main.forward(rows) if rows else []

    def _together(self, rows: list[Row]) -> list[Decided]:
        if not rows:
            return []
        parts = [[z] for z in self.main.logits(rows)]
        usable = self.info.usable
        for name in self.others:
            asked = [i for i, row in enumerate(rows) if name in _named(row)]
            for i, z in zip(asked, self._evaluate(name, [rows[i] for i in asked]), strict=True):
                parts[i].append(z)
        ordered = [self._in_order(row, part) for row, part in zip(rows, parts, strict=True)]
        stacked = [
            [np.stack([z[at, :usable] for z in part]) for at in range(row.want)]
            for row, part in zip(rows, ordered, strict=True)
        ]
        return decide_rows(rows, stacked, usable)

    def _in_order(self, row: Row, part: list[F32]) -> list[F32]:
        """The target's logits, then those of the others as the combination names them."""
        known = [name for name in self.others if name in _named(row)]
        by_name = dict(zip(known, part[1:], strict=True))
        return [part[0], *(by_name[name] for name in _named(row))]

    def _evaluate(self, name: str, rows: list[Row]) -> list[F32]:
        """A model's logits for rows, in its own cache: what lies in it is for it to know."""
        if not rows:
            return []
        held = self._held[name]
        asked = []
        for row in rows:
            keep = min(common_prefix(held[row.slot], row.ids), len(row.ids) - max(1, row.want))
            asked.append(msgspec.structs.replace(row, cut=keep, source=None))
        for row in rows:
            held[row.slot] = []  # until it has been fed, nobody knows
        try:
            logits = self.others[name].logits(asked)
        except BackendError as error:
            raise BackendError(f"the model {name!r} of this cloud failed: {error}") from error
        for row in rows:
            held[row.slot] = list(row.ids)
        return logits

    def score(self, row: Row, candidates: Sequence[int]) -> list[tuple[float, float]]:
        return self.main.score(row, candidates)

    def close(self) -> None:
        self.main.close()
        for other in self.others.values():
            other.close()


def _named(row: Row) -> tuple[str, ...]:
    """The further models that a row's text is made with."""
    together = row.sampling.collaborate
    return tuple(name for name, _ in together.cloud) if together else ()
