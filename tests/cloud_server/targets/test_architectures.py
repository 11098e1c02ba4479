"""Small models of many kinds, batched with neighbours and rolled back, against ``generate``."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from outrider.cloud_server.targets.base import Row  # noqa: E402
from outrider.cloud_server.targets.oracle import OracleTarget  # noqa: E402
from outrider.cloud_server.targets.transformers import TransformersTarget  # noqa: E402
from outrider.protocol.decoding.sampling import Sampling  # noqa: E402
from outrider.protocol.errors import BackendError  # noqa: E402

BATCHED = {
    "Llama": {},
    "Qwen2": {},
    "Qwen2 with windows": {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    "Qwen3": {"head_dim": 8},
    "Gemma2": {"head_dim": 8, "sliding_window": 8},
    "Gemma3Text": {
        "head_dim": 8,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "Mistral": {"sliding_window": 8},
    "GPT2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
    "GptOss": {
        "head_dim": 8,
        "sliding_window": 8,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 8192,
    },
    "Llama4Text": {
        "head_dim": 8,
        "attention_chunk_size": 8,
        "num_local_experts": 2,
        "intermediate_size_mlp": 64,
    },
    "Phi3": {"pad_token_id": 0},
}
ONE_BY_ONE = {
    "Bloom": ({"n_layer": 2, "n_head": 4}, "takes no position ids"),
    "Falcon": ({}, "its attention cannot be replaced"),
}
PROMPTS = [[5, 9, 30, 11, 7], [8, 4], [40, 41, 42, 43, 44, 45, 46, 3, 3, 9, 12, 13]]
LENGTH = 30


def generate(folder, prompt):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    out = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        do_sample=False,
        max_new_tokens=LENGTH,
        eos_token_id=None,
        pad_token_id=0,
    )
    return out[0, len(prompt) :].tolist()


def drafted(target, prompts, length, truth):
    """What the target answers, rows judged together, when drafts are the ``truth`` or wrong."""
    rng = random.Random(0)
    texts, cuts = [list(p) for p in prompts], [0] * len(prompts)
    done = [len(p) + length for p in prompts]
    while open_ := [s for s, text in enumerate(texts) if len(text) < done[s]]:
        rows = []
        for s in rng.sample(open_, rng.randint(1, len(open_))):
            said = len(texts[s]) - len(prompts[s])
            chain = truth[s][said : said + rng.choice((0, 1, 4, 7))]
            chain = [t if rng.random() < 0.8 else rng.randrange(60) for t in chain]
            cut = min(cuts[s], len(texts[s]) - 1)
            rows.append(Row(s, cut, [*texts[s], *chain], len(chain) + 1, Sampling(), 1))
        for row, decided in zip(rows, target.forward(rows), strict=True):
            chain = row.ids[len(texts[row.slot]) :]
            kept = 0
            while kept < len(chain) and chain[kept] == decided.ids[kept]:
                kept += 1
            cuts[row.slot] = len(texts[row.slot]) + kept
            texts[row.slot] += decided.ids[: kept + 1]
    return [text[len(p) : end] for text, p, end in zip(texts, prompts, done, strict=True)]


@pytest.mark.parametrize("kind", BATCHED)
def test_batched_with_wrong_drafts_is_generate(toy_factory, kind):
    folder = toy_factory(kind.partition(" ")[0], **BATCHED[kind])
    target = TransformersTarget.load(str(folder), slots=3)
    assert isinstance(target, TransformersTarget)
    expected = [generate(folder, prompt) for prompt in PROMPTS]
    assert drafted(target, PROMPTS, LENGTH, expected) == expected


@pytest.mark.parametrize("kind", ONE_BY_ONE)
def test_what_cannot_be_batched_is_run_one_by_one_and_said(toy_factory, kind, caplog):
    config, reason = ONE_BY_ONE[kind]
    folder = toy_factory(kind, **config)
    target = TransformersTarget.load(str(folder), slots=3)
    assert isinstance(target, OracleTarget)
    (said,) = [r.getMessage() for r in caplog.records if r.name.startswith("outrider")]
    assert reason in said
    assert str(folder) in said
    expected = [generate(folder, prompt) for prompt in PROMPTS]
    assert drafted(target, PROMPTS, LENGTH, expected) == expected


def test_a_recurrent_layer_among_others_is_refused(toy_factory):
    folder = toy_factory("Qwen3Next", head_dim=8)
    with pytest.raises(BackendError, match="LinearAttentionLayer, which cannot be rewound"):
        TransformersTarget.load(str(folder))
