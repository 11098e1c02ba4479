"""Whatever is drafted, the answer is the 4-bit target's own, token by token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from outrider.edge_client.answer import Answer
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.request import Request
from outrider.runtime.text.tokenizer import Tokenizer

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]

LENGTHS = range(1, 9)
TOKENS = 16
PROMPTS = {
    "code": "def quicksort(values: list[int]) -> list[int]:\n    ",
    "prose": "The old lighthouse keeper climbed the stairs every evening, because",
    "german": "Die Straße führt über die Brücke zum Schloss, und am Abend",
    "chinese": "从前有一座山，山上有一座庙，庙里",
    "emoji": "👩‍👩‍👧‍👦 🇩🇪 👍🏽 A family, a flag and a thumb. More emoji: 🎉🙂",
    "white space": "|  a |\tb   |\n|----|------|\n|    1 |\t\t  2 |\n\n\n|   ",
}
COUPLED = {
    "temperature": {},
    "hot": {"temperature": 1.5},
    "top-k": {"top_k": 20},
    "top-p": {"top_p": 0.9},
    "min-p": {"min_p": 0.05},
    "repetition": {"repetition_penalty": 1.2, "repetition_window": -1},
    "presence": {"presence_penalty": 0.7},
    "frequency": {"frequency_penalty": 0.7},
    "bias": {"logit_bias": ((198, -5.0), (220, 3.0), (13, -1000.0))},
    "all": {
        "top_k": 50,
        "top_p": 0.95,
        "min_p": 0.01,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.2,
        "logit_bias": ((198, -1.0),),
    },
}


@pytest.mark.parametrize("kind", PROMPTS)
def test_greedy_at_every_draft_length(
    kind: str, ask: Any, judge: Any, note: Any, tokenizer: Tokenizer
) -> None:
    request = Request(max_tokens=TOKENS, ids=tuple(tokenizer.encode_prompt(PROMPTS[kind])))
    answers: list[Answer] = ask((request, 0), *((request, length) for length in LENGTHS))
    for length, answer in zip((0, *LENGTHS), answers, strict=True):
        found = judge(answer, Sampling())
        note(f"greedy, {kind}", length, answer, found)
        assert len(answer.ids) == TOKENS or answer.reason == "stop"
        assert found.exact, (length, found, answer.text)
        assert (answer.drafted > 0) == (length > 0)
    # Plain streaming and the replay make the same passes: not even a near-tie is allowed.
    assert judge(answers[0], Sampling()).identical


@pytest.mark.parametrize("processors", COUPLED)
def test_coupled_with_every_processor(
    processors: str, ask: Any, judge: Any, note: Any, tokenizer: Tokenizer
) -> None:
    sampling = Sampling(**{"temperature": 0.8, "seed": 7, **COUPLED[processors]})
    ids = tuple(tokenizer.encode_prompt(PROMPTS["code"]))
    request = Request(max_tokens=TOKENS, ids=ids, sampling=sampling)
    (answer,) = ask((request, 4))
    found = judge(answer, sampling)
    note(f"coupled, {processors}", 4, answer, found)
    assert found.exact, (found, answer.text)
    assert answer.drafted > 0


def test_a_prompt_of_two_thousand_tokens(
    ask: Any, judge: Any, note: Any, tokenizer: Tokenizer, long_text: Callable[[], str]
) -> None:
    ids = tokenizer.encode_prompt(long_text())[:2000]
    (answer,) = ask((Request(max_tokens=12, ids=tuple(ids)), 4))
    assert len(answer.prompt_ids) == 2000
    found = judge(answer, Sampling())
    note("long prompt", 4, answer, found)
    assert found.exact, (found, answer.text)


@pytest.fixture
def long_text() -> Callable[[], str]:
    """Some source code, long enough."""

    def read() -> str:
        import outrider.protocol.decoding.processors as first
        import outrider.protocol.decoding.rules as second

        return "".join(open(m.__file__, encoding="utf-8").read() for m in (first, second))

    return read
