"""Decisions for the rows of a pass on the model's device, whatever rule each of them has."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.cloud_server.targets.base import Decided, Row
from outrider.cloud_server.targets.rows import decide_rows, decided, masks, observed, positions
from outrider.cloud_server.targets.torch_decide import Position, decide, log_masses
from outrider.protocol.decoding import trees
from outrider.protocol.decoding.ratio import odds
from outrider.protocol.decoding.rules import Choice


def decide_on_device(rows: Sequence[Row], logits: Sequence[Tensor], usable: int) -> list[Decided]:
    """The same as :func:`outrider.cloud_server.targets.rows.decide_rows`, batched.

    ``logits[i]``: ``[want, width]`` of row i. Under the ratio rule there are two steps: the masses
    of all drafts, then one choice for each row where it stops, and those behind its drafts.
    """
    if any(row.sampling.collaborate is not None for row in rows):
        # Combinations are made in numpy, rows beside them as well.
        return decide_rows(rows, [list(z.float().cpu().numpy()) for z in logits], usable)
    if not rows:
        return []
    together = torch.cat([_held(*item, usable) for item in zip(rows, logits, strict=True)])
    wanted = [[Position(r.sampling, ids, r.prompt_len) for ids in positions(r)] for r in rows]
    starts = [sum(map(len, wanted[:i])) for i in range(len(rows))]
    accepted, refused = _accepted(rows, together, wanted, starts)
    asked: list[int] = []
    places: list[Position] = []
    for i, spots in enumerate(wanted):
        first = len(accepted[i])
        own = spots[first:]
        if refused[i]:
            own = [spots[first]._replace(minus=rows[i].rows[first])]
        asked += range(starts[i] + first, starts[i] + first + len(own))
        places += own
    whole = len(asked) == together.shape[0]
    made = iter(decide(together if whole else together[asked], places, usable))
    counts = [1 if refused[i] else len(wanted[i]) - len(accepted[i]) for i in range(len(rows))]
    found = [[*accepted[i], *(next(made) for _ in range(n))] for i, n in enumerate(counts)]
    told = [decided(_taken(row, choices)) for row, choices in zip(rows, found, strict=True)]
    return [_observed(*item, usable) for item in zip(rows, told, logits, strict=True)]


def _held(row: Row, logits: Tensor, usable: int) -> Tensor:
    """What the row's constraint leaves of its logits."""
    logits = logits[:, :usable]
    mask = masks(row, usable)
    if mask is None:
        return logits
    return logits.masked_fill(~torch.from_numpy(mask).to(logits.device), -torch.inf)


def _observed(row: Row, made: Decided, logits: Tensor, usable: int) -> Decided:
    """With log-probabilities where they are asked for, which only then leave the device."""
    if row.logprobs is None:
        return made
    return observed(row, made, list(logits.float().cpu().numpy()), usable)


def _taken(row: Row, choices: list[Choice]) -> list[Choice]:
    """Of the choices after all nodes of a tree, those on the way that they take."""
    if not row.parents:
        return choices
    return trees.walk(row.nodes, row.parents, lambda node: choices[node + 1])[1]


def _accepted(
    rows: Sequence[Row], logits: Tensor, wanted: Sequence[list[Position]], starts: Sequence[int]
) -> tuple[list[list[Choice]], list[bool]]:
    """For each row the drafts that its distributions let through, and whether one was refused."""
    accepted: list[list[Choice]] = [[] for _ in rows]
    refused = [False] * len(rows)
    drafts = [(i, j) for i, row in enumerate(rows) for j in range(len(row.rows))]
    if not drafts:
        return accepted, refused
    places = [wanted[i][j] for i, j in drafts]
    tokens = [rows[i].ids[len(rows[i].ids) - rows[i].want + 1 + j] for i, j in drafts]
    masses = log_masses(logits[[starts[i] + j for i, j in drafts]], places, tokens)
    for (i, j), place, token, mass in zip(drafts, places, tokens, masses, strict=True):
        if refused[i]:
            continue
        margin = odds(mass, rows[i].rows[j], token, place.sampling, len(place.ids))
        if margin <= 0:
            refused[i] = True
        else:
            accepted[i].append(Choice(token, margin))
    return accepted, refused
