"""The draft model as the engine sees it: prefill a text, or guess how it goes on.

A drafter may be wrong, slow or dead; it can never change the text. It owns the ids in its cache
(:func:`outrider.runtime.lm.base.follow`), so any session's text can be asked for at any time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np

from outrider.protocol.decoding import trees
from outrider.protocol.decoding.combine import proposal
from outrider.protocol.decoding.mixed import spread_all
from outrider.protocol.decoding.row import SparseRow
from outrider.protocol.decoding.rules import Proposal, propose
from outrider.protocol.decoding.sampling import Rule, Sampling
from outrider.protocol.decoding.sparse import Budget, draw, spread
from outrider.runtime.lm.base import CausalLM, common_prefix, follow


@dataclass(frozen=True, slots=True)
class Guess:
    """What the drafter guessed: tokens and its own probability of each, 0 to 1.

    Under the ratio rule also the rows that the tokens were drawn from, a confidence being that of a
    row as a whole, and the mean mass that these left ``dropped``. ``parents``: they are a tree,
    ``parents[i]`` being an earlier one of them or -1 for the end of the text. ``seconds``: what
    they took, where virtual time is kept. ``runners_up[i]`` (None: there is none) had a score that
    was ``leads[i]`` lower than that of token i, see
    :class:`outrider.protocol.decoding.rules.Proposal`; both are empty where not known.
    The first ``scored`` tokens are not its own but the cloud's, with its rows for them.
    ``stopped``: there are so few of them because they were not wanted any more. A tree may have
    taken more ``steps`` than it is deep.
    """

    tokens: tuple[int, ...]
    confidences: tuple[float, ...]
    rows: tuple[SparseRow, ...] = ()
    dropped: float = 0.0
    parents: tuple[int, ...] = ()
    seconds: float = 0.0
    runners_up: tuple[int | None, ...] = ()
    leads: tuple[float, ...] = ()
    stopped: bool = False
    scored: int = 0
    steps: int = 0

    @property
    def spent(self) -> int:
        """The drafter's steps that they took: one each in a row."""
        return max(self.depth, self.steps)

    @property
    def depth(self) -> int:
        """Most of them that can be right."""
        return 1 + max(trees.depths(self.parents)) if self.parents else len(self.tokens)

    def first(self, count: int) -> Guess:
        """Its first ``count`` tokens, of a chain."""
        return replace(
            self,
            tokens=self.tokens[:count],
            confidences=self.confidences[:count],
            rows=self.rows[:count],
            runners_up=self.runners_up[:count],
            leads=self.leads[:count],
        )

    def after(self, tokens: Sequence[int]) -> Guess:
        """The same guesses, with others before them."""
        count = len(tokens)
        under = [count - 1 if p == trees.ROOT else count + p for p in self.parents]
        return replace(
            self,
            tokens=(*tokens, *self.tokens),
            confidences=(*[1.0] * count, *self.confidences),
            runners_up=(*[None] * count, *self.runners_up) if self.runners_up else (),
            leads=(*[math.inf] * count, *self.leads) if self.leads else (),
            parents=(*range(-1, count - 1), *under) if self.parents else (),
        )

    def below(self, text: Sequence[int]) -> Guess | None:
        """What is left once the text went on like this; None where it left the guesses."""
        if not self.parents:
            if self.tokens[: len(text)] != tuple(text):
                return None
            return replace(
                self,
                tokens=self.tokens[len(text) :],
                confidences=self.confidences[len(text) :],
                rows=self.rows[len(text) :],
                runners_up=self.runners_up[len(text) :],
                leads=self.leads[len(text) :],
                scored=max(0, self.scored - len(text)),
            )
        passed = trees.follow(self.tokens, self.parents, text)
        if len(passed) < len(text):
            return None
        kept = {passed[-1] if passed else trees.ROOT: trees.ROOT}
        for node, parent in enumerate(self.parents):
            if parent in kept:
                kept[node] = len(kept) - 1
        nodes = list(kept)[1:]
        return replace(
            self,
            tokens=tuple(self.tokens[node] for node in nodes),
            confidences=tuple(self.confidences[node] for node in nodes),
            parents=tuple(kept[self.parents[node]] for node in nodes),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a request stands, for drafters that learn from it; others have no use for it.

    ``request`` is the session and its answer, ``key`` whose it is. ``verified`` of the ids are
    the target's; ``round`` seconds go by between a draft and its verdict, ``load`` is how likely
    right a guess must be at the verifier. A guess beside the chain is worth its part of a pass if
    it is right with a chance of ``price`` (1: none is); a draft has ``nodes`` guesses at most.
    """

    request: tuple[int, int] = (0, 0)
    key: str = ""
    verified: int = 0
    round: float = 0.0
    load: float = 0.0
    price: float = 1.0
    nodes: int = 32


class DraftSource(Protocol):
    """What an edge needs of whatever guesses for it: :class:`Drafter`, or a group of them."""

    name: str
    n_ctx: int

    def behind(self, ids: Sequence[int]) -> int:
        """How many of ``ids`` it has not evaluated."""

    def prefill(self, ids: Sequence[int], count: int) -> None:
        """Evaluate some more."""

    def draft(
        self,
        ids: Sequence[int],
        prompt_len: int,
        sampling: Sampling,
        count: int,
        *,
        never: frozenset[int] = frozenset(),
        floor: float = 0.0,
        budget: Budget | None = None,
        stop: Callable[[], bool] = lambda: False,
        standing: Standing | None = None,
    ) -> Guess:
        """Guess what follows ``ids``."""

    def forget(self, ids: Sequence[int]) -> None:
        """The answer with this text was broken off."""

    def close(self) -> None:
        """Free the model."""


@runtime_checkable
class Collaborator(Protocol):
    """A draft source whose rows are those of fixed models, so that a text can be partly theirs."""

    models: int
    """How many there are."""

    def collaborate(
        self,
        ids: Sequence[int],
        prompt_len: int,
        sampling: Sampling,
        count: int,
        *,
        budget: Budget,
        given: Sequence[int] = (),
        never: frozenset[int] = frozenset(),
        stop: Callable[[], bool] = lambda: False,
    ) -> Guess:
        """Rows for ``given`` tokens after ``ids``, and up to ``count`` guesses with theirs."""


class Drafter:
    """Guesses with one causal language model. One thread at a time may use it.

    ``usable`` ids are real tokens of the shared vocabulary; ``eos`` ends a guess, since nothing
    follows it.
    """

    models = 1

    def __init__(self, lm: CausalLM, usable: int, eos: frozenset[int] = frozenset()) -> None:
        self.lm = lm
        self._lms: tuple[CausalLM, ...] = (lm,)
        self.name = lm.name
        self.n_ctx = lm.n_ctx
        self.usable = min(usable, lm.row_width)
        self._eos = eos

    def behind(self, ids: Sequence[int]) -> int:
        """How many of ``ids`` the cache does not hold yet."""
        return len(ids) - common_prefix(self.lm.ids, ids)

    def prefill(self, ids: Sequence[int], count: int) -> None:
        """Evaluate up to ``count`` more of ``ids``, whose last id is left for the first guess.

        Raises:
            BackendError: the backend failed.
        """
        keep = common_prefix(self.lm.ids, ids)
        follow(self.lm, ids[: min(len(ids), keep + count)], rows=0)

    def draft(
        self,
        ids: Sequence[int],
        prompt_len: int,
        sampling: Sampling,
        count: int,
        *,
        never: frozenset[int] = frozenset(),
        floor: float = 0.0,
        budget: Budget | None = None,
        stop: Callable[[], bool] = lambda: False,
        standing: Standing | None = None,  # noqa: ARG002 - one model learns nothing from it
    ) -> Guess:
        """Up to ``count`` guesses at what follows ``ids``.

        Stops early after an end token, before a token of less than ``floor`` probability, or when
        ``stop()`` says that the guesses are not wanted any more. With a ``budget`` tokens are drawn
        for the ratio rule, and the floor is for the likeliest token of a row, since what was drawn
        must not decide whether it is sent.

        Raises:
            BackendError: the backend failed or the context is full.
        """
        text = list(ids)
        found: list[Proposal] = []
        rows: list[SparseRow] = []
        lost, stopped = 0.0, False
        row = follow(self.lm, text, rows=1)[-1]
        while True:
            if self.usable < row.shape[0]:
                row = np.ascontiguousarray(row[: self.usable])
            if budget is None:
                guess = propose(row, sampling, text, prompt_len, self.usable, never=never)
                if guess.confidence < floor:
                    break
            else:
                kept = spread(
                    row, sampling, text, prompt_len, self.usable, budget=budget, never=never
                )
                if kept.row.peak < floor:
                    break
                lost += kept.dropped
                rows.append(kept.row)
                guess = Proposal(draw(kept.row, sampling, len(text)), kept.row.peak)
            found.append(guess)
            text.append(guess.id)
            if len(found) == count or guess.id in self._eos:
                break
            if stopped := stop():
                break
            row = self.lm.feed([guess.id])[-1]
        if not found:
            return Guess((), ())
        tokens, confidences, runners_up, leads = zip(*found, strict=True)
        if budget is not None:
            return Guess(tokens, confidences, tuple(rows), lost / len(rows), stopped=stopped)
        return Guess(tokens, confidences, runners_up=runners_up, leads=leads, stopped=stopped)

    def forget(self, ids: Sequence[int]) -> None:
        """The cache keeps the text: the next answer may begin with it."""

    def collaborate(
        self,
        ids: Sequence[int],
        prompt_len: int,
        sampling: Sampling,
        count: int,
        *,
        budget: Budget,
        given: Sequence[int] = (),
        never: frozenset[int] = frozenset(),
        stop: Callable[[], bool] = lambda: False,
    ) -> Guess:
        """What the models of this edge have to say of a text that is partly theirs.

        First a row for each of the ``given`` tokens, which the cloud proposed after ``ids``, all in
        one pass of each model; then up to ``count`` guesses of their own behind those, with rows.
        An end token is the last.

        Raises:
            BackendError: a backend failed or a context is full.
        """
        text, rows, tokens = list(ids), list[SparseRow](), list[int]()
        most, lost, stopped = len(given) + count, 0.0, False
        found = [follow(lm, [*text, *given], rows=len(given) + 1) for lm in self._lms]
        drawn = draw if sampling.rule is Rule.RATIO else proposal
        while True:
            at = len(tokens)
            here = [np.ascontiguousarray(z[min(at, len(z) - 1), : self.usable]) for z in found]
            kept = spread_all(
                here, sampling, text, prompt_len, self.usable, budget=budget, never=never
            )
            token = given[at] if at < len(given) else drawn(kept.row, sampling, len(text))
            rows.append(kept.row)
            tokens.append(token)
            text.append(token)
            lost += kept.dropped
            if len(tokens) == most or token in self._eos:
                break
            if at >= len(given):
                if stopped := stop():
                    break
                found = [lm.feed([token]) for lm in self._lms]
        confidences = tuple(row.peak for row in rows)
        scored = min(len(given), len(tokens))
        return Guess(
            tuple(tokens),
            confidences,
            tuple(rows),
            lost / len(rows),
            stopped=stopped,
            scored=scored,
        )

    def close(self) -> None:
        """Free the model."""
        self.lm.close()
