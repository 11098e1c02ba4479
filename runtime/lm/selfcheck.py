"""A check made once after loading: does a rewound cache behave as if it had never run ahead?

Some runtimes accept a rewind and quietly keep the rejected tokens. Every draft after the first
rejection would then be bad, with no error anywhere.
"""

from __future__ import annotations

import numpy as np

from outrider.protocol.errors import BackendError
from outrider.runtime.lm.base import CausalLM

TOLERANCE = 1e-3
"""Largest difference of logits allowed: shapes differ between the passes, so rounding does too."""


def check_rewind(lm: CausalLM) -> None:
    """Feed, run ahead, cut, feed again and compare with the first time. Leaves ``lm`` empty.

    Raises:
        BackendError: the logits after the cut differ, or are not finite.
    """
    if lm.n_ctx < 6:
        return  # too small to run ahead in, and to draft with
    first, wrong, again = _probe_ids(lm.row_width)
    lm.cut(0)
    lm.feed(first, 0)
    before = lm.feed(again, len(again))
    lm.cut(len(first))
    lm.feed(wrong, 0)
    lm.cut(len(first))
    after = lm.feed(again, len(again))
    lm.cut(0)
    if not np.isfinite(before).all():
        raise BackendError(f"{lm.name} gives logits that are not finite; the file may be broken")
    difference = float(np.abs(before - after).max())
    if difference > TOLERANCE * max(1.0, float(np.abs(before).max())):
        raise BackendError(
            f"{lm.name} does not rewind its cache: after a cut its logits differ by "
            f"{difference:.3g}"
        )


def _probe_ids(width: int) -> tuple[list[int], list[int], list[int]]:
    """Three short runs of ids spread over the vocabulary; the second differs from the third."""
    spread = [(7 + 13 * i * i) % width for i in range(9)]
    return spread[:3], [(i + 1) % width for i in spread[3:6]], spread[3:6]
