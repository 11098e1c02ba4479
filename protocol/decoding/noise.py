"""The noise of the coupled rule: a wire contract, so that both ends draw the same numbers.

The generator is Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"). It is
random access: the noise of one token at one position is a function of where it is, never of what
was drawn before, so an edge may evaluate a few tokens and the cloud all of them.

Key, two 32-bit words: the 8 bytes of BLAKE2b, digest size 8, no key, over the 12 bytes
``seed`` (unsigned 64 bits, little-endian) and ``choice`` (unsigned 32 bits, little-endian) followed
by the ASCII name of the domain (``coupled`` and so on, no terminator). The first four bytes,
little-endian, are key word 0, the other four key word 1.

Counter, four 32-bit words: ``(id // 2, position & 0xFFFFFFFF, position >> 32, 0)``. One counter
gives four output words: an even id uses words 0 and 1, an odd id words 2 and 3.

Number: ``bits = first | (second & 0xFFFFF) << 32`` (52 bits), ``u = (bits + 1/2) * 2**-52``, which
is exact in float64 and never 0 or 1, and ``G = -log(-log(u))``. Two C libraries may differ in the
last places of a logarithm, so G is the same to about 1e-15, and a choice can depend on the library
only where two scores are that close.
"""

from __future__ import annotations

import enum
import functools
import hashlib

import numpy as np
from numpy.typing import ArrayLike, NDArray

U64 = NDArray[np.uint64]

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
LOW32 = 0xFFFFFFFF
LOW20 = 0xFFFFF
MAX_GUMBEL = 36.75
"""No noise exceeds this: u is at most 1 - 2**-53, so G at most 53 log 2 = 36.7368."""
BLOCK = 8192
"""Ids evaluated at once: the rounds run within the processor's cache, three times as fast."""

_M = np.array([[MULTIPLIERS[1]], [MULTIPLIERS[0]]], np.uint64)
_LOW32 = np.uint64(LOW32)
_SHIFT32 = np.uint64(32)


class Domain(enum.StrEnum):
    """Separate streams of noise under one seed: the name goes into the key."""

    COUPLED = "coupled"
    DRAFT = "draft"
    ACCEPT = "accept"
    RESIDUAL = "residual"


@functools.lru_cache(maxsize=1024)
def key_words(seed: int, choice: int, domain: Domain = Domain.COUPLED) -> tuple[int, int]:
    """The two 32-bit key words of a stream. See the module for the exact bytes."""
    data = seed.to_bytes(8, "little") + choice.to_bytes(4, "little") + domain.value.encode("ascii")
    digest = hashlib.blake2b(data, digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


@functools.lru_cache(maxsize=1024)
def _round_keys(key: tuple[int, int]) -> U64:
    """The key of every round, shape ``[10, 2, 1]``: word 0 meets the even lane, word 1 the odd."""
    keys = [[(key[i] + r * WEYL[i]) & LOW32 for i in range(2)] for r in range(ROUNDS)]
    return np.array(keys, np.uint64)[:, :, None]


def philox4x32(counter: U64, key: tuple[int, int]) -> U64:
    """Ten rounds of Philox on ``counter`` (uint64 holding 32-bit words, shape ``[4, n]``).

    Returns the four output words in the same shape. 32-bit words live in 64-bit integers so that a
    product keeps its high half.
    """
    # Words 0 and 2 are multiplied, words 1 and 3 only mixed in. Keeping the multiplied pair
    # swapped (word 2 first) puts each product where its high half is needed: five array
    # operations a round instead of twelve, which is what counts for a few dozen ids.
    swapped, mixed = counter[[2, 0]], counter[1::2].copy()
    product, words = np.empty_like(mixed), np.empty_like(mixed)
    for round_key in _round_keys(key):
        np.multiply(swapped, _M, out=product)
        np.right_shift(product, _SHIFT32, out=words)
        np.bitwise_xor(words, mixed, out=words)
        np.bitwise_xor(words, round_key, out=words)  # new words 0 and 2
        np.bitwise_and(product, _LOW32, out=mixed)  # new words 1 and 3
        swapped = words[::-1]
    return np.stack((swapped[1], mixed[0], swapped[0], mixed[1]))


def noise_bits(
    seed: int, choice: int, position: int, ids: ArrayLike, domain: Domain = Domain.COUPLED
) -> U64:
    """The 52 random bits of each id at a position, shape ``[len(ids)]``."""
    tokens = np.asarray(ids, np.int64)
    if tokens.size == 0:
        return np.empty(0, np.uint64)
    key = key_words(seed, choice, domain)
    pairs, odd = tokens >> 1, tokens & 1
    low = int(pairs.min())
    span = int(pairs.max()) - low + 1
    if span < tokens.size:  # dense ids: evaluate each counter once, both ids take their half
        both = _pair_bits(np.arange(low, low + span, dtype=np.uint64), position, key)
        bits: U64 = both[odd, pairs - low]
    else:
        both = _pair_bits(pairs.astype(np.uint64), position, key)
        bits = np.where(odd == 0, both[0], both[1])
    return bits


def _pair_bits(pairs: U64, position: int, key: tuple[int, int]) -> U64:
    """The bits of ids ``2 * pair`` and ``2 * pair + 1``, shape ``[2, len(pairs)]``."""
    counter = np.zeros((4, pairs.size), np.uint64)
    counter[0] = pairs
    counter[1] = position & LOW32
    counter[2] = position >> 32
    words = philox4x32(counter, key)
    return words[0::2] | (words[1::2] & np.uint64(LOW20)) << _SHIFT32


def gumbel(
    seed: int, choice: int, position: int, ids: ArrayLike, domain: Domain = Domain.COUPLED
) -> NDArray[np.float64]:
    """Standard Gumbel noise of each id at a position of the sequence, float64 ``[len(ids)]``.

    ``position`` is the index, from 0 and with the prompt, that the chosen token will have;
    ``ids`` are token ids in any order, repeats allowed.
    """
    tokens = np.asarray(ids, np.int64)
    out = np.empty(tokens.size)
    for start in range(0, tokens.size, BLOCK):
        part = slice(start, start + BLOCK)
        bits = noise_bits(seed, choice, position, tokens[part], domain)
        u = (bits.astype(np.float64) + 0.5) * 2.0**-52
        out[part] = -np.log(-np.log(u))
    return out
