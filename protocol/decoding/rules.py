"""Which token comes next: the choice of a target and the proposal of a drafter, without rows.

Greedy takes the highest processed logit. Coupled takes the highest of score plus Gumbel noise,
where score is the processed logit over the temperature and the noise belongs to (seed, choice,
position, id): that is a sample of the softmax, the same one for whoever evaluates it. Ties go to
the lower id. Under the ratio rule a target's own token (bonus, self-advance, residual) is chosen
the same way, with the noise of another domain; what else it takes is in ``ratio``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from outrider.protocol.decoding.noise import MAX_GUMBEL, Domain, gumbel
from outrider.protocol.decoding.processors import (
    F32,
    F64,
    I64,
    WIDE,
    check_best,
    cut,
    has_cuts,
    processed,
    survivors,
    top,
)
from outrider.protocol.decoding.row import SparseRow
from outrider.protocol.decoding.sampling import Rule, Sampling
from outrider.protocol.errors import BackendError

NOBODY: frozenset[int] = frozenset()


class Choice(NamedTuple):
    """The chosen id and by how much its score beat the runner-up's (infinity if alone)."""

    id: int
    margin: float


class Proposal(NamedTuple):
    """A drafter's choice, the probability that the drafter itself gives that id, and the runner-up.

    ``lead`` is by how much the choice's score beat that of ``second``, noise included: the smaller,
    the likelier another model chooses otherwise, and then most often ``second``. Without a
    runner-up they are None and infinity.
    """

    id: int
    confidence: float
    second: int | None = None
    lead: float = np.inf


def scored(
    row: F32, sampling: Sampling, ids: Sequence[int], prompt_len: int, usable: int
) -> tuple[I64, F64]:
    """Surviving ids (ascending) and the scores that the rule compares, noise included.

    Arguments and errors as in :func:`outrider.protocol.decoding.processors.survivors`.
    """
    tokens, scores = survivors(row, sampling, ids, prompt_len, usable)
    if sampling.temperature > 0:
        scores = scores + _noise(sampling, ids, tokens)
    return tokens, scores


def shared_noise(sampling: Sampling, length: int, tokens: Sequence[int]) -> F64:
    """What is added to the scores of ``tokens`` after ``length`` ids, whoever scores them."""
    listed = np.array(tokens, np.int64)
    if sampling.temperature == 0:
        return np.zeros(listed.size)
    return gumbel(sampling.seed, sampling.choice, length, listed, choice_domain(sampling))


def _noise(sampling: Sampling, ids: Sequence[int], tokens: I64) -> F64:
    """The noise of ``tokens`` as the token after ``ids``."""
    return gumbel(sampling.seed, sampling.choice, len(ids), tokens, choice_domain(sampling))


def choice_domain(sampling: Sampling) -> Domain:
    """Whose noise a target's own choice takes: never the draft's, and never the acceptance's."""
    return Domain.RESIDUAL if sampling.rule is Rule.RATIO else Domain.COUPLED


def without(tokens: I64, scores: F64, minus: SparseRow) -> F64:
    """Scores of what is left of a distribution p once a row q is taken off: log max(0, p - q).

    ``tokens`` ascend; the result is on the scale of ``scores``, -inf where nothing is left.
    """
    best = float(scores.max())
    total = best + float(np.log(np.exp(scores - best).sum()))
    taken = np.array(minus.ids, np.int64)
    at = np.minimum(np.searchsorted(tokens, taken), tokens.size - 1)
    here = tokens[at] == taken
    at, taken_mass = at[here], np.array(minus.masses())[here]
    left = np.exp(scores[at] - total) - taken_mass
    rest = scores.copy()
    with np.errstate(divide="ignore"):
        rest[at] = total + np.log(np.maximum(left, 0.0))
    # Nothing left although a draft was refused: p and q are equal up to rounding.
    return rest if rest.max() > -np.inf else scores


def choose(
    row: F32,
    sampling: Sampling,
    ids: Sequence[int],
    prompt_len: int,
    usable: int,
    *,
    minus: SparseRow | None = None,
) -> Choice:
    """The target's choice for the token after ``ids``, by the rule of ``sampling``.

    Args:
        row: logits after ``ids``, float32; columns from ``usable`` on are padding.
        ids: the whole sequence so far, prompt included: its length is the position of the noise.
        prompt_len: how many of ``ids`` are the prompt.
        minus: under the ratio rule, the row whose draft was refused here: the choice is a sample
            of norm(max(0, p - q)).

    Raises:
        BackendError: a NaN or an infinite logit, or nothing survived.
    """
    if sampling.temperature == 0:
        return _best(processed(row, sampling, ids, prompt_len, usable))
    tokens, scores = survivors(row, sampling, ids, prompt_len, usable)
    if minus is not None:
        scores = without(tokens, scores, minus)
    if tokens.size > WIDE:
        contenders = _contenders(tokens, scores, sampling, ids)
        tokens, scores = tokens[contenders], scores[contenders]
    index, margin = _best(scores + _noise(sampling, ids, tokens))
    return Choice(int(tokens[index]), margin)


def _contenders(tokens: I64, scores: F64, sampling: Sampling, ids: Sequence[int]) -> I64:
    """Indices of the tokens that can come first or second once noise is added.

    Noise is bounded, so a token too far below two that are known cannot pass them. Evaluating
    noise is what costs on a wide row, and most of a real row is that far down.
    """
    leaders = top(scores, 2)
    floor = (scores[leaders] + _noise(sampling, ids, tokens[leaders])).min() - MAX_GUMBEL
    return np.flatnonzero(scores >= floor)


def _best(scores: F64 | F32) -> Choice:
    """Index of the first maximum and its lead over the rest."""
    if not scores.size:
        raise BackendError("the model has no usable token: its vocabulary is empty")
    index = int(scores.argmax())
    best = float(scores[index])
    check_best(best)
    # argmax stops at the first NaN, so best is finite only where the whole row is free of them.
    before = float(scores[:index].max()) if index else -np.inf
    after = float(scores[index + 1 :].max()) if index + 1 < scores.size else -np.inf
    return Choice(index, best - max(before, after))


def judge(
    row: F32,
    sampling: Sampling,
    ids: Sequence[int],
    prompt_len: int,
    usable: int,
    *,
    candidate: int,
) -> tuple[float, float]:
    """The best score and the candidate's, as the rule compares them; -inf if it was removed."""
    tokens, scores = scored(row, sampling, ids, prompt_len, usable)
    at = int(np.searchsorted(tokens, candidate))
    present = at < tokens.size and int(tokens[at]) == candidate
    return float(scores.max()), float(scores[at]) if present else -np.inf


HEAD = 512
"""Likeliest tokens of a large vocabulary for which a drafter draws noise. What lies outside can be
the target's choice too, and is then missed."""

SMALL = 8192
"""Vocabularies up to this size are drawn for whole: flat distributions have long tails, and looking
at 64 tokens of 4096 missed a tenth of the acceptance."""


def propose(
    row: F32,
    sampling: Sampling,
    ids: Sequence[int],
    prompt_len: int,
    usable: int,
    *,
    never: frozenset[int] = NOBODY,
    head: int | None = None,
) -> Proposal:
    """A drafter's guess at the target's choice, found among its ``head`` likeliest tokens.

    The same choice as :func:`choose` would make on the drafter's row, but noise is evaluated for
    the head only (None: all of a small vocabulary, ``HEAD`` of a large one): exactness does not
    depend on how a draft was found. ``never`` holds ids that must not be drafted; they keep their
    probability, so that a drafter that expects one shows little confidence in what it proposes
    instead.

    Returns:
        The id and the probability, from 0 to 1, of the id under the drafter's processed
        distribution (at temperature 0: the softmax of the processed logits).

    Raises:
        BackendError: a NaN or an infinite logit, or every token is in ``never``.
    """
    # In the row's own precision: a draft needs no more, and it is twice as fast.
    z = processed(row, sampling, ids, prompt_len, usable, single=True)
    index = int(z.argmax()) if z.size else -1
    best = float(z[index]) if z.size else -np.inf
    check_best(best)
    cold = sampling.temperature == 0
    e = np.exp((z - z[index]) if cold else (z - z[index]) / z.dtype.type(sampling.temperature))
    total = float(e.sum())
    if cold:
        (token, second), lead = _first_two(z, None, never)
        if token is None:
            raise BackendError("the drafter has no token left to propose: every id is ruled out")
        return Proposal(token, float(e[token]) / total, second, lead)
    head = head or (z.size if z.size <= SMALL else HEAD)
    listed: I64 = top(z, head) if head < z.size else np.arange(z.size)
    scores = z[listed].astype(np.float64) / sampling.temperature
    if has_cuts(sampling):
        outside = max(0.0, total - float(e[listed].sum(dtype=np.float64)))
        kept, total = cut(listed, scores, sampling, outside)
        listed, scores = listed[kept], scores[kept]
    (token, second), lead = _first_two(scores + _noise(sampling, ids, listed), listed, never)
    if token is None:  # all that may be sampled is ruled out: any other token will do
        (token, _), _ = _first_two(z, None, never)
        if token is None:
            raise BackendError("the drafter has no token left to propose: every id is ruled out")
        return Proposal(token, 0.0, None, np.inf)
    return Proposal(token, min(1.0, float(e[token]) / total), second, lead)


def propose_some(
    row: F32,
    sampling: Sampling,
    ids: Sequence[int],
    prompt_len: int,
    usable: int,
    *,
    count: int,
    never: frozenset[int] = NOBODY,
) -> list[Proposal]:
    """The ``count`` best guesses at the target's choice, best first: :func:`propose` is the first.

    The runners-up are those by score with the noise in it: if the target's row differs a little,
    they are what it chooses instead. Arguments and errors as of :func:`propose`.
    """
    best = propose(row, sampling, ids, prompt_len, usable, never=never)
    if count == 1:
        return [best]
    z = processed(row, sampling, ids, prompt_len, usable, single=True)
    cold = sampling.temperature == 0
    most = z.size if z.size <= SMALL else HEAD + len(never)
    listed = top(z, most) if most < z.size else np.arange(z.size)
    scaled = z.astype(np.float64) / (1.0 if cold else sampling.temperature)
    e = np.exp(scaled - scaled.max())
    scores, total = scaled[listed], float(e.sum())
    if has_cuts(sampling) and not cold:
        kept, total = cut(listed, scores, sampling, max(0.0, total - float(e[listed].sum())))
        listed, scores = listed[kept], scores[kept]
    if not cold:
        scores = scores + _noise(sampling, ids, listed)
    few = min(scores.size, count + len(never))
    leaders = np.arange(few) if few == scores.size else top(scores, few)
    found = [best]
    for at in leaders[np.argsort(-scores[leaders], kind="stable")]:
        token = int(listed[at])
        if len(found) == count:
            break
        if token != best.id and token not in never:
            found.append(Proposal(token, min(1.0, float(e[token]) / total)))
    return found


def _first_two(
    scores: F64 | F32, listed: I64 | None, never: frozenset[int]
) -> tuple[tuple[int | None, int | None], float]:
    """The ids with the two highest scores outside ``never``, as far as there are, and the lead.

    ``scores[i]`` is that of ``listed[i]``, or of id i. -inf is no score.
    """
    found = _two(scores)
    if never.intersection(found if listed is None else listed[found].tolist()):
        scores, out = scores.copy(), sorted(never)
        if listed is None:
            scores[[i for i in out if i < scores.size]] = -np.inf
        else:
            scores[np.isin(listed, out)] = -np.inf
        found = _two(scores)
    found = [i for i in found if scores[i] > -np.inf]
    lead = float(scores[found[0]] - scores[found[1]]) if len(found) == 2 else np.inf
    ids: list[int] = found if listed is None else listed[found].tolist()
    first, second, *_ = (*ids, None, None)
    return (first, second), lead


def _two(scores: F64 | F32) -> list[int]:
    """Indices of the highest score and the next one; of equal ones the first. No copy."""
    first = int(scores.argmax())
    parts = (0, scores[:first]), (first + 1, scores[first + 1 :])
    ends = [start + int(part.argmax()) for start, part in parts if part.size]
    return [first, *sorted(ends, key=lambda i: -scores[i])[:1]]
