"""Several models at the edge as one: the distribution of all of them, of which a row is sent.

They share a place, so one row is enough of them, and a combination with it is one with each of
them: for weights w_i of sum w the row is that of q = sum of w_i q_i / w, for a contrastive text
that of the logits sum of mu_i l_i / mu (what is missing to normalised ones is alike for all ids).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from outrider.protocol.decoding.combine import row_sampling, softmax
from outrider.protocol.decoding.processors import F32
from outrider.protocol.decoding.sampling import Combination, Sampling
from outrider.protocol.decoding.sparse import Budget, Spread, kept_of, spread


def spread_all(
    rows: Sequence[F32],
    sampling: Sampling,
    ids: Sequence[int],
    prompt_len: int,
    usable: int,
    *,
    budget: Budget,
    never: Collection[int] = (),
) -> Spread:
    """The sparse row of the edge's models together for the token after ``ids``.

    Args:
        rows: logits of each model, float32, in the order of ``sampling.collaborate.edge``.
        never: ids that the row must not have, whatever their probability.

    Raises:
        BackendError: a NaN or an infinite logit, or every token is in ``never``.
    """
    together, made = sampling.collaborate, row_sampling(sampling)
    assert together is not None
    if len(rows) == 1:
        return spread(rows[0], made, ids, prompt_len, usable, budget=budget, never=never)
    # Weights that are all 0 leave nothing of the row in the text, but a proposal has to be made.
    weights = np.array(together.edge) if together.weight else np.ones(len(rows))
    shares = weights / weights.sum()
    width = min(usable, *(row.size for row in rows))
    if together.kind is Combination.CONTRASTIVE:
        logits = sum(
            w * row[:width].astype(np.float64) for w, row in zip(shares, rows, strict=True)
        )
        z = np.asarray(logits, np.float32)
        return spread(z, made, ids, prompt_len, width, budget=budget, never=never)
    mass = np.zeros(width)
    for share, row in zip(shares, rows, strict=True):
        tokens, part = softmax(row, made, ids, prompt_len, width)
        mass[tokens] += share * part
    mass[[token for token in never if token < width]] = 0.0
    listed = np.flatnonzero(mass)
    return kept_of(listed, mass[listed], budget)
