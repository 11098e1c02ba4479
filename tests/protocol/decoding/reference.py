"""The decoding rules once more: slow, obvious, plain Python, straight from the definitions.

It shares no code with ``outrider.protocol.decoding`` but the settings object.
"""

from __future__ import annotations

import hashlib
import math
import struct

M32 = 2**32 - 1


def philox(counter, key):
    """Philox4x32-10 of four 32-bit words under two."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & M32, (p0 >> 32) ^ c3 ^ k1, p0 & M32
        k0, k1 = (k0 + 0x9E3779B9) & M32, (k1 + 0xBB67AE85) & M32
    return c0, c1, c2, c3


def bits(seed, choice, position, token, domain="coupled"):
    digest = hashlib.blake2b(
        struct.pack("<QI", seed, choice) + domain.encode(), digest_size=8
    ).digest()
    words = philox(
        (token // 2, position % 2**32, position // 2**32, 0), struct.unpack("<II", digest)
    )
    first, second = words[:2] if token % 2 == 0 else words[2:]
    return first + (second % 2**20) * 2**32


def gumbel(seed, choice, position, token, domain="coupled"):
    u = (bits(seed, choice, position, token, domain) + 0.5) / 2**52
    return -math.log(-math.log(u))


def survivors(row, sampling, ids, prompt_len, usable):
    """[(id, score)] in the total order: score descending, id ascending."""
    s = sampling
    z = [float(x) for x in row[:usable]]
    for token, bias in s.logit_bias:
        if token < usable:
            z[token] += bias
    window = ids if s.repetition_window == -1 else ids[max(0, len(ids) - s.repetition_window) :]
    output = ids[prompt_len:]
    for token in range(usable):
        if token in window and s.repetition_penalty != 1:
            z[token] = (
                z[token] / s.repetition_penalty if z[token] > 0 else z[token] * s.repetition_penalty
            )
        count = output.count(token)
        if count:
            z[token] = z[token] - s.frequency_penalty * count - s.presence_penalty
    if s.temperature > 0:
        z = [x / s.temperature for x in z]
    left = sorted(((t, x) for t, x in enumerate(z) if x > -math.inf), key=lambda p: (-p[1], p[0]))
    if s.temperature == 0:
        return left
    if s.top_k:
        left = left[: s.top_k]
    top = left[0][1]
    if s.top_p < 1:
        total = sum(math.exp(x - top) for _, x in left)
        kept, before = [], 0.0
        for token, x in left:
            if not before < s.top_p * total:
                break
            kept.append((token, x))
            before += math.exp(x - top)
        left = kept
    return [(t, x) for t, x in left if math.exp(x - top) >= s.min_p]


def choose(row, sampling, ids, prompt_len, usable):
    """(id, margin) of the greedy or the coupled choice."""
    left = survivors(row, sampling, ids, prompt_len, usable)
    if sampling.temperature > 0:
        left = [(t, x + gumbel(sampling.seed, sampling.choice, len(ids), t)) for t, x in left]
        left.sort(key=lambda p: (-p[1], p[0]))
    return left[0][0], (left[0][1] - left[1][1] if len(left) > 1 else math.inf)


def probabilities(row, sampling, ids, prompt_len, usable):
    """{id: probability} of sampling at this position."""
    left = survivors(row, sampling, ids, prompt_len, usable)
    top = left[0][1]
    total = math.fsum(math.exp(x - top) for _, x in left)
    return {t: math.exp(x - top) / total for t, x in left}
