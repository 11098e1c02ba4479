"""The sampling settings of an answer: one object, sent to both ends and applied by both."""

from __future__ import annotations

import enum
import math

import msgspec

from outrider.protocol.errors import SettingError

MIN_PENALTY = 0.01
"""Smallest repetition penalty: logits divided by less overflow."""

MAX_LOGIT_BIAS = 1024
"""Entries allowed in ``logit_bias``: more than any known client sends, few enough to bound work."""

MIN_TEMPERATURE = 1e-6
"""The least temperature above 0. Anything near it is greedy in all but name."""


SLACK = 1e-9
"""By how much weights may miss their sum for being floating-point numbers."""


class Rule(enum.StrEnum):
    """How drafts are judged. See ``docs/architecture.md``, "The rules"."""

    GREEDY = "greedy"
    COUPLED = "coupled"
    RATIO = "ratio"


class Combination(enum.StrEnum):
    """How the edge's distribution and the target's become one; see ``combine``."""

    ENSEMBLE = "ensemble"
    CONTRASTIVE = "contrastive"


class Collaboration(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Which combination, with which weights, and what a row of the edge's keeps.

    ``weight`` is that of the edge. Where it has several models, ``edge`` are the weights of each in
    their order, and ``weight`` is their sum. ``cloud``: further models beside the target by name,
    with their weights. In an ensemble the target has what is left to 1; otherwise weights are mu.
    """

    kind: Combination
    weight: float
    keep: int = 16
    levels: int = 256
    edge: tuple[float, ...] = ()
    cloud: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        ensemble = self.kind is Combination.ENSEMBLE
        name = "ensemble" if ensemble else "contrastive mu"
        for weight in self.edge or (self.weight,):
            _check(f"{name} weight of the edge's model", weight, 0.0, 1.0)
        for model, weight in self.cloud:
            _check(f"{name} weight of the cloud's model {model!r}", weight, 0.0, 1.0)
        if self.edge and not math.isclose(sum(self.edge), self.weight, abs_tol=SLACK):
            raise SettingError(
                f"the weights {self.edge} of the edge's models sum to {sum(self.edge):g}, and "
                f"{self.weight:g} was said to be their sum"
            )
        if ensemble and self.target < 0:
            raise SettingError(
                f"the weights of an ensemble sum to 1, the target's included, and those of the "
                f"other models to {self.weight + sum(w for _, w in self.cloud):g} already"
            )
        if len({model for model, _ in self.cloud}) != len(self.cloud):
            raise SettingError("a model of the cloud takes part twice")
        _check("ids of a row (keep)", self.keep, 1, 64)
        _check("levels of a row", self.levels, 1, 4096)
        if self.levels & (self.levels - 1):
            raise SettingError(f"{self.levels} levels; it must be a power of two")

    @property
    def target(self) -> float:
        """The target's weight in an ensemble; below 0 where the others leave nothing."""
        left = 1.0 - self.weight - sum(weight for _, weight in self.cloud)
        return max(0.0, left) if left > -SLACK else left

    @property
    def models(self) -> int:
        """How many models sit at the edge."""
        return len(self.edge) or 1


class Sampling(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Everything that decides which token the target chooses, apart from the target itself.

    ``temperature`` 0 means greedy. ``top_k`` 0, ``top_p`` 1, ``min_p`` 0 and penalties at their
    neutral values are off. ``repetition_penalty`` looks at the last ``repetition_window`` ids of
    prompt and output (0: none, -1: all); presence and frequency count the output only.
    ``seed`` (64 bits) and ``choice`` (the index under n > 1) select the noise. ``ratio``: above
    temperature 0 drafts come with their distributions and the ratio rule judges them.
    ``collaborate``: the text is that of a combination of the target and the edge's model.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    repetition_window: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    choice: int = 0
    ratio: bool = False
    collaborate: Collaboration | None = None

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, 0.0, 100.0)
        if 0 < self.temperature < MIN_TEMPERATURE:  # scores over it would overflow
            raise SettingError(
                f"temperature is {self.temperature}; it must be 0 or at least {MIN_TEMPERATURE}"
            )
        _check("top_k", self.top_k, 0, 2**31 - 1)
        _check("top_p", self.top_p, 0.0, 1.0, low_open=True)
        _check("min_p", self.min_p, 0.0, 1.0)
        _check("repetition_penalty", self.repetition_penalty, MIN_PENALTY, 100.0)
        _check("repetition_window", self.repetition_window, -1, 2**31 - 1)
        _check("presence_penalty", self.presence_penalty, -100.0, 100.0)
        _check("frequency_penalty", self.frequency_penalty, -100.0, 100.0)
        _check("seed", self.seed, 0, 2**64 - 1)
        _check("choice", self.choice, 0, 2**32 - 1)
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise SettingError(
                f"logit_bias has {len(self.logit_bias)} entries; "
                f"at most {MAX_LOGIT_BIAS} are allowed"
            )
        for token, bias in self.logit_bias:
            _check("logit_bias token id", token, 0, 2**31 - 1)
            _check(f"logit_bias of token {token}", bias, -1000.0, 1000.0)
        if len({token for token, _ in self.logit_bias}) != len(self.logit_bias):
            raise SettingError("logit_bias names a token id twice")

    @property
    def rule(self) -> Rule:
        """The rule in use: greedy at temperature 0, else coupled, or ratio where asked for."""
        if self.temperature == 0:
            return Rule.GREEDY
        return Rule.RATIO if self.ratio else Rule.COUPLED

    @property
    def rowed(self) -> bool:
        """Guesses come with the rows that they were made from."""
        return self.collaborate is not None or (self.ratio and self.rule is Rule.RATIO)


def _check(name: str, value: float, low: float, high: float, *, low_open: bool = False) -> None:
    """Refuse a value that is not a finite number inside the range, by name."""
    inside = low < value <= high if low_open else low <= value <= high
    if not math.isfinite(value) or not inside:
        least = f"more than {low}" if low_open else f"at least {low}"
        raise SettingError(f"{name} is {value}; it must be {least} and at most {high}")
