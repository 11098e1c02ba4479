"""The ratio rule on a device decides as the reference does, whatever else is in the pass."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from outrider.cloud_server.targets.base import Row  # noqa: E402
from outrider.cloud_server.targets.rows import decide_rows  # noqa: E402
from outrider.cloud_server.targets.torch_rows import decide_on_device  # noqa: E402
from outrider.protocol.decoding.sampling import Sampling  # noqa: E402
from outrider.protocol.decoding.sparse import Budget, draw, spread  # noqa: E402
from outrider.protocol.errors import BackendError  # noqa: E402

SETTINGS = [
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 30},
    {"temperature": 1.3, "top_p": 0.8, "presence_penalty": 0.4},
    {"temperature": 0.9, "min_p": 0.05, "logit_bias": ((3, 1.5),)},
]


def passes(rng, width, ties):
    """Rows of one pass and their logits: ratio chains, and rows of the other rules."""
    rows, logits = [], []
    for i in range(12):
        sampling = Sampling(seed=i, ratio=i % 4 != 3, **SETTINGS[i % len(SETTINGS)])
        if i == 5:
            sampling = Sampling()
        count = int(rng.integers(0, 5))
        z = (rng.standard_normal((count + 1, width)) * 2.5).astype(np.float32)
        z = np.round(z * 2) / 2 if ties else z
        near = (z + rng.standard_normal(z.shape) * 0.7).astype(np.float32)
        ids = [1, 2, 3, *rng.integers(0, width, 4).tolist()]
        chain, sent = [], []
        for j in range(count):
            past = [*ids, *chain]
            row = spread(near[j], sampling, past, 3, width, budget=Budget(12, 64)).row
            chain.append(draw(row, sampling, len(past)))
            sent.append(row)
        text = [*ids, *chain]
        own = sampling.rule.value == "ratio"
        kept = tuple(sent[: count - (i % 3 == 0)]) if own else ()
        rows.append(Row(i, 0, text, count + 1, sampling, 3, rows=kept))
        logits.append(z)
    return rows, logits


@pytest.mark.parametrize(("width", "ties"), [(40, True), (600, False), (12_000, False)])
def test_same_as_the_reference(width, ties):
    rng = np.random.default_rng(width)
    refused = accepted = 0
    for _ in range(6 if width < 10_000 else 2):
        rows, logits = passes(rng, width, ties)
        want = decide_rows(rows, [list(z) for z in logits], width)
        got = decide_on_device(rows, [torch.from_numpy(z) for z in logits], width)
        assert [d.ids for d in got] == [d.ids for d in want]
        for mine, theirs in zip(got, want, strict=True):
            assert mine.margins == pytest.approx(theirs.margins, abs=1e-9)
        refused += sum(len(d.ids) <= len(r.rows) for r, d in zip(rows, want, strict=True))
        accepted += sum(len(d.ids) > len(r.rows) > 0 for r, d in zip(rows, want, strict=True))
    assert refused
    assert accepted


def test_a_broken_row_is_said():
    rows, logits = passes(np.random.default_rng(1), 40, ties=False)
    logits[0][0, 3] = np.nan
    with pytest.raises(BackendError, match="finite"):
        decide_on_device(rows, [torch.from_numpy(z) for z in logits], 40)


def test_nothing_to_decide():
    assert decide_on_device([], [], 5) == []
