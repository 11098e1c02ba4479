from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from outrider.cloud_server.targets import hf_target as module  # noqa: E402
from outrider.cloud_server.targets.base import Row  # noqa: E402
from outrider.cloud_server.targets.transformers import TransformersTarget  # noqa: E402
from outrider.protocol.decoding.rules import choose  # noqa: E402
from outrider.protocol.decoding.sampling import Sampling  # noqa: E402
from outrider.protocol.errors import BackendError  # noqa: E402

GREEDY = Sampling()
PROMPT = [5, 9, 30, 11, 7]
SAMPLINGS = [
    GREEDY,
    Sampling(temperature=1, seed=3),
    Sampling(temperature=0.8, top_k=20, top_p=0.9, repetition_penalty=1.3, seed=4),
    Sampling(frequency_penalty=0.5, logit_bias=((4, 2.0),)),
]


def row(ids, *, cut=0, want=1, slot=0, sampling=GREEDY, prompt_len=None):
    return Row(slot, cut, ids, want, sampling, len(PROMPT) if prompt_len is None else prompt_len)


@pytest.fixture(scope="module", params=[True, False], ids=["batched", "oracle"])
def target(toy, request):
    return TransformersTarget.load(str(toy), slots=3, threads=1, batched=request.param)


@pytest.fixture(scope="module")
def model(toy):
    return transformers.AutoModelForCausalLM.from_pretrained(toy, dtype=torch.float32).eval()


def plain_logits(model, ids):
    """Without any cache, in one pass: float32 [len(ids), width]."""
    with torch.inference_mode():
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].numpy()


def one_by_one(target, sampling, length, slot=0, prompt=PROMPT):
    ids, cut = list(prompt), 0
    for _ in range(length):
        decided = target.forward(
            [row(ids, cut=cut, slot=slot, sampling=sampling, prompt_len=len(prompt))]
        )[0]
        cut = len(ids)
        ids.append(decided.ids[0])
    return ids[len(prompt) :]


def test_facts(target, toy):
    info = target.info
    assert info.name == toy.name
    assert (info.usable, info.n_ctx, info.slots) == (60, 128, 3)
    assert (info.dtype, info.device) == ("float32", "cpu")
    assert info.eos == {2}


def test_greedy_equals_generate(target, model):
    out = model.generate(
        torch.tensor([PROMPT]),
        attention_mask=torch.ones(1, len(PROMPT), dtype=torch.int64),
        do_sample=False,
        max_new_tokens=40,
        eos_token_id=None,
        pad_token_id=0,
    )
    assert one_by_one(target, GREEDY, 40) == out[0, len(PROMPT) :].tolist()


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_choices_equal_the_reference(target, model, sampling):
    out = one_by_one(target, sampling, 25)
    ids = list(PROMPT)
    for token in out:
        assert choose(plain_logits(model, ids)[-1], sampling, ids, len(PROMPT), 60).id == token
        ids.append(token)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("k", [1, 2, 5, 8])
def test_a_pass_over_many_decides_like_passes_over_one(target, sampling, k):
    want = one_by_one(target, sampling, 24)
    target.forward([row(PROMPT, want=0)])
    got, ids = [], list(PROMPT)
    while len(got) < 24:
        cut = len(ids) - 1 if got else len(ids)
        chain = want[len(got) : len(got) + k]
        if cut == len(ids):  # the prompt is fed: judge by its last id, fed again
            cut -= 1
        decided = target.forward(
            [row(ids + chain, cut=cut, want=len(chain) + 1, sampling=sampling)]
        )[0]
        assert len(decided.margins) == len(decided.ids)
        got += decided.ids
        ids = PROMPT + got
    assert got[:24] == want


def test_rollback_leaves_no_trace(target):
    """After wrong drafts are cut, every decision and margin is as if they never had been."""
    straight = target.forward([row([*PROMPT, 1, 2, 3], want=3)])[0]
    for wrong in ([50], [8, 8, 8], [3] * 20):
        target.forward([row([*PROMPT, *wrong])])
        back = target.forward([row([*PROMPT, 1, 2, 3], cut=len(PROMPT), want=3)])[0]
        assert back.ids == straight.ids
        np.testing.assert_allclose(back.margins, straight.margins, atol=1e-4)
        assert target.lengths()[0] == len(PROMPT) + 3


def test_slots_do_not_see_each_other(target):
    prompts = [PROMPT, [1, 2], [40, 41, 42, 43, 44, 45, 46]]
    alone = [one_by_one(target, GREEDY, 8, prompt=p) for p in prompts]
    texts, cuts = [list(p) for p in prompts], [0, 0, 0]
    for _ in range(8):
        rows = [
            row(t, cut=c, slot=s, prompt_len=1)
            for s, (t, c) in enumerate(zip(texts, cuts, strict=True))
        ]
        for s, decided in enumerate(target.forward(rows[::-1])[::-1]):
            cuts[s] = len(texts[s])
            texts[s].append(decided.ids[0])
    assert [t[len(p) :] for t, p in zip(texts, prompts, strict=True)] == alone


def test_mixed_wants_and_settings_in_one_pass(target):
    rows = [
        row(PROMPT, want=0, slot=0),
        row(PROMPT, want=3, slot=1, sampling=SAMPLINGS[1], prompt_len=2),
        row(PROMPT, want=1, slot=2, sampling=SAMPLINGS[3]),
    ]
    together = target.forward(rows)
    assert [len(d.ids) for d in together] == [0, 3, 1]
    for r, d in zip(rows, together, strict=True):
        assert target.forward([r])[0].ids == d.ids
    assert target.forward([]) == []


def test_torch_decides_like_numpy(target, monkeypatch):
    rows = [row(PROMPT, want=2, slot=s, sampling=SAMPLINGS[s + 1], prompt_len=1) for s in range(3)]
    small = target.forward(rows)
    monkeypatch.setattr(module, "SMALL", 0)
    for ours, theirs in zip(small, target.forward(rows), strict=True):
        assert ours.ids == theirs.ids
        np.testing.assert_allclose(ours.margins, theirs.margins, atol=1e-4)
    assert target.forward([]) == []
    assert target.forward([row(PROMPT, want=0)])[0].ids == ()


def test_a_beginning_is_copied_from_another_slot(target):
    straight = target.forward([row([*PROMPT, 1, 2, 3], want=3)])[0]
    target.forward([row([*PROMPT, *[8] * 9]), row([1], slot=2, prompt_len=1)])
    both = [
        Row(1, 5, [*PROMPT, 1, 2, 3], 3, GREEDY, 5, source=0),
        row([*PROMPT, 4], cut=5),  # the source goes on with another text in the same pass
    ]
    copied = target.forward(both)[0]
    assert copied.ids == straight.ids
    np.testing.assert_allclose(copied.margins, straight.margins, atol=1e-4)
    assert target.lengths() == [6, 8, 1]
    with pytest.raises(BackendError, match="copies from slot 9"):
        target.forward([Row(1, 5, [*PROMPT, 1], 1, GREEDY, 5, source=9)])
    with pytest.raises(BackendError, match="keeps 5 ids of a cache of 1"):
        target.forward([Row(1, 5, [*PROMPT, 1], 1, GREEDY, 5, source=2)])


def test_score(target, model):
    sampling = Sampling(temperature=0.5, top_k=3, seed=8)
    ids = [*PROMPT, 4]
    decided = target.forward([row(ids, want=2, sampling=sampling)])[0]
    scored = target.score(row(ids, want=2, sampling=sampling), decided.ids)
    assert all(best == mine for best, mine in scored)
    worst = [int(plain_logits(model, ids)[i].argmin()) for i in (-2, -1)]
    assert all(s == -math.inf for _, s in target.score(row(ids, want=2, sampling=sampling), worst))
    (best, mine), *_ = target.score(row(ids, want=2), worst)
    z = plain_logits(model, ids)[-2]
    assert best - mine == pytest.approx(float(z.max() - z.min()), abs=1e-4)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (row(PROMPT, slot=3), "names no slot"),
        (row(PROMPT, slot=-1), "names no slot"),
        (row([*PROMPT, 1], cut=6), "keeps 6 ids of a cache of 5"),
        (row(PROMPT, cut=5), "feeds nothing"),
        (row([1] * 129), "has 129 ids, but the context holds 128"),
        (row(PROMPT, cut=3, want=3), "wants 3 decisions from 2"),
        (row(PROMPT, prompt_len=9), "a prompt of 9"),
        (row([1, 60], prompt_len=1), "feeds token 60"),
        (row([-1], prompt_len=1), "feeds token -1"),
    ],
)
def test_rows_that_do_not_fit(target, bad, says):
    target.forward([row(PROMPT)])
    with pytest.raises(BackendError, match=says):
        target.forward([bad])
    assert target.lengths()[0] == len(PROMPT), "a refused row must leave its slot alone"
    with pytest.raises(BackendError, match="twice"):
        target.forward([row(PROMPT), row(PROMPT)])


def test_a_full_context(target):
    ids = [i % 60 for i in range(128)]
    assert len(target.forward([row(ids, want=2)])[0].ids) == 2


def test_a_failed_pass_empties_its_slots(toy, monkeypatch):
    target = TransformersTarget.load(str(toy), slots=2)
    target.forward([row(PROMPT), row(PROMPT, slot=1)])
    with monkeypatch.context() as patch:
        patch.setattr(target, "_pass", lambda *_: (_ for _ in ()).throw(RuntimeError("no\nmemory")))
        with pytest.raises(BackendError, match="the forward pass failed: no memory"):
            target.forward([row([*PROMPT, 1], cut=5)])
    assert target.lengths() == [0, 5]
    assert target.forward([row([*PROMPT, 1])])[0].ids


def test_closing_twice(toy):
    target = TransformersTarget.load(str(toy), slots=1)
    target.close()
    target.close()
    with pytest.raises(BackendError, match="closed"):
        target.forward([row(PROMPT)])


# -- other kinds of models -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("Mistral", {"sliding_window": 8}),
        ("Gemma2", {"sliding_window": 8, "head_dim": 8}),
        ("Qwen2", {}),
        ("GPTNeoX", {}),
    ],
)
def test_past_a_sliding_window(toy_factory, kind, config):
    """Rolling back far past the window gives what a pass without any cache gives."""
    folder = toy_factory(kind, **config)
    target = TransformersTarget.load(str(folder), slots=1)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    rng = np.random.default_rng(1)
    ids = rng.integers(0, 60, 40).tolist()
    target.forward([row(ids, want=0)])
    for cut in (37, 22, 5, 30):
        ids = ids[:cut] + rng.integers(0, 60, 40 - cut).tolist()
        decided = target.forward([row(ids, cut=cut, want=40 - cut)])[0]
        want = plain_logits(model, ids)[cut:].argmax(1).tolist()
        assert list(decided.ids) == want
    if "sliding_window" in config:  # the window is really in use: without it other logits come out
        wide = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, sliding_window=None if kind == "Mistral" else 999
        ).eval()
        assert np.abs(plain_logits(wide, ids)[-1] - plain_logits(model, ids)[-1]).max() > 1e-2


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("Mamba", {"num_hidden_layers": 2, "hidden_size": 32}),
        ("RecurrentGemma", {"num_hidden_layers": 3, "head_dim": 8, "lru_width": 32}),
    ],
)
def test_recurrent_models_are_refused(toy_factory, kind, config):
    folder = toy_factory(kind, **config)
    with pytest.raises(BackendError, match="cannot be rewound") as caught:
        TransformersTarget.load(str(folder))
    assert "\n" not in str(caught.value)


def test_a_model_that_looks_ahead_is_refused(toy_factory):
    folder = toy_factory("Bert", head="LMHeadModel")
    with pytest.raises(BackendError, match=r"not a causal language model|cannot be rewound"):
        TransformersTarget.load(str(folder))


def test_a_cache_that_does_not_rewind_is_caught(toy, monkeypatch):
    """Even where every layer claims to: the self-test compares logits."""
    from transformers import cache_utils

    monkeypatch.setattr(
        cache_utils.DynamicLayer,
        "crop",
        lambda self, n: (
            setattr(self, "keys", self.keys[..., -self.keys.shape[-2] - n :, :])
            or setattr(self, "values", self.values[..., -self.values.shape[-2] - n :, :])
        ),
    )
    with pytest.raises(BackendError, match="cannot be rewound: feeding, cutting"):
        TransformersTarget.load(str(toy), batched=False)
    monkeypatch.setattr(cache_utils.DynamicLayer, "crop", lambda _self, _n: None)
    with pytest.raises(BackendError, match="cannot be rewound"):
        TransformersTarget.load(str(toy), batched=False)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_low_precision(toy, dtype):
    target = TransformersTarget.load(str(toy), dtype=dtype, slots=1)
    assert target.info.dtype == dtype
    out = one_by_one(target, GREEDY, 10)
    scores = target.score(row([*PROMPT, *out[:-1]], want=10), out)
    assert all(best - mine < 0.5 for best, mine in scores)


# -- a fixed width -------------------------------------------------------------------------------


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_fixed_width_makes_the_draft_length_invisible(toy, dtype, batched):
    """To the last bit: margins are compared, not only choices."""
    target = TransformersTarget.load(
        str(toy), dtype=dtype, slots=1, threads=1, batched=batched, verify_width=6
    )
    chain = [4, 8, 15, 16, 23, 42, 7, 1]
    whole = target.forward([row([*PROMPT, *chain], want=9)])[0]
    for k in range(9):
        target.forward([row(PROMPT[:-1], want=0, prompt_len=4)])
        ids = [*PROMPT, *chain[:k]]
        part = target.forward([row(ids, cut=4, want=k + 1)])[0]
        assert part.ids == whole.ids[: k + 1]
        assert part.margins == whole.margins[: k + 1]
        assert target.lengths() == [len(ids)]


@pytest.mark.parametrize("kind", ["Llama", "GPT2"])
def test_a_fixed_width_at_the_end_of_the_context(toy_factory, kind):
    folder = toy_factory(kind, n_embd=32, n_layer=2, n_head=4, n_positions=128)
    ids = [i % 60 for i in range(128)]
    plain = TransformersTarget.load(str(folder), slots=1).forward([row(ids, want=3)])[0]
    strict = TransformersTarget.load(str(folder), slots=1, verify_width=16)
    assert strict.info.n_ctx == 128
    assert strict.forward([row(ids, want=3)])[0].ids == plain.ids
