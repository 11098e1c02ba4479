"""What one pass over many rows costs, beside a pass for each of them, on this machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outrider.cloud_server.targets.base import Row
from outrider.protocol.decoding.sampling import Sampling

if TYPE_CHECKING:
    from outrider.cloud_server.targets.base import Target


@dataclass(frozen=True, slots=True)
class BatchedStep:
    """Seconds are medians: ``together`` of one pass over all rows, ``single`` of one row's pass."""

    rows: int
    width: int
    context: int
    threads: int
    together: float
    single: float

    @property
    def ratio(self) -> float:
        """One pass over all against as many passes over one: 1 is no gain, 1 / rows the most."""
        return self.together / (self.rows * self.single)


def batched_step(
    *, rows: int = 16, width: int = 5, context: int = 128, threads: int = 2, repeats: int = 15
) -> BatchedStep:
    """Measure the embedded target: ``rows`` rows judge ``width`` tokens each, by arg-max.

    ``context``: ids before them, from ``context`` to a quarter more. Both kinds of pass take turns,
    so that whatever else the machine does meets both.
    """
    from outrider.cli.embedded import target as folder
    from outrider.cloud_server.targets.transformers import TransformersTarget

    target = TransformersTarget.load(
        str(folder("transformers")), slots=rows, n_ctx=2 * context + width, threads=threads
    )
    feeds = [_row(slot, context + slot * context // (4 * rows), width) for slot in range(rows)]
    try:
        together, single = _measure(target, feeds, repeats)
    finally:
        target.close()
    return BatchedStep(rows, width, context, threads, together, single)


def _measure(target: Target, feeds: Sequence[Row], repeats: int) -> tuple[float, float]:
    for row in feeds:
        target.forward([Row(row.slot, 0, row.ids[: row.cut], 0, Sampling(), 1)])
    target.forward(feeds)
    together, single = [], []
    for turn in range(repeats):
        together.append(_timed(target, feeds))
        single += [_timed(target, [feeds[(turn * 3 + i) % len(feeds)]]) for i in range(3)]
    return statistics.median(together), statistics.median(single)


def _row(slot: int, cut: int, width: int) -> Row:
    ids = [(7 * i + 13 * slot) % 4000 + 10 for i in range(cut + width)]
    return Row(slot, cut, ids, width, Sampling(), 1)


def _timed(target: Target, rows: Sequence[Row]) -> float:
    start = time.perf_counter()
    target.forward(rows)
    return time.perf_counter() - start


if __name__ == "__main__":
    step = batched_step()
    print(
        f"{step.rows} rows of {step.width} tokens after {step.context}: together "
        f"{step.together * 1e3:.1f} ms, one row {step.single * 1e3:.1f} ms, "
        f"batched_step_ratio {step.ratio:.3f}"
    )
