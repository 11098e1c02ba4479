"""What a client gets of the text: whole characters, no stop strings, the right ends."""

from __future__ import annotations

import itertools

import pytest

PROMPT = "And it came to pass"
FAMILY = "👩\u200d👩\u200d👧 déjà vu 日本語 "


def bytes_of(tokenizer, text: str) -> list[int]:
    """Ids of one byte each."""
    single = {tokenizer.token_bytes(i): i for i in range(tokenizer.size)}
    return [single[bytes([byte])] for byte in text.encode()]


def texts(events) -> list[str]:
    return [e["choices"][0]["text"] for e in events if e != "[DONE]" and e["choices"]]


def test_characters_split_over_tokens_arrive_whole(written, tokenizer) -> None:
    ids = bytes_of(tokenizer, FAMILY)
    running = written(ids)
    parts = texts(running.events(prompt=PROMPT, max_tokens=len(ids)))
    assert "".join(parts) == FAMILY
    assert not any("\ufffd" in part for part in parts)
    for tokens in range(1, 12):  # cut anywhere: what is no character by then is one mark
        made = running.events(prompt=PROMPT, max_tokens=tokens)
        assert "".join(texts(made)) == FAMILY.encode()[:tokens].decode("utf-8", "replace")


@pytest.mark.parametrize("stop", ["STOP", ["never", "STOP"], "é", "STTO STOP", "P"])
def test_stops_over_the_borders_of_chunks(written, tokenizer, stop) -> None:
    text = "caf some STTO STOP and é never"
    running = written(bytes_of(tokenizer, text))
    firsts = [text.index(s) for s in ([stop] if isinstance(stop, str) else stop)]
    events = running.events(prompt=PROMPT, stop=stop, max_tokens=60)
    assert "".join(texts(events)) == text[: min(firsts)]
    assert events[-2]["choices"][0]["finish_reason"] == "stop"
    assert events[-1] == "[DONE]"
    # Nothing was shown that could have become the stop string.
    so_far = list(itertools.accumulate(texts(events)))
    assert all(text.startswith(part) for part in so_far)


def test_a_stop_that_never_comes_is_given_back(written, tokenizer) -> None:
    running = written(bytes_of(tokenizer, "abcSTO"))
    made = running.events(prompt=PROMPT, stop="STOP", max_tokens=6)
    assert "".join(texts(made)) == "abcSTO"
    assert made[-2]["choices"][0]["finish_reason"] == "length"


def test_usage_counts_what_was_emitted(written, tokenizer) -> None:
    """And nothing after the end, however far was guessed."""
    end = next(iter(tokenizer.eos))
    ids = [*tokenizer.encode("one two three"), end, *tokenizer.encode(" four five six")]
    running = written(ids, eos=frozenset({end}))
    events = running.events(prompt=PROMPT, max_tokens=50, stream_options={"include_usage": True})
    assert "".join(texts(events)) == "one two three"
    assert events[-3]["choices"][0]["finish_reason"] == "stop"
    assert events[-2]["usage"]["completion_tokens"] == ids.index(end) + 1
    on = running.events(prompt=PROMPT, max_tokens=len(ids), ignore_eos=True)
    assert "".join(texts(on)) == "one two three four five six"


def test_a_prompt_at_the_edge_of_the_context(written, tokenizer) -> None:
    running = written("word ", n_ctx=64)
    ids = tokenizer.encode_prompt(PROMPT)
    full = (ids * 64)[:63]
    made = running.events(prompt=full, max_tokens=50)
    assert made[-2]["choices"][0]["finish_reason"] == "length"
    assert len("".join(texts(made))) > 0
    for beyond in (64, 65, 5000):
        status, _, came = running.call(
            "POST", "/v1/completions", {"prompt": (ids * 2000)[:beyond], "stream": True}
        )
        assert (status, came["error"]["code"]) == (400, "context_length_exceeded")
        assert "63 fit" in came["error"]["message"]
        assert came["error"]["param"] == "prompt"
    status, came = running.chat("word " * 500)
    assert (status, came["error"]["code"]) == (400, "context_length_exceeded")
    assert came["error"]["param"] == "messages"
    status, came = running.chat("word", ignore_eos=True)  # as much as fits
    assert status == 200
    assert came["usage"]["total_tokens"] == 64
    assert came["choices"][0]["finish_reason"] == "length"


def test_the_trace_has_every_token_once(written, tokenizer) -> None:
    running = written("some words that the drafter knows, and others. ", step=0.01)
    events = running.events(prompt=PROMPT, max_tokens=40, outrider={"trace": True})
    traced = [e["outrider"] for e in events if e != "[DONE]" and "outrider" in e]
    said = "".join(
        t.get("accepted", "") + t.get("target", "") + t.get("corrected", "") for t in traced
    )
    assert said == "".join(texts(events))
    assert sum(t.get("tokens", 0) for t in traced) == 40
    assert any(t.get("ahead") for t in traced)
    assert any(t.get("accepted_tokens", 0) for t in traced)
    assert all("mode" in t for t in traced)
