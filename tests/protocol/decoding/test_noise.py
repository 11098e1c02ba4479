from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from outrider.protocol.decoding.noise import (
    MAX_GUMBEL,
    Domain,
    gumbel,
    key_words,
    noise_bits,
    philox4x32,
)

VECTORS = Path(__file__).parents[2] / "data" / "noise.json"

# Random123, kat_vectors, philox4x32 10
PUBLISHED = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), PUBLISHED)
def test_published_vectors(counter, key, expected):
    out = philox4x32(np.array([counter, counter], np.uint64).T, key)
    assert out.T.tolist() == [list(expected)] * 2


def test_wire_vectors():
    """The noise is a contract between versions: these numbers never change."""
    for v in json.loads(VECTORS.read_text()):
        at = (v["seed"], v["choice"], v["position"])
        domain = Domain(v["domain"])
        assert hex(int(noise_bits(*at, [v["id"]], domain)[0])) == v["bits"]
        assert gumbel(*at, [v["id"]], domain)[0] == pytest.approx(v["gumbel"], abs=1e-13)


def test_same_as_the_definition(reference):
    rng = np.random.default_rng(5)
    for _ in range(30):
        seed, choice = int(rng.integers(2**63)) * 2 + 1, int(rng.integers(2**32))
        position = int(rng.integers(2**40))
        ids = rng.integers(0, 2**31, 7)
        for domain in Domain:
            got = noise_bits(seed, choice, position, ids, domain)
            want = [reference.bits(seed, choice, position, int(t), domain.value) for t in ids]
            assert got.tolist() == want


def test_random_access():
    """A token's noise does not depend on which others are asked for, nor in what order."""
    dense = gumbel(7, 0, 11, np.arange(1001))
    for ids in ([0], [1], [1000, 3, 3, 998], list(range(500, 1001)), [999, 1000]):
        assert gumbel(7, 0, 11, ids).tolist() == dense[ids].tolist()
    assert gumbel(7, 0, 11, []).shape == (0,)


def test_every_input_matters():
    base = gumbel(1, 0, 5, np.arange(64))
    others = [
        gumbel(2, 0, 5, np.arange(64)),
        gumbel(1, 1, 5, np.arange(64)),
        gumbel(1, 0, 6, np.arange(64)),
        gumbel(1, 0, 5 + 2**32, np.arange(64)),
        gumbel(1, 0, 5, np.arange(64, 128)),
        *(gumbel(1, 0, 5, np.arange(64), d) for d in Domain if d is not Domain.COUPLED),
    ]
    for other in others:
        assert not np.any(base == other)
    assert len(set(base.tolist())) == 64


def test_key_covers_the_whole_seed():
    keys = {key_words(1 << bit, 0) for bit in range(64)} | {key_words(0, 1 << b) for b in range(32)}
    assert len(keys) == 96


def test_distribution():
    """Mean is Euler's constant, variance pi^2 / 6, and u is uniform (Kolmogorov distance)."""
    g = gumbel(3, 0, 0, np.arange(200_000))
    assert g.mean() == pytest.approx(0.5772156649, abs=4 * 1.2825 / math.sqrt(g.size))
    assert g.var() == pytest.approx(math.pi**2 / 6, rel=0.02)
    u = np.sort(np.exp(-np.exp(-g)))
    assert np.abs(u - (np.arange(u.size) + 0.5) / u.size).max() < 1.95 / math.sqrt(u.size)


def test_bound():
    largest = (2**52 - 1 + 0.5) * 2.0**-52
    assert largest < 1
    assert 36.7 < -math.log(-math.log(largest)) < MAX_GUMBEL
