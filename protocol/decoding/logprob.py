"""The log-probability of a token, by the model's logits as they are."""

from __future__ import annotations

import numpy as np

from outrider.protocol.decoding.processors import F32, top
from outrider.protocol.logprobs import TokenLogprob


def logprob_of(row: F32, token: int, count: int, usable: int) -> TokenLogprob:
    """What the target gives ``token``, and its ``count`` likeliest ids (ties by id).

    Args:
        row: logits as the model gave them; columns from ``usable`` on are padding.
    """
    z = row[:usable].astype(np.float64)
    best = float(z.max())
    values = z - (best + float(np.log(np.exp(z - best).sum())))
    count = min(count, z.size)
    listed = top(values, count) if 0 < count < z.size else np.arange(count)
    order = listed[np.argsort(-values[listed], kind="stable")]
    return TokenLogprob(float(values[token]), tuple((int(i), float(values[i])) for i in order))
