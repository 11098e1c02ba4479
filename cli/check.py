"""Is it the target's own text? Asked of the target itself, alone, one token at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from outrider.edge_client.answer import Answer
from outrider.protocol.decoding.sampling import Sampling


@dataclass(frozen=True, slots=True)
class Verdict:
    """``identical``: the very tokens. ``exact``: each is the target's choice or a near-tie."""

    identical: bool
    exact: bool
    near_ties: int
    tokens: int


def check(
    target: Any, eos: frozenset[int], answer: Answer, sampling: Sampling, max_tokens: int
) -> Verdict:
    """Compare an answer with what the plain target says to the same prompt.

    Raises:
        BackendError: the target failed.
    """
    from outrider.cloud_server.replay import audit, plain, tolerance_of

    alone = plain(
        target, answer.prompt_ids, sampling, max_tokens, stop=lambda output: output[-1] in eos
    )
    count = len(answer.ids)
    if tuple(alone) == answer.ids:
        return Verdict(True, True, 0, count)
    found = audit(target, answer.prompt_ids, answer.ids, sampling, tolerance_of(target))
    # After a near-tie the texts part ways; but an answer must still end where the rules say.
    full = len(answer.prompt_ids) + count >= target.info.n_ctx
    ended = full or count == max_tokens or (count > 0 and answer.ids[-1] in eos)
    return Verdict(False, found.exact and ended, found.near_ties, count)


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """One verdict over several answers."""
    return Verdict(
        identical=all(v.identical for v in verdicts),
        exact=all(v.exact for v in verdicts),
        near_ties=sum(v.near_ties for v in verdicts),
        tokens=sum(v.tokens for v in verdicts),
    )
