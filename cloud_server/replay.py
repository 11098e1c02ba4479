"""The plain target, one token a pass: what every speculative answer is compared with.

:func:`plain` is the definition of *identical*, :func:`audit` that of *exact*. Neither shares any
code with the engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider.cloud_server.targets.base import Constraint, Row, Target
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.errors import SettingError

SLOT = 0
"""The slot that replaying uses; the target must not serve anybody else meanwhile."""

TOLERANCE = 1e-3
"""Scores closer than this are a near-tie in float32: passes of one and of several tokens round
differently, by about 3e-5 as measured; this is some thirty times that."""

COARSE = 0.1
"""The same where weights or sums are of lower precision: a 16-bit GGUF is off by 0.015."""


def tolerance_of(target: Target) -> float:
    """What is a near-tie for this target, in the units of its scores."""
    return TOLERANCE if target.info.dtype == "float32" else COARSE


@dataclass(frozen=True, slots=True)
class Audit:
    """How an answer compares with the plain target, which was fed the answer's own tokens.

    ``identical``: every token is the target's choice. ``exact``: every token is its choice or
    within the tolerance of it in score. ``near_ties`` counts tokens that are not the choice but
    within the tolerance, ``outside`` those that are not even that (a bug, or too tight a
    tolerance). ``worst`` is the largest gap in score between the choice and a token, 0 if
    identical, infinity where a processor had removed the token.
    """

    identical: bool
    exact: bool
    near_ties: int
    outside: int
    worst: float
    tokens: int


def plain(
    target: Target,
    prompt_ids: Sequence[int],
    sampling: Sampling,
    max_tokens: int,
    stop: Callable[[list[int]], bool] = lambda _output: False,
    *,
    constraint: Constraint | None = None,
) -> list[int]:
    """What the target alone answers: one token a pass, no drafts.

    ``stop`` is asked after each token with the output so far. The answer also ends at
    ``max_tokens`` and where prompt and output together fill the context. ``constraint``: the text
    is held to a form.

    Raises:
        SettingError: the prompt is empty or leaves no room.
        BackendError: the target failed.
    """
    _check_prompt(target, prompt_ids)
    ids, cut = list(prompt_ids), 0
    prompt_len = len(ids)
    while len(ids) - prompt_len < max_tokens and len(ids) < target.info.n_ctx:
        row = Row(SLOT, cut, ids, 1, sampling, prompt_len, constraint=constraint)
        token = target.forward([row])[0].ids[0]
        cut = len(ids)
        ids.append(token)
        if stop(ids[prompt_len:]):
            break
    return ids[prompt_len:]


def audit(
    target: Target,
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    sampling: Sampling,
    tolerance: float = 0.0,
) -> Audit:
    """Replay an answer through the plain target, one token a pass, and judge every token.

    ``tolerance`` is in the units of the scores: natural-log units, logits over the temperature.
    0 accepts nothing but the choice itself and exact ties with it (counted as near-ties).

    Raises:
        SettingError: the prompt is empty, or the whole does not fit the context.
        BackendError: the target failed.
    """
    _check_prompt(target, prompt_ids)
    if len(prompt_ids) + len(output_ids) > target.info.n_ctx:
        raise SettingError(
            f"{len(prompt_ids)} prompt and {len(output_ids)} output ids do not fit the context of "
            f"{target.info.name}, {target.info.n_ctx}"
        )
    ids, cut = list(prompt_ids), 0
    prompt_len = len(ids)
    near, outside, worst = 0, 0, 0.0
    for token in output_ids:
        row = Row(SLOT, cut, ids, 1, sampling, prompt_len)
        choice = target.forward([row])[0].ids[0]
        if choice != token:
            # Scores are asked for only where ids differ; the last id is evaluated once more.
            again = Row(SLOT, len(ids) - 1, ids, 1, sampling, prompt_len)
            best, own = target.score(again, [token])[0]
            gap = best - own
            worst = max(worst, gap)
            if gap <= tolerance and math.isfinite(gap):
                near += 1
            else:
                outside += 1
        cut = len(ids)
        ids.append(token)
    return Audit(
        identical=near + outside == 0,
        exact=outside == 0,
        near_ties=near,
        outside=outside,
        worst=worst,
        tokens=len(output_ids),
    )


def _check_prompt(target: Target, prompt_ids: Sequence[int]) -> None:
    most = target.info.n_ctx - 1  # one place for the answer
    if not 0 < len(prompt_ids) <= most:
        raise SettingError(
            f"the prompt has {len(prompt_ids)} ids; {target.info.name} takes 1 to {most}"
        )
