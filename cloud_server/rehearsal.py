"""Passes that nobody asked for, to know what they cost before the first edge comes.

An edge wants to know whether a pass over several tokens costs about as much as one over a single
token (a GPU) or several times that (a quantized model on a CPU, where guesses cannot pay). The
engine goes on measuring with every pass; this is what it begins with.
"""

from __future__ import annotations

import time

from outrider.cloud_server.targets.base import Row, Target
from outrider.protocol.decoding.sampling import Sampling

SIZES = (1, 2, 4, 8)
"""Tokens in a pass: one of each size that the estimator tells apart."""

ROUNDS = 3
CONTEXT = 16
"""Ids that the passes follow: a short text, as an answer's beginning."""


def rehearse(target: Target, seconds: float) -> list[tuple[int, float]]:
    """Tokens and seconds of some passes in slot 0, which is as good as empty afterwards.

    All sizes once, the first time unmeasured (pages and buffers are touched), then again as long as
    ``seconds`` last. Empty for a context too small.

    Raises:
        BackendError: the target failed.
    """
    if target.info.n_ctx <= CONTEXT + SIZES[-1]:
        return []
    until = time.perf_counter() + seconds
    _pass(target, 0, CONTEXT)
    for size in SIZES:
        _pass(target, CONTEXT, size)
        if time.perf_counter() > until:
            return []
    found = []
    for _ in range(ROUNDS):
        for size in SIZES:
            found.append((size, _pass(target, CONTEXT, size)))
        if time.perf_counter() > until:
            break
    _pass(target, 0, 1)
    return found


def _pass(target: Target, cut: int, count: int) -> float:
    """Seconds of a pass that keeps ``cut`` ids and judges all positions of ``count`` more."""
    ids = [i % target.info.usable for i in range(cut + count)]
    row = Row(slot=0, cut=cut, ids=ids, want=count, sampling=Sampling(), prompt_len=1)
    started = time.perf_counter()
    target.forward([row])
    return time.perf_counter() - started
