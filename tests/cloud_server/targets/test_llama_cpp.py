from __future__ import annotations

import math
import sys

import numpy as np
import pytest

pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.llama

from outrider.cloud_server import replay  # noqa: E402
from outrider.cloud_server.targets.base import Row  # noqa: E402
from outrider.cloud_server.targets.llama_cpp import LlamaTarget  # noqa: E402
from outrider.protocol.decoding.sampling import Sampling  # noqa: E402
from outrider.protocol.errors import BackendError, SettingError  # noqa: E402

GREEDY = Sampling()
PROMPT = [5, 900, 3000, 11, 7]
SAMPLINGS = [
    GREEDY,
    Sampling(temperature=1, seed=3),
    Sampling(temperature=0.8, top_k=20, top_p=0.9, repetition_penalty=1.3, seed=4),
    Sampling(frequency_penalty=0.5, logit_bias=((4, 2.0),)),
]


def row(ids, *, cut=0, want=1, slot=0, sampling=GREEDY):
    return Row(slot, cut, ids, want, sampling, min(len(PROMPT), len(ids)))


@pytest.fixture(scope="module")
def target(twins):
    target = LlamaTarget.load(twins[1], slots=3, n_ctx=96, n_batch=32)
    yield target
    target.close()


@pytest.fixture(scope="module")
def twin(twins):
    pytest.importorskip("transformers")
    from outrider.cloud_server.targets.transformers import TransformersTarget

    return TransformersTarget.load(str(twins[0]), slots=1, threads=1)


def test_facts(target):
    info = target.info
    assert (info.name, info.usable, info.n_ctx, info.slots) == ("toy", 4096, 96, 3)
    assert (info.dtype, info.device) == ("gguf, f32 cache", "cpu")
    assert 0 in info.eos


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_same_text_as_transformers(target, twin, sampling):
    """Two implementations of one float32 model: the same text, scores to a few 1e-5."""
    text = replay.plain(twin, PROMPT, sampling, 40)
    assert replay.plain(target, PROMPT, sampling, 40) == text
    ids = PROMPT + text
    ours = target.score(row(ids, want=40, sampling=sampling), [*text[1:], 1])
    theirs = twin.score(row(ids, want=40, sampling=sampling), [*text[1:], 1])
    np.testing.assert_allclose(ours[:-1], theirs[:-1], atol=1e-3)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("k", [1, 3, 7])
def test_a_pass_over_many_decides_like_passes_over_one(target, sampling, k):
    want = replay.plain(target, PROMPT, sampling, 24)
    got, cut = [], 0
    while len(got) < 24:
        ids = PROMPT + got
        chain = want[len(got) : len(got) + k]
        decided = target.forward(
            [row(ids + chain, cut=cut, want=len(chain) + 1, sampling=sampling)]
        )[0]
        got += decided.ids
        cut = len(PROMPT) + len(got) - 1
    assert got[:24] == want


def test_rollback_is_bit_for_bit(target):
    straight = target.forward([row([*PROMPT, 1, 2, 3], want=3)])[0]
    target.forward([row(PROMPT)])
    clean = target.forward([row([*PROMPT, 1, 2, 3], cut=5, want=3)])[0]
    for wrong in ([50], [8, 8, 8], [3] * 20):
        target.forward([row([*PROMPT, *wrong], cut=5)])
        assert target.lengths()[0] == 5 + len(wrong)
        assert target.forward([row([*PROMPT, 1, 2, 3], cut=5, want=3)])[0] == clean
    assert straight.ids == clean.ids


def test_slots_in_one_ragged_pass(target):
    """More tokens than one batch holds, other lengths, cuts and wants, slots in any order."""
    prompts = [PROMPT, [1, 2], list(range(40, 85))]
    alone = [replay.plain(target, p, GREEDY, 8) for p in prompts]
    texts, cuts = [list(p) for p in prompts], [0, 0, 0]
    for _ in range(8):
        rows = [row(t, cut=c, slot=s) for s, (t, c) in enumerate(zip(texts, cuts, strict=True))]
        for s, decided in enumerate(target.forward(rows[::-1])[::-1]):
            cuts[s] = len(texts[s])
            texts[s].append(decided.ids[0])
    assert [t[len(p) :] for t, p in zip(texts, prompts, strict=True)] == alone
    assert [len(d.ids) for d in target.forward([row(PROMPT, want=0), row([1, 2], slot=1)])] == [
        0,
        1,
    ]
    assert target.forward([]) == []


def test_a_beginning_is_copied_from_another_slot(target):
    straight = target.forward([row([*PROMPT, 1, 2, 3], want=3)])[0]
    target.forward([row([*PROMPT, *[8] * 9])])
    cut = len(PROMPT)
    both = [
        Row(1, cut, [*PROMPT, 1, 2, 3], 3, GREEDY, cut, source=0),
        row([*PROMPT, 4], cut=cut),  # the source goes on with another text in the same pass
    ]
    copied = target.forward(both)[0]
    assert copied.ids == straight.ids
    np.testing.assert_allclose(copied.margins, straight.margins, atol=1e-4)
    assert target.lengths()[:2] == [cut + 1, cut + 3]


def test_all_rows_are_one_decode(target, monkeypatch):
    """Sessions of different lengths and counts are one call of llama.cpp."""
    from outrider.runtime.lm import llama_cpp

    target.forward([row([*PROMPT, 1]), row([1, 2], slot=1), row([3], slot=2)])
    calls, real = [], llama_cpp.library()

    class Counting:
        def __getattr__(self, name):
            return getattr(real, name)

        def llama_decode(self, context, batch):
            calls.append(batch.n_tokens)
            return real.llama_decode(context, batch)

    monkeypatch.setattr(llama_cpp, "library", Counting)
    rows = [
        row([*PROMPT, 1, 2, 3], cut=len(PROMPT), want=3),
        row([1, 2, 3], cut=2, slot=1),
        row([3, 4, 5, 6, 7], cut=1, want=2, slot=2),
    ]
    target.forward(rows)
    assert calls == [3 + 1 + 4]


def test_score_of_removed_tokens(target):
    sampling = Sampling(temperature=0.5, top_k=1, seed=8)
    chosen = target.forward([row(PROMPT, sampling=sampling)])[0]
    assert chosen.margins == (math.inf,)
    other = (chosen.ids[0] + 1) % 4096
    assert target.score(row(PROMPT, sampling=sampling), [other])[0][1] == -math.inf


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (row(PROMPT, slot=3), "names no slot"),
        (row([*PROMPT, 1], cut=6), "keeps 6 ids of a cache of 5"),
        (row([1] * 97), "has 97 ids, but the context holds 96"),
        (row([1, 4096]), "feeds token 4096"),
    ],
)
def test_rows_that_do_not_fit(target, bad, says):
    target.forward([row(PROMPT)])
    with pytest.raises(BackendError, match=says):
        target.forward([bad])
    assert target.lengths()[0] == 5


def test_a_full_context(target):
    ids = list(range(96))
    assert len(target.forward([row(ids, want=2)])[0].ids) == 2


def test_loading_errors(twins, tmp_path, monkeypatch):
    path = tmp_path / "cut.gguf"
    path.write_bytes(twins[1].read_bytes()[:1000])
    with pytest.raises(BackendError, match="cut.gguf"):
        LlamaTarget.load(path)
    with pytest.raises(BackendError, match="none.gguf"):
        LlamaTarget.load(tmp_path / "none.gguf")
    with pytest.raises(SettingError, match="kv"):
        LlamaTarget.load(twins[1], kv="f8")


def test_closing_twice_and_a_name(twins):
    target = LlamaTarget.load(twins[1], slots=1, n_ctx=32, name="mine", kv="f16")
    assert (target.info.name, target.info.dtype) == ("mine", "gguf, f16 cache")
    target.close()
    target.close()
    with pytest.raises(BackendError, match="closed"):
        target.forward([row(PROMPT)])


def test_missing_library(twins, monkeypatch):
    from outrider.runtime.lm import llama_library

    getattr(llama_library.library, "cache_clear", lambda: None)()
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(BackendError, match=r"\.\[.*llama"):
        LlamaTarget.load(twins[1])


def test_a_fixed_width_makes_the_draft_length_invisible(twins):
    """To the last bit: margins are compared, not only choices."""
    target = LlamaTarget.load(twins[1], slots=1, n_ctx=64, verify_width=6)
    assert target.info.n_ctx == 64
    chain = [4, 8, 15, 16, 23, 42, 7, 1]
    whole = target.forward([row([*PROMPT, *chain], want=9)])[0]
    for k in range(9):
        target.forward([row(PROMPT[:-1], want=0)])
        ids = [*PROMPT, *chain[:k]]
        part = target.forward([row(ids, cut=4, want=k + 1)])[0]
        assert part.ids == whole.ids[: k + 1]
        assert part.margins == whole.margins[: k + 1]
        assert target.lengths() == [len(ids)]
    assert len(target.forward([row([i % 60 for i in range(64)], want=3)])[0].ids) == 3
    target.close()
