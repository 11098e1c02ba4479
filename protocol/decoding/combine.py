"""Collaborative decoding: the text comes from a combination r of the target and the edge's model.

(PAPERS section 2, CoS.) With p the target's distribution and q the edge's *row as sent*:

- *ensemble*, weight w: r = w q + (1 - w) p; with further models p_i of the cloud r = w q +
  (1 - w - sum of w_i) p + sum of w_i p_i. The settings (bias, penalties, temperature, cuts) are
  applied to each model first; at temperature 0 to distributions at temperature 1, and r's largest
  is taken.
- *contrastive*, mu: r = softmax(l_p - mu l_q - sum of mu_i l_i) on the raw logits; the settings are
  applied to the difference. l_q is log q on the ids of the row; every other id takes the smallest
  of these, not minus infinity, which would let ids win for not having been sent.

Several models at the edge are one: q = sum of w_i q_i / w, or l_q = sum of mu_i l_i / mu
(``mixed``), of which one row is sent.

r is defined with the row as sent. A row is a function of the text before it alone: K and levels are
fixed for a request and part of what r is, never adapted to the link. The distance to the
combination with whole rows is at most w times the missing mass for the ensemble.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from outrider.protocol.decoding.noise import Domain, gumbel
from outrider.protocol.decoding.processors import F32, F64, I64, survivors
from outrider.protocol.decoding.ratio import mass_among, odds
from outrider.protocol.decoding.row import SparseRow
from outrider.protocol.decoding.rules import Choice, choice_domain, without
from outrider.protocol.decoding.sampling import Collaboration, Combination, Rule, Sampling
from outrider.protocol.decoding.sparse import Budget, uniform
from outrider.protocol.errors import BackendError, SettingError

PLAIN = Sampling(temperature=1.0)
"""What the edge's distribution is made with where the settings are for the combination."""


SIZES = ("keep", "levels")
TARGET = "target"
"""Names that are no model's in what the user says of a combination."""


def parse(text: str) -> Collaboration:
    """``ensemble=W`` or ``contrastive=MU``, with more behind commas.

    A further number is the weight of the edge's next model, ``NAME=W`` that of a model of the
    cloud beside the target; ``target=W`` states what the target has left in an ensemble;
    ``keep=K`` and ``levels=L`` are a row's.

    Raises:
        SettingError: anything else, a number out of range, or weights that do not sum to 1.
    """
    first, *rest = text.split(",")
    name, _, value = first.partition("=")
    try:
        kind = Combination(name.strip())
        edge = [float(value), *(float(part) for part in rest if "=" not in part)]
        pairs = [part.split("=", 1) for part in rest if "=" in part]
        named = [(key.strip(), float(number)) for key, number in pairs]
        sizes = {key: int(number) for key, number in named if key in SIZES}
        if not all(key for key, _ in named) or len(dict(named)) != len(named):
            raise ValueError
    except ValueError:
        raise SettingError(
            f"collaboration {text!r}; it must be ensemble=W or contrastive=MU, for example "
            "ensemble=0.5 or contrastive=0.1,keep=16; with more models ensemble=0.3,0.2,NAME=0.1"
        ) from None
    cloud = tuple((key, number) for key, number in named if key not in (*SIZES, TARGET))
    several = tuple(edge) if len(edge) > 1 else ()
    made = Collaboration(kind=kind, weight=sum(edge), edge=several, cloud=cloud, **sizes)
    _check_target(made, dict(named).get(TARGET))
    return made


def _check_target(made: Collaboration, said: float | None) -> None:
    """What the user said the target has left."""
    if said is None:
        return
    if made.kind is Combination.CONTRASTIVE:
        raise SettingError("target= is for an ensemble: in a contrastive text it has no weight")
    if not math.isclose(said, made.target, abs_tol=1e-6):
        total = 1.0 - made.target + said
        raise SettingError(f"the weights of the ensemble sum to {total:g}, not to 1")


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
    other: SparseRow | None,
) -> tuple[I64, F64]:
    """Ids (ascending) and scores whose softmax is r (at temperature 0: whose largest is taken).

    Args:
        row: the target's logits after ``ids``, float32 ``[V]``; with further models of the cloud
            ``[models, V]``, the target's first, then those of ``collaborate.cloud`` in order.
        other: the edge's row for the same position; None: what the cloud's models make of it
            alone, which is what the cloud proposes from.

    Raises:
        BackendError: a NaN or an infinite logit, nothing survived, or a model is missing.
    """
    collaboration = sampling.collaborate
    assert collaboration is not None
    rows = row if row.ndim == 2 else row[None]
    if len(rows) != 1 + len(collaboration.cloud):
        raise BackendError(
            f"a text of {1 + len(collaboration.cloud)} models of the cloud, of which "
            f"{len(rows)} were evaluated"
        )
    weights = [weight for _, weight in collaboration.cloud]
    if collaboration.kind is Combination.CONTRASTIVE:
        width = min(usable, rows.shape[1])
        difference = rows[0, :width].astype(np.float64)
        for mu, small in zip(weights, rows[1:], strict=True):
            difference -= mu * small[:width].astype(np.float64)
        if other is not None:
            logs = np.log(other.masses())
            absent = np.full(width, logs.min())
            absent[list(other.ids)] = logs
            difference -= collaboration.weight * absent
        return survivors(np.asarray(difference, np.float32), sampling, ids, prompt_len, usable)
    mass = np.zeros(min(usable, rows.shape[1]))
    for weight, one in zip((collaboration.target, *weights), rows, strict=True):
        tokens, part = softmax(one, row_sampling(sampling), ids, prompt_len, usable)
        mass[tokens] += weight * part
    if other is not None:
        mass[list(other.ids)] += collaboration.weight * np.array(other.masses())
    elif not mass.any():  # the cloud's models have no weight at all, but one has to propose
        tokens, part = softmax(rows[0], row_sampling(sampling), ids, prompt_len, usable)
        mass[tokens] = part
    kept = np.flatnonzero(mass)
    return kept, np.log(mass[kept])


def softmax(
    row: F32, sampling: Sampling, ids: Sequence[int], prompt_len: int, usable: int
) -> tuple[I64, F64]:
    """Ids that survive the settings, ascending, and their probabilities."""
    tokens, scores = survivors(row, sampling, ids, prompt_len, usable)
    e = np.exp(scores - scores.max())
    return tokens, np.asarray(e / e.sum())


def decide(
    logits: Sequence[F32],
    sampling: Sampling,
    text: Sequence[int],
    prompt_len: int,
    usable: int,
    *,
    rows: Sequence[SparseRow],
    scored: Sequence[bool] = (),
) -> list[Choice]:
    """What r makes of a chain of drafts, by the rule of ``sampling``.

    Arguments as of :func:`outrider.protocol.decoding.ratio.decide`, but all of the drafts, with
    which ``text`` ends, have their ``rows``, and nothing is decided behind them: without the edge's
    row there is no r. Drafts that are ``scored`` were drawn from what the cloud's models make of it
    alone (:func:`own_proposal`), all others from their rows. The choices end with the first that is
    not the draft.
    """
    start = len(text) - len(rows)
    choices: list[Choice] = []
    for i, (row, other) in enumerate(zip(logits, rows, strict=False)):
        before, token = text[: start + i], text[start + i]
        tokens, scores = combined(row, sampling, before, prompt_len, usable, other=other)
        if sampling.rule is Rule.RATIO:
            log_r, position = mass_among(tokens, scores, token), len(before)
            if i < len(scored) and scored[i]:
                own = combined(row, sampling, before, prompt_len, usable, other=None)
                margin = _odds(log_r, own, token, sampling, position)
                left = _without(tokens, scores, own)
            else:
                margin = odds(log_r, other, token, sampling, position)
                left = without(tokens, scores, other)
            if margin > 0:
                choices.append(Choice(token, margin))
                continue
            scores = left
        choices.append(_best(tokens, scores, sampling, len(before)))
        if choices[-1].id != token:
            break
    return choices


def own_proposal(
    row: F32, sampling: Sampling, ids: Sequence[int], prompt_len: int, usable: int
) -> int:
    """The cloud's proposal after ``ids``: of what its models make of it alone, the likeliest id,
    the coupled choice, or a draw, by the rule."""
    tokens, scores = combined(row, sampling, ids, prompt_len, usable, other=None)
    domain = Domain.DRAFT if sampling.rule is Rule.RATIO else choice_domain(sampling)
    return _best(tokens, scores, sampling, len(ids), domain).id


def _odds(
    log_r: float, own: tuple[I64, F64], token: int, sampling: Sampling, position: int
) -> float:
    """As :func:`outrider.protocol.decoding.ratio.odds`, for a draft from a whole distribution."""
    log_q = mass_among(*own, token)
    u = uniform(sampling, position, Domain.ACCEPT)
    return -math.inf if log_q == -math.inf else log_r - log_q - math.log(u)


def _without(tokens: I64, scores: F64, own: tuple[I64, F64]) -> F64:
    """log max(0, r - p), where p is a whole distribution; r itself if nothing is left of it."""
    r = np.exp(scores - scores.max())
    r /= r.sum()
    p = np.exp(own[1] - own[1].max())
    p /= p.sum()
    shared, ours, theirs = np.intersect1d(tokens, own[0], assume_unique=True, return_indices=True)
    del shared
    r[ours] = np.maximum(0.0, r[ours] - p[theirs])
    if not r.any():
        return scores
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(r))


def _best(
    tokens: I64, scores: F64, sampling: Sampling, position: int, domain: Domain | None = None
) -> Choice:
    """The largest score, with the rule's noise, the lower id among equals, and its lead."""
    if sampling.temperature:
        domain = domain or choice_domain(sampling)
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
