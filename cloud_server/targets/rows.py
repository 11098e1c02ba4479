"""What every target does with rows: check them, so that a bad one never reaches a backend, and
cut them into what is fed in one pass."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from outrider.cloud_server.targets.base import Decided, Row, TargetInfo
from outrider.protocol.decoding import combine, ratio, trees
from outrider.protocol.decoding.logprob import logprob_of
from outrider.protocol.decoding.processors import F32
from outrider.protocol.decoding.rules import Choice, choose
from outrider.protocol.errors import BackendError


def check_rows(rows: Sequence[Row], lengths: Sequence[int], info: TargetInfo, width: int) -> None:
    """Refuse rows that do not fit their slots.

    Args:
        lengths: how many ids each slot has cached.
        width: ids from 0 to ``width - 1`` can be fed.

    Raises:
        BackendError: names the slot and what is wrong with its row.
    """
    seen: set[int] = set()
    for row in rows:
        problem = _problem(row, lengths, info, width)
        if problem is None and row.slot in seen:
            problem = "appears twice in one pass"
        if problem is not None:
            raise BackendError(f"{info.name}: the row of slot {row.slot} {problem}")
        seen.add(row.slot)


def _problem(row: Row, lengths: Sequence[int], info: TargetInfo, width: int) -> str | None:
    total = len(row.ids)
    if not 0 <= row.slot < len(lengths):
        return f"names no slot; there are slots 0 to {len(lengths) - 1}"
    if row.source is not None and not 0 <= row.source < len(lengths):
        return f"copies from slot {row.source}; there are slots 0 to {len(lengths) - 1}"
    held = lengths[row.slot if row.source is None else row.source]
    if not 0 <= row.cut <= held:
        return f"keeps {row.cut} ids of a cache of {held}"
    if row.cut >= total:
        return f"feeds nothing: it keeps {row.cut} of {total} ids"
    if total > info.n_ctx:
        return f"has {total} ids, but the context holds {info.n_ctx}"
    if not 0 <= row.want <= total - row.cut:
        return f"wants {row.want} decisions from {total - row.cut} fed ids"
    if not 0 <= row.prompt_len <= total:
        return f"has a prompt of {row.prompt_len} ids among {total}"
    if row.parents and (wrong := _bad_tree(row, info)) is not None:
        return wrong
    fed = row.ids[row.cut :]
    if min(fed) < 0 or max(fed) >= width:
        bad = next(token for token in fed if not 0 <= token < width)
        return f"feeds token {bad}; the model's ids are 0 to {width - 1}"
    return None


def _bad_tree(row: Row, info: TargetInfo) -> str | None:
    """What is wrong with a row that is a tree."""
    nodes, ends = len(row.parents), len(trees.leaves(row.parents))
    if row.rows:
        return "is a tree under the ratio rule, whose drafts are a chain"
    if row.want != nodes + 1:
        return f"wants {row.want} decisions of a tree of {nodes} nodes"
    if ends > info.leaves:
        return f"is a tree with {ends} ends; at most {info.leaves} can be judged"
    return trees.problem(row.parents)


def positions(row: Row) -> Iterator[Sequence[int]]:
    """For each wanted decision, in order: the ids before the token that is decided."""
    if row.parents:
        yield from (after(row, node) for node in range(trees.ROOT, len(row.parents)))
        return
    for end in range(len(row.ids) - row.want + 1, len(row.ids) + 1):
        yield row.ids[:end]


def after(row: Row, node: int) -> list[int]:
    """The ids down to a node of the row's tree."""
    nodes = row.nodes
    return [*row.text, *(nodes[i] for i in trees.path(row.parents, node))]


def decide_rows(rows: Sequence[Row], logits: Sequence[Sequence[F32]], usable: int) -> list[Decided]:
    """Decisions for rows in numpy; ``logits[i]`` are those of row i's wanted positions."""
    held = [constrained(row, z, usable) for row, z in zip(rows, logits, strict=True)]
    made = [_decided(row, z, usable) for row, z in zip(rows, held, strict=True)]
    return [observed(*item, usable) for item in zip(rows, made, logits, strict=True)]


def masks(row: Row, usable: int) -> NDArray[np.bool_] | None:
    """Which ids the row's constraint allows at each wanted position: ``[want, usable]``.

    Behind a draft that it forbids all are: nothing is committed there.
    """
    if row.constraint is None or not row.want:
        return None
    found = [row.constraint.allowed(ids[row.prompt_len :]) for ids in positions(row)]
    return np.array([np.ones(usable, np.bool_) if mask is None else mask for mask in found])


def constrained(row: Row, logits: Sequence[F32], usable: int) -> Sequence[F32]:
    """The logits with what the row's constraint forbids at minus infinity."""
    mask = masks(row, usable)
    if mask is None:
        return logits
    return list(np.where(mask, np.asarray(logits)[:, :usable], np.float32(-np.inf)))


def observed(row: Row, made: Decided, logits: Sequence[F32], usable: int) -> Decided:
    """A decision with its log-probabilities, if the row asks for them."""
    if row.logprobs is None:
        return made
    places = [0, *(1 + node for node in row.passed(made))] if row.parents else itertools.count()
    told = tuple(
        logprob_of(logits[at], token, row.logprobs, usable)
        for at, token in zip(places, made.ids, strict=False)
    )
    return replace(made, logprobs=told)


def together(row: Row, logits: Sequence[F32], usable: int) -> Decided:
    """What a text of several models goes on with, by the target's ``logits``."""
    return decided(
        combine.decide(
            logits,
            row.sampling,
            row.ids,
            row.prompt_len,
            usable,
            rows=row.rows,
            scored=row.scored,
        )
    )


def _decided(row: Row, logits: Sequence[F32], usable: int) -> Decided:
    if row.sampling.collaborate is not None:
        made = together(row, logits, usable)
        judged = len(row.rows)
        right = made.ids == tuple(row.ids[len(row.ids) - judged :])
        if not right or not logits:
            return made
        return replace(made, behind=logits[judged][..., :usable].copy())
    if row.rows:
        return decided(
            ratio.decide(logits, row.sampling, row.ids, row.prompt_len, usable, rows=row.rows)
        )
    if row.parents:  # only what lies on the way is decided at all

        def at(node: int) -> Choice:
            ids = after(row, node)
            return choose(logits[node + 1], row.sampling, ids, row.prompt_len, usable)

        return decided(trees.walk(row.nodes, row.parents, at)[1])
    return decided(
        [
            choose(z, row.sampling, ids, row.prompt_len, usable)
            for z, ids in zip(logits, positions(row), strict=True)
        ]
    )


def decided(choices: Sequence[Choice]) -> Decided:
    """The choices of one row."""
    return Decided(tuple(c.id for c in choices), tuple(c.margin for c in choices))


class Feed(NamedTuple):
    """What one slot is fed in one pass, after its first ``past`` ids.

    Logits are wanted at ``want`` positions from ``tokens[first]`` on. ``pad`` of the tokens, the
    last ones, only fill the width: what they leave in the cache is void. ``parents``: the last
    tokens are the nodes of a tree.
    """

    slot: int
    past: int
    tokens: Sequence[int]
    first: int
    want: int
    pad: int = 0
    parents: tuple[int, ...] = ()

    @property
    def length(self) -> int:
        """How many ids the slot holds afterwards."""
        return self.past + len(self.tokens) - self.pad


def feeds(rows: Sequence[Row], width: int = 0) -> list[list[Feed]]:
    """The passes that evaluate ``rows``: one, with each row as it is, unless a width is given.

    A kernel may round differently for another number of tokens. With a ``width`` the positions to
    judge are always evaluated in pieces of that many, the last one padded, apart from whatever has
    to be evaluated before them; so how many drafts a row has cannot change what it is compared
    with.

    Returns:
        Passes in order. A row's wanted positions are those of its feeds, in order.
    """
    if not width:
        return [[_whole(row) for row in rows]] if rows else []
    passes: list[list[Feed]] = []
    for row in rows:
        first = len(row.ids) - row.want
        pieces = [_feed(row, row.cut, first, 0)] if first > row.cut else []
        for start in range(first, len(row.ids), width):
            end = min(start + width, len(row.ids))
            pieces.append(_feed(row, start, end, end - start, pad=width - (end - start)))
        shift = 0 if first > row.cut else 1  # all first pieces to judge run together
        for i, piece in enumerate(pieces, shift):
            while len(passes) <= i:
                passes.append([])
            passes[i].append(piece)
    return [part for part in passes if part]


def _whole(row: Row) -> Feed:
    return _feed(row, row.cut, len(row.ids), row.want)._replace(parents=row.parents)


def _feed(row: Row, start: int, end: int, want: int, pad: int = 0) -> Feed:
    tokens = [*row.ids[start:end], *([row.ids[end - 1]] * pad)]
    return Feed(row.slot, start, tokens, end - start - want, want, pad)
