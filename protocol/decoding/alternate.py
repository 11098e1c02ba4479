"""Collaborative decoding of n models in one place: they take turns in proposing (CoS, PAPERS 2).

There is one suffix of proposed tokens, and for each model the distributions of it that were made so
far. The model with the shortest list runs: one pass scores what it has not scored and brings the
distribution behind the suffix, from which its own proposal is made, and more if its turn is longer.
As soon as all models have scored the first token of the suffix, r is made there and judges it
against the distribution of its proposer; a refused one is replaced by r's own choice and the suffix
is dropped. With turns of one token this is never slower than plain collaborative decoding, in which
every token takes a pass of every model.

Without a clock and without models: ``logits(model, ids)`` gives a row, and whoever calls counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from outrider.protocol.decoding.noise import Domain, gumbel
from outrider.protocol.decoding.processors import F32, F64
from outrider.protocol.decoding.rules import choice_domain
from outrider.protocol.decoding.sampling import Combination, Rule, Sampling
from outrider.protocol.decoding.sparse import uniform
from outrider.protocol.errors import SettingError

Logits = Callable[[int, Sequence[int]], F32]
"""The row of a model after ids."""

LONGEST = 8
WARM = 8.0
"""Judged proposals of a model before its turns may be longer than one token."""

FORGETTING = 0.98


@dataclass(frozen=True, slots=True)
class Mixture:
    """How n models become one. Ensemble: ``weights`` of all, their sum 1. Contrastive: the last
    model is the large one, ``weights`` are the mu of the others."""

    kind: Combination
    weights: tuple[float, ...]

    def check(self, models: int) -> Mixture:
        """The mixture itself.

        Raises:
            SettingError: the weights do not fit ``models`` models.
        """
        ensemble = self.kind is Combination.ENSEMBLE
        needed = models if ensemble else models - 1
        if models < 2 or len(self.weights) != needed:
            raise SettingError(f"{len(self.weights)} weights; {models} models need {needed}")
        if not all(0.0 <= w <= 1.0 for w in self.weights):
            raise SettingError(f"weights {self.weights}; each must be 0 to 1")
        if ensemble and not math.isclose(sum(self.weights), 1.0, abs_tol=1e-9):
            raise SettingError(f"weights {self.weights} sum to {sum(self.weights):g}, not to 1")
        return self

    def combine(self, rows: Sequence[F32], temperature: float) -> F64:
        """r from the rows of all models, float64 ``[V]``; at temperature 0 as at 1."""
        heat = temperature or 1.0
        if self.kind is Combination.ENSEMBLE:
            parts = [w * softmax(z, heat) for w, z in zip(self.weights, rows, strict=True)]
            return np.asarray(sum(parts[1:], parts[0]))
        z = rows[-1].astype(np.float64)
        for mu, small in zip(self.weights, rows, strict=False):
            z = z - mu * small.astype(np.float64)
        return softmax(z, heat)


def softmax(row: F32 | F64, temperature: float) -> F64:
    """Probabilities of a row, float64."""
    z = row.astype(np.float64) / temperature
    e = np.exp(z - z.max())
    return np.asarray(e / e.sum())


class Made(NamedTuple):
    """A token of the text: who proposed what stood there, with which probability, and r's of it.

    ``accepted``: the token is that proposal; otherwise r chose another.
    """

    token: int
    proposer: int
    proposal: int
    proposed_mass: float
    combined_mass: float
    accepted: bool


class Turn(NamedTuple):
    """One pass of a model: it scores so many tokens of the suffix and proposes one."""

    model: int
    scored: int


@dataclass(slots=True)
class _Proposal:
    token: int
    by: int
    mass: F64


@dataclass
class Alternation:
    """One text. :meth:`run` gives turns, which cost, and tokens, as they come.

    ``costs`` of a pass of each model decide how long turns are; ``adaptive`` off: one token each.
    """

    logits: Logits
    mixture: Mixture
    sampling: Sampling
    costs: tuple[float, ...]
    adaptive: bool = True
    right: list[float] = field(default_factory=list)
    judged: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.mixture.check(len(self.costs))
        self.right = [0.0] * len(self.costs)
        self.judged = [0.0] * len(self.costs)

    def run(self, prompt: Sequence[int], tokens: int) -> Iterator[Turn | Made]:
        """Turns and tokens until there are ``tokens`` of them."""
        ids, suffix = list(prompt), list[_Proposal]()
        rows: list[list[F32]] = [[] for _ in self.costs]
        done = 0
        while done < tokens:
            model = min(range(len(rows)), key=lambda i: (len(rows[i]), i))
            for _ in range(self.length(model)):
                yield Turn(model, len(suffix) - len(rows[model]))
                self._pass(model, ids, suffix, rows[model])
            while done < tokens and suffix and all(rows):
                made = self._judge(ids, suffix[0], [part[0] for part in rows])
                yield made
                ids.append(made.token)
                done += 1
                if made.accepted:
                    del suffix[0]
                    for part in rows:
                        del part[0]
                else:
                    suffix.clear()
                    rows = [[] for _ in self.costs]

    def length(self, model: int) -> int:
        """Tokens of a turn: what brings most for its cost; 1 until known.

        A round of g passes of this model and one of each of the n - 1 others proposes g + n - 1
        tokens, of which (1 - a^(g + n - 1)) / (1 - a) are expected to stand.
        """
        if not self.adaptive or self.judged[model] < WARM:
            return 1
        error = math.sqrt(0.25 / self.judged[model])
        a = min(0.99, max(0.0, self.right[model] / self.judged[model] - error))
        own, rest = self.costs[model], sum(self.costs) - self.costs[model]
        others = len(self.costs) - 1
        rates = [(1 - a ** (g + others)) / (g * own + rest) for g in range(1, LONGEST + 1)]
        return 1 + rates.index(max(rates))

    def _pass(
        self, model: int, ids: Sequence[int], suffix: list[_Proposal], known: list[F32]
    ) -> None:
        """Score the suffix as far as this model has not, and put its own proposal behind it."""
        text = [*ids, *(p.token for p in suffix)]
        for length in range(len(ids) + len(known), len(text)):
            known.append(self.logits(model, text[:length]))
        row = self.logits(model, text)
        known.append(row)
        mass = softmax(row, self.sampling.temperature or 1.0)
        domain = Domain.DRAFT if self.sampling.rule is Rule.RATIO else Domain.COUPLED
        suffix.append(_Proposal(self._pick(mass, len(text), domain), model, mass))

    def _judge(self, ids: Sequence[int], proposal: _Proposal, rows: Sequence[F32]) -> Made:
        token, position = proposal.token, len(ids)
        r = self.mixture.combine(rows, self.sampling.temperature)
        if self.sampling.rule is Rule.RATIO:
            u = uniform(self.sampling, position, Domain.ACCEPT)
            accepted = u * float(proposal.mass[token]) < float(r[token])
            left = np.maximum(r - proposal.mass, 0.0)
            own = token if accepted else self._pick(left, position, Domain.RESIDUAL)
        else:
            own = self._pick(r, position, choice_domain(self.sampling))
            accepted = own == token
        model = proposal.by
        self.right[model] = FORGETTING * self.right[model] + accepted
        self.judged[model] = FORGETTING * self.judged[model] + 1
        mass = float(proposal.mass[token])
        return Made(own, model, token, mass, float(r[token]), accepted)

    def _pick(self, mass: F64, position: int, domain: Domain) -> int:
        """The likeliest id, under noise when sampling; of equals the lower one."""
        if not self.sampling.temperature:
            return int(mass.argmax())
        with np.errstate(divide="ignore"):
            scores = np.log(mass)
        noise = gumbel(self.sampling.seed, self.sampling.choice, position, range(mass.size), domain)
        return int((scores + noise).argmax())


def plain(
    logits: Logits, mixture: Mixture, sampling: Sampling, prompt: Sequence[int], tokens: int
) -> list[int]:
    """Every token by all models, one after the other: the definition that the rest is held to."""
    models = len(mixture.weights) + (mixture.kind is Combination.CONTRASTIVE)
    ids = list(prompt)
    for _ in range(tokens):
        r = mixture.combine([logits(i, ids) for i in range(models)], sampling.temperature)
        scores = np.log(np.maximum(r, 1e-300))
        if sampling.temperature:
            domain = choice_domain(sampling)
            noise = gumbel(sampling.seed, sampling.choice, len(ids), range(r.size), domain)
            scores = scores + noise
        ids.append(int(scores.argmax()))
    return ids[len(prompt) :]
