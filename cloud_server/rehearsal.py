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

ROUNDS = 8
CONTEXT = 16
"""Ids that the passes follow: a short text, as an answer's beginning."""


def rehearse(target: Target, seconds: float) -> list[tuple[int, float]]:
    """Tokens and seconds of some passes in slot 0, which is as good as empty afterwards.

    Of each size the quickest of up to ``ROUNDS``: whatever else the machine does only makes a pass
    slower. Larger sizes are left out when ``seconds`` are over. Empty for a context too small.

    Raises:
        BackendError: the target failed.
    """
    if target.info.n_ctx <= CONTEXT + SIZES[-1]:
        return []
    until = time.perf_counter() + seconds
    _pass(target, 0, CONTEXT)  # pages and buffers are touched
    best: dict[int, float] = {}
    for _ in range(ROUNDS):
        for size in SIZES:
            took = _pass(target, CONTEXT, size)
            best[size] = min(took, best.get(size, took))
            if len(best) > 1 and time.perf_counter() > until:
                break
        if time.perf_counter() > until:
            break
    _pass(target, 0, 1)
    return sorted(best.items())


def _pass(target: Target, cut: int, count: int) -> float:
    """Seconds of a pass that keeps ``cut`` ids and judges all positions of ``count`` more."""
    ids = [i % target.info.usable for i in range(cut + count)]
    row = Row(slot=0, cut=cut, ids=ids, want=count, sampling=Sampling(), prompt_len=1)
    started = time.perf_counter()
    target.forward([row])
    return time.perf_counter() - started
