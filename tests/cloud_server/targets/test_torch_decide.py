"""Batched decisions in torch are the reference's, id for id."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from outrider.cloud_server.targets import torch_decide, torch_noise  # noqa: E402
from outrider.cloud_server.targets.torch_decide import Position, decide  # noqa: E402
from outrider.protocol.decoding import noise  # noqa: E402
from outrider.protocol.decoding.processors import survivors  # noqa: E402
from outrider.protocol.decoding.rules import choose  # noqa: E402
from outrider.protocol.decoding.sampling import Sampling  # noqa: E402
from outrider.protocol.errors import BackendError  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


EDITS = {
    "logit_bias": ((0, 1.5), (3, -2.0), (99_999, 3.0)),
    "repetition_penalty": 1.3,
    "repetition_window": 6,
    "presence_penalty": 0.2,
    "frequency_penalty": 0.3,
}
CUTS = {"top_k": 40, "top_p": 0.9, "min_p": 0.02}
PLAIN = [
    {},
    {"logit_bias": ((2, 4.0),)},
    {"repetition_penalty": 0.6, "repetition_window": -1},
    {"presence_penalty": 1.1},
    {"frequency_penalty": -0.3},
    EDITS,
]
SAMPLED = [
    {},
    {"top_k": 1},
    {"top_k": 5},
    {"top_k": 600},
    {"top_k": 600, "top_p": 0.5},
    {"top_p": 0.3},
    {"top_p": 0.97},
    {"min_p": 0.2},
    {"min_p": 1.0},
    CUTS,
    EDITS,
    EDITS | CUTS,
]


def some_settings():
    greedy = [Sampling(**p) for p in PLAIN]
    sampled = [
        Sampling(temperature=t, seed=17 * i + 2**63, choice=i, **p)
        for i, p in enumerate(SAMPLED)
        for t in (0.3, 1.0, 1.5)
    ]
    return greedy + sampled


def compare(rows, positions, usable, margin=1e-9):
    got = decide(torch.from_numpy(rows), positions, usable)
    for row, position, choice in zip(rows, positions, got, strict=True):
        want = choose(row, *position[:3], usable)
        assert choice.id == want.id, (position.sampling, choice, want)
        assert choice.margin == pytest.approx(want.margin, abs=margin)


@pytest.mark.parametrize("kind", ["normal", "ties", "holes", "equal"])
def test_same_as_the_reference(kind):
    rng = np.random.default_rng(3)
    settings = some_settings()
    width, usable = 300, 290
    for _ in range(4):
        rows = rng.standard_normal((len(settings), width)).astype(np.float32) * 3
        if kind == "ties":
            rows = np.round(rows)
        if kind == "holes":
            rows[rng.random(rows.shape) < 0.6] = -np.inf
        if kind == "equal":
            rows[:] = 0.5
        rows[:, usable:] = 100.0  # padding must not win
        positions = []
        for sampling in settings:
            ids = rng.integers(0, usable, rng.integers(2, 40)).tolist()
            positions.append(Position(sampling, ids, len(ids) // 3))
        compare(rows, positions, usable)


@pytest.mark.parametrize("scale", [0.3, 3, 12])
def test_wide_rows(scale):
    """A vocabulary of 152k, where the short cuts are taken, or must be left out (flat rows)."""
    rng = np.random.default_rng(4)
    width, usable = 151_936, 151_665
    settings = [s for i, s in enumerate(some_settings()) if i < 6 or i % 3 == 1]
    rows = rng.standard_normal((len(settings), width)).astype(np.float32) * scale
    rows[::2] = np.round(rows[::2], 1)
    rows[:, usable:] = 100.0
    ids = rng.integers(0, usable, 50).tolist()
    compare(rows, [Position(s, ids, 9) for s in settings], usable)


def cut_rows(kind):
    """Rows of 20,000: smooth, peaked, rounded, and level across the edges of the short cuts."""
    row = np.random.default_rng(7).standard_normal(20_000).astype(np.float32)
    if kind == "peaked":
        return row * 6
    if kind == "rounded":
        return np.round(row * 6)
    if kind == "level":  # ranks 400 to 699 are equal, and their ids are scattered
        row = row * 6
        order = np.argsort(-row)
        row[order[400:700]] = row[order[550]]
    return row


@pytest.mark.parametrize("kind", ["smooth", "peaked", "rounded", "level"])
@pytest.mark.parametrize(
    "cuts",
    [
        {"top_k": 40},
        {"top_k": 450},
        {"top_k": 512},
        {"top_k": 600},
        {"top_k": 600, "top_p": 0.5},
        {"top_k": 3000, "top_p": 0.9},
        {"top_p": 0.5},
        {"top_p": 0.999},
        {"min_p": 0.3},
        {"min_p": 1e-5},
        {"top_p": 0.9, "min_p": 0.01},
    ],
)
def test_the_cuts_leave_the_same_tokens(kind, cuts):
    """Not only the same winner: every survivor, each setting by itself so that short cuts apply."""
    row = cut_rows(kind)
    sampling = Sampling(temperature=1.0, **cuts)
    want = survivors(row, sampling, [], 0, row.size)[0]
    tokens, scores = torch_decide._cut(torch.from_numpy(row)[None].double(), [sampling])
    left = tokens[0][scores[0] > -math.inf]
    assert sorted(left.tolist()) == want.tolist()


def test_chunks_and_order(monkeypatch):
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((40, 64)).astype(np.float32)
    settings = [Sampling(), Sampling(temperature=1, seed=1), Sampling(temperature=1, top_k=3)]
    positions = [Position(settings[i % 3], [1] * (i + 1), 1) for i in range(40)]
    whole = decide(torch.from_numpy(rows), positions, 64)
    monkeypatch.setattr(torch_decide, "CHUNK", 128)
    assert decide(torch.from_numpy(rows), positions, 64) == whole
    compare(rows, positions, 64)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_low_precision_rows_tie_often_and_still_agree(dtype):
    rng = np.random.default_rng(6)
    rows = torch.from_numpy(rng.standard_normal((60, 500)).astype(np.float32))
    rows = rows.to(getattr(torch, dtype))
    samplings = [Sampling(), Sampling(temperature=0.7), Sampling(temperature=0.7, top_k=9)]
    positions = [Position(samplings[i % 3], [2] * (i + 1), 1) for i in range(60)]
    got = decide(rows, positions, 480)
    for row, position, choice in zip(rows.float().numpy(), positions, got, strict=True):
        assert choice.id == choose(row, *position[:3], 480).id


def test_the_rows_are_left_alone():
    rows = torch.randn(3, 20)
    before = rows.clone()
    s = [Sampling(), Sampling(**EDITS), Sampling(temperature=1, **EDITS, **CUTS)]
    decide(rows, [Position(x, [1, 2, 3], 1) for x in s], 20)
    assert torch.equal(rows, before)


@pytest.mark.parametrize("settings", [{}, EDITS, {"temperature": 1}, {"temperature": 1, **CUTS}])
@pytest.mark.parametrize("width", [40, 9000])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_rows_that_are_no_numbers(settings, bad, width):
    rows = torch.zeros(2, width)
    rows[1, 7] = bad
    positions = [Position(Sampling(**settings), [1], 1)] * 2
    with pytest.raises(BackendError, match="not a finite number"):
        decide(rows, positions, width)
    rows[1] = -math.inf
    with pytest.raises(BackendError, match="no token left"):
        decide(rows, positions, width)
    with pytest.raises(BackendError, match="vocabulary is empty"):
        decide(rows, positions, 0)


def test_nothing_to_decide():
    assert decide(torch.zeros(0, 5), [], 5) == []


def test_published_philox_vectors():
    full = torch.tensor([0xFFFFFFFF])
    out = torch_noise.philox4x32([full] * 4, [full] * 2)
    assert [int(w) for w in out] == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    pi = [torch.tensor([w]) for w in (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)]
    key = [torch.tensor([w]) for w in (0xA4093822, 0x299F31D0)]
    out = torch_noise.philox4x32(pi, key)
    assert [int(w) for w in out] == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


def test_same_noise_as_the_reference():
    streams = [(0, 0, 0), (2**64 - 1, 2**32 - 1, 2**40 + 5), (2**63, 1, 17)]
    dense = torch_noise.noise_bits(streams, torch.arange(1001))
    some = torch.tensor([[0, 2**31 - 1, 151_935], [5, 4, 4], [1000, 0, 7]])
    sparse = torch_noise.noise_bits(streams, some)
    for i, stream in enumerate(streams):
        want = noise.noise_bits(*stream, np.arange(1001)).tolist()
        assert dense[i].tolist() == want
        assert sparse[i].tolist() == noise.noise_bits(*stream, some[i].numpy()).tolist()
        g = torch_noise.gumbel(streams, torch.arange(1001))[i]
        np.testing.assert_allclose(
            g.numpy(), noise.gumbel(*stream, np.arange(1001)), rtol=1e-13, atol=1e-14
        )
