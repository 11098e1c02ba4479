"""Log-probabilities at the endpoint: the target's, one for each token that is in the text.

A pass over one token and one over five differ by rounding, with 16-bit weights in the fourth digit.
"""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest

from outrider.cloud_server.targets.base import Row, Target
from outrider.protocol.decoding.sampling import Sampling
from outrider.runtime.text.tokenizer import Tokenizer


def alone(target: Target, tokenizer: Tokenizer, prompt: str, ids: list[int], top: int):
    """(token, log-probability, likeliest ids) of each of ``ids``, one pass a token."""
    text = tokenizer.encode_prompt(prompt)
    found, cut = [], 0
    for token in ids:
        told = target.forward([Row(0, cut, text, 1, Sampling(), len(text), logprobs=top)])[0]
        # The target is greedy: what it decides is the token that it is asked about.
        assert told.ids == (token,)
        found.append((token, told.logprobs[0].logprob, [i for i, _ in told.logprobs[0].top]))
        cut = len(text)
        text = [*text, token]
    return found


def test_they_are_the_targets(embedded, reference, tokenizer) -> None:
    prompt = "And it came to pass"
    _, _, came = embedded.call(
        "POST",
        "/v1/completions",
        {"prompt": prompt, "max_tokens": 24, "temperature": 0, "logprobs": 3},
    )
    (choice,) = came["choices"]
    told = choice["logprobs"]
    assert "".join(told["tokens"]) == choice["text"]
    expected = alone(reference, tokenizer, prompt, tokenizer.encode(choice["text"]), 3)
    assert told["token_logprobs"] == pytest.approx([lp for _, lp, _ in expected], abs=2e-3)
    for (_, _, likeliest), top in zip(expected, told["top_logprobs"], strict=True):
        assert list(top) == [tokenizer.decode([i]) for i in likeliest]
    assert told["text_offset"] == list(np.cumsum([0, *map(len, told["tokens"])])[:-1])


def test_a_chat_by_the_openai_client(embedded) -> None:
    client = embedded.client()
    asked = {
        "model": client.models.list().data[0].id,
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 16,
        "seed": 5,
        "logprobs": True,
        "top_logprobs": 2,
    }
    whole = client.chat.completions.create(**asked).choices[0]
    assert whole.logprobs is not None
    content = whole.logprobs.content
    assert "".join(entry.token for entry in content) == whole.message.content
    for entry in content:
        assert len(entry.top_logprobs) == 2
        assert entry.bytes == list(entry.token.encode())
        assert entry.logprob <= entry.top_logprobs[0].logprob <= 0
    streamed = [
        entry
        for chunk in client.chat.completions.create(**asked, stream=True)
        for choice in chunk.choices
        if choice.logprobs
        for entry in choice.logprobs.content or []
    ]
    assert [e.logprob for e in streamed] == pytest.approx([e.logprob for e in content], abs=5e-3)
    assert [e.token for e in streamed] == [e.token for e in content]


def test_stops_and_characters_cut_anywhere(written, tokenizer: Tokenizer) -> None:
    """Half characters, a stop string over several tokens: only what is in the text."""
    pieces = [[byte] for byte in "né".encode()]
    known = {tokenizer.token_bytes(i): i for i in range(tokenizer.size)}
    half = [known[bytes(p)] for p in pieces if bytes(p) in known]
    if len(half) != 3:
        pytest.skip("the vocabulary has no single bytes")
    running = written([*half, *tokenizer.encode(" of the end here")])
    for stream in (False, True):
        body = {"prompt": "And it came to pass", "max_tokens": 16, "temperature": 0}
        body |= {"logprobs": 0, "stop": "the end", "stream": stream}
        _, _, came = running.call("POST", "/v1/completions", body)
        chunks = [came]
        if stream:
            lines = [x.removeprefix("data: ") for x in came.split("\n\n") if x]
            chunks = [json.loads(line) for line in lines if line != "[DONE]"]
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        assert "".join(c["text"] for c in choices) == "né of "
        told = [c["logprobs"] for c in choices]
        tokens = [t for part in told for t in part["tokens"]]
        offsets = [t for part in told for t in part["text_offset"]]
        assert len(offsets) == len(tokens)
        assert offsets[:4] == [0, 1, 1, 2]
        assert max(offsets) < len("né of ")
        assert all(part["top_logprobs"] is None for part in told)


@pytest.mark.parametrize(
    ("path", "more", "param"),
    [
        ("chat/completions", {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ("chat/completions", {"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ("completions", {"logprobs": 21}, "logprobs"),
        ("completions", {"logprobs": True}, "logprobs"),
    ],
)
def test_refused(embedded, path, more, param) -> None:
    body = {"prompt": "a", "messages": [{"role": "user", "content": "a"}], **more}
    status, _, came = embedded.call("POST", f"/v1/{path}", body)
    assert (status, came["error"]["param"]) == (400, param)


def test_a_cloud_that_tells_none(embedded) -> None:
    client = embedded.service.client
    before = client.welcome

    def without() -> None:
        client.machine.welcome = msgspec.structs.replace(before, features=("trees",))

    embedded.on_loop(without)
    try:
        status, came = embedded.chat(logprobs=True)
    finally:
        embedded.on_loop(lambda: setattr(client.machine, "welcome", before))
    assert status == 400
    assert came["error"]["param"] == "logprobs"
    assert "upgrade" in came["error"]["message"]
