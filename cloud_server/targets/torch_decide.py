"""Decisions for many rows of logits at once, where the logits are: on the model's device.

The same definitions as ``outrider.protocol.decoding``, batched in torch; a test compares the two on
many rows. Rows are grouped by what they need: plain greedy is an arg-max; sampled rows share one
pass, each with its own temperature, seed and cuts. Nothing is copied to the host but one id and one
margin a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from outrider.cloud_server.targets.torch_noise import Stream, gumbel
from outrider.protocol.decoding.noise import MAX_GUMBEL
from outrider.protocol.decoding.processors import (
    Edits,
    bias_arrays,
    check_best,
    has_cuts,
    has_penalties,
    penalty_edits,
)
from outrider.protocol.decoding.row import SparseRow
from outrider.protocol.decoding.rules import Choice, choice_domain
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.errors import BackendError

CHUNK = 1 << 22
"""Logits handled at once: bounds the float64 copies to a few times 32 MiB."""
WIDE = 8192
"""Rows wider than this are narrowed before sorting or drawing noise where that is safe."""
NARROW = 512
"""How many leading tokens the cuts look at first."""


class Position(NamedTuple):
    """One decision: the settings, the ids before the token to choose, how many are the prompt.

    ``minus``: under the ratio rule, the row whose draft was refused here.
    """

    sampling: Sampling
    ids: Sequence[int]
    prompt_len: int
    minus: SparseRow | None = None


class Picked(NamedTuple):
    """Per row, on the device: the id, its lead, and the largest processed logit, to check."""

    ids: Tensor
    margins: Tensor
    peaks: Tensor


class Candidates(NamedTuple):
    """Tokens and float64 scores; ``tokens`` is ``[m]`` (all rows alike) or ``[n, m]``."""

    tokens: Tensor
    scores: Tensor


def decide(logits: Tensor, positions: Sequence[Position], usable: int) -> list[Choice]:
    """The choice at each position, by the rule of its settings.

    Args:
        logits: ``[len(positions), width]`` on any device, any float type; columns from ``usable``
            on are padding.

    Raises:
        BackendError: a NaN or an infinite logit, or no token left.
    """
    if usable < 1:
        raise BackendError("the model has no usable token: its vocabulary is empty")
    logits = logits[:, :usable]
    parts: list[tuple[list[int], Picked]] = []
    for kind, members in _groups(positions).items():
        step = max(1, CHUNK // usable)
        for start in range(0, len(members), step):
            part = members[start : start + step]
            rows = logits if len(part) == len(positions) else logits[part]
            parts.append((part, kind(rows, [positions[i] for i in part])))
    choices = [Choice(-1, 0.0)] * len(positions)
    for part, picked in parts:  # the first read waits for the device; the work is all queued by now
        for peak in picked.peaks.tolist():
            check_best(peak)
        values = zip(part, picked.ids.tolist(), picked.margins.tolist(), strict=True)
        for i, token, margin in values:
            choices[i] = Choice(token, margin)
    return choices


Kind = Callable[[Tensor, Sequence[Position]], Picked]


def _groups(positions: Sequence[Position]) -> dict[Kind, list[int]]:
    groups: dict[Kind, list[int]] = {}
    for i, position in enumerate(positions):
        groups.setdefault(_kind(position.sampling), []).append(i)
    return groups


def _kind(sampling: Sampling) -> Kind:
    if sampling.temperature == 0:
        edited = has_penalties(sampling) or sampling.logit_bias
        return _greedy_edited if edited else _greedy
    return _coupled_cut if has_cuts(sampling) else _coupled


def _greedy(rows: Tensor, _positions: Sequence[Position]) -> Picked:
    """The whole of the fast path. Documented: arg-max is the first of equal maxima."""
    ids = rows.argmax(1)
    best = rows.gather(1, ids[:, None])
    second = rows.scatter(1, ids[:, None], -torch.inf).amax(1)
    best = best[:, 0].double()
    return Picked(ids, best - second.double(), best)


def _greedy_edited(rows: Tensor, positions: Sequence[Position]) -> Picked:
    z = _edited(rows, positions)
    return _pick(Candidates(_all_tokens(z), z), z.amax(1))


def _coupled(rows: Tensor, positions: Sequence[Position]) -> Picked:
    peaks, candidates = sampled(rows, positions)
    return _pick(_with_noise(_without(candidates, positions), positions), peaks)


def sampled(rows: Tensor, positions: Sequence[Position]) -> tuple[Tensor, Candidates]:
    """The largest processed logit of each row, and what the processors leave of it."""
    z = _edited(rows, positions)
    peaks = z.amax(1)
    scores = z.div_(_column([p.sampling.temperature for p in positions], z))
    if has_cuts(positions[0].sampling):
        return peaks, _cut(scores, [p.sampling for p in positions])
    return peaks, Candidates(_all_tokens(z), scores)


def _coupled_cut(rows: Tensor, positions: Sequence[Position]) -> Picked:
    return _coupled(rows, positions)  # a group of its own: the cuts narrow its rows


def _pick(candidates: Candidates, peaks: Tensor) -> Picked:
    """Highest score, lowest id among equals, and the lead over the rest."""
    tokens, scores = candidates
    best = scores.amax(1, keepdim=True)
    last = torch.iinfo(torch.int64).max
    ids = torch.where(scores == best, tokens, last).amin(1, keepdim=True)
    second = scores.masked_fill(tokens == ids, -torch.inf).amax(1)
    return Picked(ids[:, 0], best[:, 0] - second, peaks)


def _all_tokens(z: Tensor) -> Tensor:
    return torch.arange(z.shape[1], device=z.device)


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device=like.device)[:, None]


# -- bias and penalties --------------------------------------------------------------------------


def _edited(rows: Tensor, positions: Sequence[Position]) -> Tensor:
    """A float64 copy with bias and penalties applied: both touch few ids, found on the host."""
    z = rows.to(torch.float64, copy=True)
    usable = z.shape[1]
    bias: list[tuple[int, list[int], list[float]]] = []
    edits: list[tuple[int, Sampling, Edits]] = []
    for i, (sampling, ids, prompt_len, _) in enumerate(positions):
        if sampling.logit_bias:
            tokens, values = bias_arrays(sampling.logit_bias, usable)
            bias.append((i, tokens.tolist(), values.tolist()))
        if has_penalties(sampling):
            edits.append((i, sampling, penalty_edits(sampling, ids, prompt_len, usable)))
    if bias:
        where = _where(((i, tokens) for i, tokens, _ in bias), z)
        z[where] += _flat((values for _, _, values in bias), z)
    if edits:
        _penalise(z, edits)
    return z


def _penalise(z: Tensor, edits: Sequence[tuple[int, Sampling, Edits]]) -> None:
    where = _where(((i, e.repeated.tolist()) for i, _, e in edits), z)
    old = z[where]
    penalty = _flat(([s.repetition_penalty] * e.repeated.size for _, s, e in edits), z)
    z[where] = torch.where(old > 0, old / penalty, old * penalty)
    where = _where(((i, e.counted.tolist()) for i, _, e in edits), z)
    # The products on the host, so that no device fuses them with the subtraction.
    lost = _flat(((s.frequency_penalty * e.counts).tolist() for _, s, e in edits), z)
    flat = _flat(([s.presence_penalty] * e.counted.size for _, s, e in edits), z)
    z[where] = z[where] - lost - flat


def _where(pairs: Iterable[tuple[int, list[int]]], z: Tensor) -> tuple[Tensor, Tensor]:
    """Row and column indices of ``(row, columns)`` pairs."""
    rows: list[int] = []
    columns: list[int] = []
    for i, tokens in pairs:
        rows += [i] * len(tokens)
        columns += tokens
    return (
        torch.tensor(rows, dtype=torch.int64, device=z.device),
        torch.tensor(columns, dtype=torch.int64, device=z.device),
    )


def _flat(lists: Iterable[list[float]], z: Tensor) -> Tensor:
    values = [x for part in lists for x in part]
    return torch.tensor(values, dtype=torch.float64, device=z.device)


# -- top-k, top-p, min-p -------------------------------------------------------------------------


def _cut(scores: Tensor, samplings: Sequence[Sampling]) -> Candidates:
    """The tokens that the cuts leave, as ``[n, m]``; removed ones have a score of -inf."""
    top_k = _column([s.top_k or scores.shape[1] for s in samplings], scores)
    top_p = _column([s.top_p if s.top_p < 1 else torch.inf for s in samplings], scores)
    min_p = _column([s.min_p for s in samplings], scores)
    mass = torch.exp(scores - scores.amax(1, keepdim=True)).sum(1, keepdim=True)
    tokens, leading = _leading(scores, mass, (top_k, top_p, min_p))
    # Tokens ascend, so a stable sort leaves equal scores in order of id.
    leading, order = leading.sort(dim=1, descending=True, stable=True)
    tokens = tokens.expand_as(leading).gather(1, order)
    e = torch.exp(leading - leading[:, :1])
    rank = torch.arange(leading.shape[1], device=scores.device)
    inside = rank < top_k
    e = e.masked_fill(~inside, 0.0)
    mass = torch.where(top_k <= leading.shape[1], e.sum(1, keepdim=True), mass)
    before = torch.zeros_like(e)
    before[:, 1:] = e.cumsum(1)[:, :-1]
    keep = inside & (before < top_p * mass) & (e >= min_p)
    longest = max(1, int(keep.sum(1).max()))  # survivors come first: the rest need no noise
    kept = leading.masked_fill(~keep, -torch.inf)[:, :longest]
    return Candidates(tokens[:, :longest], kept)


def _leading(
    scores: Tensor, mass: Tensor, cuts: tuple[Tensor, Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """All tokens, or the few that lead where every row's cut surely falls among them.

    Sorting a vocabulary of 150,000 is what would cost, and nearly always it is for nothing.
    """
    top_k, top_p, min_p = cuts
    for count in (NARROW, WIDE):
        if scores.shape[1] <= WIDE:
            break
        values, tokens = scores.topk(count + 1, dim=1)
        e = torch.exp(values - values[:, :1])
        held = e[:, :count].sum(1, keepdim=True)
        enough = (held > top_p * mass * (1 + 1e-9)) | (e[:, count:] < min_p)  # beyond any rounding
        # A top-k between the two widths would change the mass that top-p takes its share of.
        inside = (top_k <= count) | ((top_k >= scores.shape[1]) & enough)
        # An equal score on both sides of the edge would leave the choice between ids to topk.
        if bool((inside & (values[:, count - 1 : count] > values[:, count:])).all()):
            tokens = tokens[:, :count].sort(dim=1).values
            return tokens, scores.gather(1, tokens)
    return torch.arange(scores.shape[1], device=scores.device), scores


# -- the ratio rule ------------------------------------------------------------------------------


def log_masses(logits: Tensor, positions: Sequence[Position], tokens: Sequence[int]) -> list[float]:
    """log p of ``tokens[i]`` at position i, the processors applied; -inf where it was removed.

    Raises:
        BackendError: a NaN or an infinite logit, or no token left.
    """
    found = [0.0] * len(positions)
    for members in _groups(positions).values():
        part = [positions[i] for i in members]
        peaks, (ids, scores) = sampled(logits[members], part)
        for peak in peaks.tolist():
            check_best(peak)
        wanted = torch.tensor([tokens[i] for i in members], device=logits.device)[:, None]
        here = scores.masked_fill(ids.expand_as(scores) != wanted, -torch.inf).amax(1)
        for i, value in zip(members, (here - scores.logsumexp(1)).tolist(), strict=True):
            found[i] = value
    return found


def _without(candidates: Candidates, positions: Sequence[Position]) -> Candidates:
    """What is left of each distribution once the row of a refused draft is taken off."""
    tokens, scores = candidates
    refused = [(i, p.minus) for i, p in enumerate(positions) if p.minus is not None]
    if not refused:
        return candidates
    scores = scores.clone()
    for i, minus in refused:
        mine = tokens if tokens.dim() == 1 else tokens[i]
        total = scores[i].logsumexp(0)
        taken = torch.zeros_like(scores[i])
        for token, mass in zip(minus.ids, minus.masses(), strict=True):
            taken = taken.masked_fill(mine == token, mass)
        left = total + (torch.exp(scores[i] - total) - taken).clamp_min(0.0).log()
        rest = torch.where(taken > 0, left, scores[i])
        # Nothing left although a draft was refused: p and q are equal up to rounding.
        scores[i] = torch.where(rest.amax() > -torch.inf, rest, scores[i])
    return Candidates(tokens, scores)


# -- noise ---------------------------------------------------------------------------------------


def _with_noise(candidates: Candidates, positions: Sequence[Position]) -> Candidates:
    """Add each row's Gumbel noise: key from its seed and choice, counter from its length."""
    tokens, scores = candidates
    streams: list[Stream] = [
        (p.sampling.seed, p.sampling.choice, len(p.ids), choice_domain(p.sampling))
        for p in positions
    ]
    if scores.shape[1] > WIDE:
        tokens, scores = _contenders(candidates, streams)
    return Candidates(tokens, scores + gumbel(streams, tokens))


def _contenders(candidates: Candidates, streams: Sequence[Stream]) -> Candidates:
    """Only the tokens that noise can still bring to first or second place.

    Noise is bounded, so a token too far below two that are known cannot pass them.
    """
    tokens, scores = candidates
    values, at = scores.topk(2, dim=1)
    leaders = tokens.expand_as(scores).gather(1, at)
    floor = (values + gumbel(streams, leaders)).amin(1, keepdim=True) - MAX_GUMBEL
    most = max(2, int((scores >= floor).sum(1).max()))
    if most > scores.shape[1] // 4:
        return candidates
    values, at = scores.topk(most, dim=1)
    return Candidates(tokens.expand_as(scores).gather(1, at), values)
