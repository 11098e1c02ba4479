"""The ratio rule between real models: the law of the combined text, by chi-square.

The embedded pair is evaluated for real; over seeds the first token after a prompt is drawn, judged
and, where it is refused, drawn anew, as both ends do it.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from outrider.protocol.decoding.combine import (
    budget_of,
    combined,
    decide,
    own_proposal,
    parse,
    softmax,
)
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.decoding.sparse import draw
from outrider.runtime.lm.base import follow
from outrider.runtime.lm.drafter import Drafter
from outrider.runtime.lm.factory import load_lm
from outrider.runtime.text.tokenizer import load_tokenizer

MODELS = Path(str(files("outrider.models")))
SEEDS = 1500
PROMPT = "And it came to pass in those days, that the"


@pytest.fixture(scope="module")
def pair() -> Any:
    """(ids of the prompt, the drafter, the target's logits after them, usable ids)."""
    pytest.importorskip("llama_cpp")
    tokenizer = load_tokenizer(MODELS / "drafter")
    ids = list(tokenizer.encode_prompt(PROMPT))
    target = load_lm(MODELS / "target", "llama").lm
    drafter = Drafter(load_lm(MODELS / "drafter", "llama").lm, tokenizer.size)
    yield ids, drafter, follow(target, ids)[-1].copy(), tokenizer.size
    target.close()
    drafter.close()


def sigmas(found: np.ndarray, chances: np.ndarray) -> float:
    """Chi-square in standard deviations above its mean; what is expected less than 8 times is one
    cell."""
    expected = chances * found.sum()
    common = expected >= 8
    cells = np.array([*expected[common], expected[~common].sum()])
    counts = np.array([*found[common], found[~common].sum()])
    free = len(cells) - 1
    stat = float((((counts - cells) ** 2) / np.maximum(cells, 1e-9)).sum())
    return (stat - free) / float(np.sqrt(2 * free))


@pytest.mark.parametrize("proposer", ["edge", "cloud"])
@pytest.mark.parametrize("how", ["ensemble=0.5", "contrastive=0.3,keep=8,levels=64"])
def test_the_law_of_both(pair: Any, how: str, proposer: str) -> None:
    ids, drafter, logits, size = pair
    cloud, first = proposer == "cloud", len(ids)
    base = Sampling(temperature=0.7, ratio=True, collaborate=parse(how))
    guess = drafter.collaborate(ids, first, base, 1, budget=budget_of(base.collaborate))
    row = guess.rows[0]
    tokens, scores = combined(logits, base, ids, first, size, other=row)
    e = np.exp(scores - scores.max())
    r, p = np.zeros(size), np.zeros(size)
    r[tokens] = e / e.sum()
    kept, alone = softmax(logits, base, ids, first, size)
    p[kept] = alone
    found, accepted = np.zeros(size), 0
    for seed in range(SEEDS):
        sampling = msgspec.structs.replace(base, seed=seed)
        if cloud:
            token = own_proposal(logits, sampling, ids, first, size)
        else:
            token = draw(row, sampling, first)
        text = [*ids, token]
        (choice,) = decide([logits], sampling, text, first, size, rows=[row], scored=[cloud])
        found[choice.id] += 1
        accepted += choice.id == token
    assert sigmas(found, r) < 3.5
    assert sigmas(found, p) > 5.5  # not the target's own
    assert 0.2 * SEEDS < accepted < SEEDS
