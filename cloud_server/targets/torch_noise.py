"""The noise of the coupled rule in torch, for many rows at once: same bits as the reference.

See ``outrider.protocol.decoding.noise`` for the contract. Torch has no unsigned 64-bit arithmetic
everywhere, so 32-bit words live in int64: a product wraps modulo 2**64, its low half is right as it
is, and its high half is what an arithmetic shift leaves once the copied sign bits are masked off.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.protocol.decoding.noise import (
    LOW20,
    LOW32,
    MULTIPLIERS,
    ROUNDS,
    WEYL,
    Domain,
    key_words,
)

Stream = tuple[int, int, int] | tuple[int, int, int, Domain]
"""(seed, choice, position) of a row, and the domain where that is not the coupled rule's."""


def philox4x32(counter: Sequence[Tensor], key: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Ten rounds of Philox; four counter words and two key words, int64, broadcast together."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        p0, p1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1 = ((p1 >> 32) & LOW32) ^ c1 ^ k0, p1 & LOW32
        c2, c3 = ((p0 >> 32) & LOW32) ^ c3 ^ k1, p0 & LOW32
        k0, k1 = (k0 + WEYL[0]) & LOW32, (k1 + WEYL[1]) & LOW32
    return c0, c1, c2, c3


def noise_bits(streams: Sequence[Stream], tokens: Tensor) -> Tensor:
    """The 52 random bits of each token in each row's stream, int64 ``[len(streams), m]``.

    ``tokens`` is ``[m]``, 0 to m - 1 for all rows alike, or ``[len(streams), m]`` of any ids.
    """
    words = [
        [*key_words(seed, choice, *domain), position & LOW32, position >> 32]
        for seed, choice, position, *domain in streams
    ]
    k0, k1, low, high = torch.tensor(words, dtype=torch.int64, device=tokens.device).T[:, :, None]
    if tokens.dim() == 1:  # every id once: both ids of a counter share its evaluation
        size = tokens.shape[0]
        pairs = torch.arange((size + 1) // 2, device=tokens.device)[None]
        even, odd = _pair_bits((pairs, low, high), (k0, k1))
        return torch.stack((even, odd), dim=-1).flatten(1)[:, :size]
    even, odd = _pair_bits((tokens >> 1, low, high), (k0, k1))
    return torch.where((tokens & 1) == 0, even, odd)


def _pair_bits(counter: Sequence[Tensor], key: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The bits of the even and of the odd id of each counter."""
    w0, w1, w2, w3 = philox4x32((*counter, torch.zeros_like(counter[1])), key)
    return w0 | (w1 & LOW20) << 32, w2 | (w3 & LOW20) << 32


def gumbel(streams: Sequence[Stream], tokens: Tensor) -> Tensor:
    """Gumbel noise, float64, in the shape of :func:`noise_bits`."""
    u = (noise_bits(streams, tokens).double() + 0.5) * 2.0**-52
    return u.log_().neg_().log_().neg_()
