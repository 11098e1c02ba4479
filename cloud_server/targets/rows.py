"""What every target checks before a pass, so that a bad row never reaches a backend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from outrider.cloud_server.targets.base import Decided, Row, TargetInfo
from outrider.protocol.decoding.rules import Choice
from outrider.protocol.errors import BackendError


def check_rows(rows: Sequence[Row], lengths: Sequence[int], info: TargetInfo, width: int) -> None:
    """Refuse rows that do not fit their slots.

    Args:
        lengths: how many ids each slot has cached.
        width: ids from 0 to ``width - 1`` can be fed.

    Raises:
        BackendError: names the slot and what is wrong with its row.
    """
    seen: set[int] = set()
    for row in rows:
        problem = _problem(row, lengths, info, width)
        if problem is None and row.slot in seen:
            problem = "appears twice in one pass"
        if problem is not None:
            raise BackendError(f"{info.name}: the row of slot {row.slot} {problem}")
        seen.add(row.slot)


def _problem(row: Row, lengths: Sequence[int], info: TargetInfo, width: int) -> str | None:
    total = len(row.ids)
    if not 0 <= row.slot < len(lengths):
        return f"names no slot; there are slots 0 to {len(lengths) - 1}"
    if not 0 <= row.cut <= lengths[row.slot]:
        return f"keeps {row.cut} ids of a cache of {lengths[row.slot]}"
    if row.cut >= total:
        return f"feeds nothing: it keeps {row.cut} of {total} ids"
    if total > info.n_ctx:
        return f"has {total} ids, but the context holds {info.n_ctx}"
    if not 0 <= row.want <= total - row.cut:
        return f"wants {row.want} decisions from {total - row.cut} fed ids"
    if not 0 <= row.prompt_len <= total:
        return f"has a prompt of {row.prompt_len} ids among {total}"
    fed = row.ids[row.cut :]
    if min(fed) < 0 or max(fed) >= width:
        bad = next(token for token in fed if not 0 <= token < width)
        return f"feeds token {bad}; the model's ids are 0 to {width - 1}"
    return None


def positions(row: Row) -> Iterator[Sequence[int]]:
    """For each wanted decision, in order: the ids before the token that is decided."""
    for end in range(len(row.ids) - row.want + 1, len(row.ids) + 1):
        yield row.ids[:end]


def split(choices: Sequence[Choice], counts: Sequence[int]) -> list[Decided]:
    """Hand the choices back to their rows."""
    result, start = [], 0
    for count in counts:
        part = choices[start : start + count]
        result.append(Decided(tuple(c.id for c in part), tuple(c.margin for c in part)))
        start += count
    return result
