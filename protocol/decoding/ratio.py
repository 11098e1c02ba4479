"""The ratio rule: a draft x that was drawn from a row q is accepted with probability min(1, p(x) /
q(x)); in place of the first refused one stands a sample of norm(max(0, p - q)). The output is a
sample of p, whatever q is, as long as q is exactly what x was drawn from (``sparse``).

Random numbers are functions of (seed, choice, position, domain): the draft, the test and the
residual of a position each have a domain of their own, so none of them says anything of another,
and a decision that is made again after a crash comes out the same. At a position without a row the
target's own token is a sample of p.

The rule is *value-blind* (``docs/exactness.md``): whatever is decided about a draft before it is
judged, by either end, must not look at its value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from outrider.protocol.decoding.noise import Domain
from outrider.protocol.decoding.processors import F32, F64, I64, survivors
from outrider.protocol.decoding.row import SparseRow
from outrider.protocol.decoding.rules import Choice, choose
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.decoding.sparse import uniform


def log_mass(
    row: F32, sampling: Sampling, ids: Sequence[int], prompt_len: int, usable: int, *, token: int
) -> float:
    """log p of ``token`` after ``ids``, float64; -inf where a processor removed it.

    Arguments and errors as in :func:`outrider.protocol.decoding.processors.survivors`.
    """
    tokens, scores = survivors(row, sampling, ids, prompt_len, usable)
    return mass_among(tokens, scores, token)


def mass_among(tokens: I64, scores: F64, token: int) -> float:
    """log of the softmax of ``scores`` at ``token``; ``tokens`` ascend."""
    at = int(np.searchsorted(tokens, token))
    if at == tokens.size or int(tokens[at]) != token:
        return -math.inf
    best = float(scores.max())
    return float(scores[at]) - best - math.log(float(np.exp(scores - best).sum()))


def odds(log_p: float, row: SparseRow, token: int, sampling: Sampling, position: int) -> float:
    """log of p(x) / (u q(x)) for a draft ``token`` at ``position``: above 0, it is accepted."""
    q = row.mass(token)
    u = uniform(sampling, position, Domain.ACCEPT)
    return -math.inf if q == 0 else log_p - math.log(u * q)


def decide(
    logits: Sequence[F32],
    sampling: Sampling,
    text: Sequence[int],
    prompt_len: int,
    usable: int,
    *,
    rows: Sequence[SparseRow],
) -> list[Choice]:
    """What the target makes of a chain of drafts: the drafts it accepts, then its own tokens.

    Args:
        logits: of the positions to decide, float32: the i-th follows ``text[:start + i]``, where
            ``start`` is ``len(text) - len(logits) + 1``; ``text[start:]`` is the chain.
        rows: what the first drafts of the chain were drawn from; those after them are compared
            with the target's own sample.

    Returns:
        A choice a position; none after the first draft that was refused. The margin of an accepted
        draft is the log of how much smaller p could have been.
    """
    start = len(text) - len(logits) + 1
    choices: list[Choice] = []
    for i, row in enumerate(logits):
        before = text[: start + i]
        if i >= len(rows):
            choices.append(choose(row, sampling, before, prompt_len, usable))
            continue
        token = text[start + i]
        log_p = log_mass(row, sampling, before, prompt_len, usable, token=token)
        margin = odds(log_p, rows[i], token, sampling, len(before))
        if margin <= 0:
            own = choose(row, sampling, before, prompt_len, usable, minus=rows[i])
            return [*choices, own]
        choices.append(Choice(token, margin))
    return choices
