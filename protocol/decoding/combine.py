"""Collaborative decoding: the text comes from a combination r of the target and the edge's model.

(PAPERS section 2, CoS.) With p the target's distribution and q the edge's *row as sent*:

- *ensemble*, weight w: r = w q + (1 - w) p. The settings (bias, penalties, temperature, cuts) are
  applied to each model first; at temperature 0 to distributions at temperature 1, and r's largest
  is taken.
- *contrastive*, mu: r = softmax(l_p - mu l_q) on the raw logits; the settings are applied to the
  difference. l_q is log q on the ids of the row; every other id takes the smallest of these, not
  minus infinity, which would let ids win for not having been sent.

r is defined with the row as sent. A row is a function of the text before it alone: K and levels are
fixed for a request and part of what r is, never adapted to the link. The distance to the
combination with whole rows is at most w times the missing mass for the ensemble.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from outrider.protocol.decoding.noise import gumbel
from outrider.protocol.decoding.processors import F32, F64, I64, survivors
from outrider.protocol.decoding.ratio import mass_among, odds
from outrider.protocol.decoding.row import SparseRow
from outrider.protocol.decoding.rules import Choice, choice_domain, without
from outrider.protocol.decoding.sampling import Collaboration, Combination, Rule, Sampling
from outrider.protocol.decoding.sparse import Budget
from outrider.protocol.errors import SettingError

PLAIN = Sampling(temperature=1.0)
"""What the edge's distribution is made with where the settings are for the combination."""


def parse(text: str) -> Collaboration:
    """``ensemble=W`` or ``contrastive=MU``, optionally followed by ``,keep=K`` and ``,levels=L``.

    Raises:
        SettingError: anything else, or a number out of range.
    """
    first, *rest = text.split(",")
    name, _, value = first.partition("=")
    try:
        kind = Combination(name.strip())
        weight = float(value)
        named = dict(part.split("=", 1) for part in rest)
        sizes = {key.strip(): int(named[key]) for key in named}
        if sizes.keys() - {"keep", "levels"}:
            raise ValueError
    except ValueError:
        raise SettingError(
            f"collaboration {text!r}; it must be ensemble=W or contrastive=MU, for example "
            "ensemble=0.5 or contrastive=0.1,keep=16"
        ) from None
    return Collaboration(kind=kind, weight=weight, **sizes)


def budget_of(collaboration: Collaboration) -> Budget:
    """How much of the edge's distribution is in a row: fixed for the request."""
    return Budget(collaboration.keep, collaboration.levels)


def row_sampling(sampling: Sampling) -> Sampling:
    """The settings that the edge's row is made with."""
    collaboration = sampling.collaborate
    if collaboration is None:
        return sampling
    if collaboration.kind is Combination.CONTRASTIVE:
        return PLAIN
    return sampling if sampling.temperature else msgspec.structs.replace(sampling, temperature=1.0)


def combined(
    row: F32,
    sampling: Sampling,
    ids: Sequence[int],
    prompt_len: int,
    usable: int,
    *,
    other: SparseRow,
) -> tuple[I64, F64]:
    """Ids (ascending) and scores whose softmax is r (at temperature 0: whose largest is taken).

    Args:
        row: the target's logits after ``ids``, float32.
        other: the edge's row for the same position.

    Raises:
        BackendError: a NaN or an infinite logit, or nothing survived.
    """
    collaboration = sampling.collaborate
    assert collaboration is not None
    if collaboration.kind is Combination.CONTRASTIVE:
        logs = np.log(other.masses())
        small = np.full(min(usable, row.size), logs.min())
        small[list(other.ids)] = logs
        difference = row[:usable].astype(np.float64) - collaboration.weight * small
        return survivors(np.asarray(difference, np.float32), sampling, ids, prompt_len, usable)
    tokens, scores = survivors(row, row_sampling(sampling), ids, prompt_len, usable)
    e = np.exp(scores - scores.max())
    union = np.union1d(tokens, np.array(other.ids, np.int64))
    r = np.zeros(union.size)
    r[np.searchsorted(union, tokens)] = (1 - collaboration.weight) * e / e.sum()
    r[np.searchsorted(union, other.ids)] += collaboration.weight * np.array(other.masses())
    kept = r > 0
    return union[kept], np.log(r[kept])


def decide(
    logits: Sequence[F32],
    sampling: Sampling,
    text: Sequence[int],
    prompt_len: int,
    usable: int,
    *,
    rows: Sequence[SparseRow],
) -> list[Choice]:
    """What r makes of a chain of drafts, by the rule of ``sampling``.

    Arguments as of :func:`outrider.protocol.decoding.ratio.decide`, but all of the drafts, with
    which ``text`` ends, have their ``rows``, and nothing is decided behind them: without the edge's
    row there is no r. The choices end with the first that is not the draft.
    """
    start = len(text) - len(rows)
    choices: list[Choice] = []
    for i, (row, other) in enumerate(zip(logits, rows, strict=False)):
        before, token = text[: start + i], text[start + i]
        tokens, scores = combined(row, sampling, before, prompt_len, usable, other=other)
        if sampling.rule is Rule.RATIO:
            log_r = mass_among(tokens, scores, token)
            margin = odds(log_r, other, token, sampling, len(before))
            if margin > 0:
                choices.append(Choice(token, margin))
                continue
            scores = without(tokens, scores, other)
        choices.append(_best(tokens, scores, sampling, len(before)))
        if choices[-1].id != token:
            break
    return choices


def _best(tokens: I64, scores: F64, sampling: Sampling, position: int) -> Choice:
    """The largest score, with the rule's noise, the lower id among equals, and its lead."""
    if sampling.temperature:
        domain = choice_domain(sampling)
        scores = scores + gumbel(sampling.seed, sampling.choice, position, tokens, domain)
    at = int(scores.argmax())
    rest = np.delete(scores, at)
    lead = float(scores[at] - rest.max()) if rest.size else float("inf")
    return Choice(int(tokens[at]), lead)


def proposal(row: SparseRow, sampling: Sampling, position: int) -> int:
    """The edge's guess at r's choice, from its own row: greedy and coupled compare it with r's.

    Under the ratio rule a guess is drawn (:func:`outrider.protocol.decoding.sparse.draw`).
    """
    tokens = np.array(row.ids, np.int64)
    return _best(tokens, np.log(row.masses()), sampling, position).id
