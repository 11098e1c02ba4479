"""What the targets tell of each decided token, against transformers' own log-softmax."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from outrider.cloud_server.targets import hf_target  # noqa: E402
from outrider.cloud_server.targets.base import Decided, Row, Target  # noqa: E402
from outrider.cloud_server.targets.transformers import TransformersTarget  # noqa: E402
from outrider.protocol.decoding.row import SparseRow  # noqa: E402
from outrider.protocol.decoding.sampling import Sampling  # noqa: E402

PROMPT = [5, 9, 30, 11, 7]
TOP = 4
SAMPLINGS = [
    Sampling(),
    Sampling(temperature=0.9, top_p=0.8, frequency_penalty=0.6, logit_bias=((4, 9.0),), seed=3),
]


@pytest.fixture(scope="module")
def model(twins):
    return transformers.AutoModelForCausalLM.from_pretrained(twins[0], dtype=torch.float32).eval()


@pytest.fixture(scope="module", params=["batched", "oracle", "on device", "llama"])
def target(twins, request):
    if request.param == "llama":
        pytest.importorskip("llama_cpp")
        from outrider.cloud_server.targets.llama_cpp import LlamaTarget

        made: Target = LlamaTarget.load(twins[1], slots=2, n_ctx=96, leaves=4)
    else:
        batched = request.param != "oracle"
        made = TransformersTarget.load(str(twins[0]), slots=2, threads=1, batched=batched)
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "on device":  # else a small vocabulary is decided by numpy
            patch.setattr(hf_target, "SMALL", 0)
        yield made
    made.close()


def check(model, told: Decided, texts: Sequence[Sequence[int]]) -> None:
    """``texts[i]``: the ids before the i-th decided token."""
    assert len(told.logprobs) == len(told.ids) == len(texts)
    for token, ids, told_of_it in zip(told.ids, texts, told.logprobs, strict=True):
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0, -1]
        expected = torch.log_softmax(logits.double(), 0)
        values, likeliest = expected.topk(TOP)
        assert told_of_it.logprob == pytest.approx(float(expected[token]), abs=2e-4)
        assert [i for i, _ in told_of_it.top] == likeliest.tolist()
        assert [v for _, v in told_of_it.top] == pytest.approx(values.tolist(), abs=2e-4)


def row(ids: Sequence[int], want: int, sampling: Sampling, **more) -> Row:
    return Row(0, 0, ids, want, sampling, len(PROMPT), logprobs=TOP, **more)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled"])
def test_of_a_chain(target, model, sampling) -> None:
    """Accepted, recovered and bonus alike; bias, penalties and cuts are not in it."""
    alone = [msgspec.structs.replace(row(PROMPT, 1, sampling), logprobs=None)]
    assert target.forward(alone)[0].logprobs == ()
    first = target.forward([row(PROMPT, 1, sampling)])[0]
    check(model, first, [PROMPT])
    text = [*PROMPT, first.ids[0]]
    second = target.forward([row(text, 1, sampling)])[0].ids[0]
    for guesses in ([first.ids[0], second], [first.ids[0], (second + 1) % 4096]):
        ids = [*PROMPT, *guesses]
        told = target.forward([row(ids, 3, sampling)])[0]
        check(model, told, [ids[: len(PROMPT) + i] for i in range(3)])


def test_of_a_tree(target, model) -> None:
    if target.info.leaves == 1:
        pytest.skip("it takes chains only")
    sampling = SAMPLINGS[0]
    first = target.forward([row(PROMPT, 1, sampling)])[0].ids[0]
    second = target.forward([row([*PROMPT, first], 1, sampling)])[0].ids[0]
    wrong = (first + 1) % 4096
    nodes, parents = [wrong, first, second, wrong], (-1, -1, 1, 1)
    told = target.forward([row([*PROMPT, *nodes], 5, sampling, parents=parents)])[0]
    assert told.ids[:2] == (first, second)
    check(model, told, [PROMPT, [*PROMPT, first], [*PROMPT, first, second]])


def test_under_the_ratio_rule(target, model) -> None:
    """Of a draft that was let through and of what came in a refused one's place."""
    sampling = Sampling(temperature=1.0, seed=5, ratio=True)
    sure = target.forward([row(PROMPT, 1, Sampling())])[0].ids[0]
    drawn = SparseRow((sure, 4095), (1, 63))  # far below what the target gives it: let through
    bad = SparseRow((4094,), (64,))
    told = target.forward([row([*PROMPT, sure, 4094], 3, sampling, rows=(drawn, bad))])[0]
    assert told.ids[0] == sure
    check(model, told, [PROMPT, [*PROMPT, sure]][: len(told.ids)])
    assert len(told.ids) == 2
