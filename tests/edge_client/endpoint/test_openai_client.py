"""The ``openai`` client, as apps use it, against the embedded pair."""

from __future__ import annotations

import openai
import pytest

from outrider.cloud_server.replay import plain
from outrider.protocol.decoding.sampling import Sampling

PROMPT = "And it came to pass"
CHAT = [{"role": "user", "content": PROMPT}]


def text_of(reference, tokenizer, ids, sampling: Sampling, tokens: int) -> str:
    """What the target alone says after these ids."""
    found = plain(reference, list(ids), sampling, tokens)
    ends = [i for i, token in enumerate(found) if token in tokenizer.eos]
    return tokenizer.decode(found[: ends[0]] if ends else found)


def test_models(embedded) -> None:
    client = embedded.client()
    listed = client.models.list().data
    assert [model.object for model in listed] == ["model"]
    assert client.models.retrieve(listed[0].id).id == listed[0].id
    with pytest.raises(openai.NotFoundError, match="not served here"):
        client.models.retrieve("gpt-4o")


def test_a_chat_is_the_targets_own_text(embedded, reference, tokenizer) -> None:
    made = embedded.client().chat.completions.create(
        model=embedded.service.model, messages=CHAT, temperature=0, max_completion_tokens=20
    )
    choice = made.choices[0]
    alone = text_of(reference, tokenizer, tokenizer.encode_chat(CHAT), Sampling(), 20)
    assert (made.object, choice.message.role, choice.index) == ("chat.completion", "assistant", 0)
    assert choice.message.content == alone
    assert choice.finish_reason == "length"
    assert made.usage is not None
    assert made.usage.prompt_tokens == len(tokenizer.encode_chat(CHAT))
    assert made.usage.completion_tokens == 20
    assert made.usage.total_tokens == made.usage.prompt_tokens + 20


def test_a_stream_says_the_same_as_the_whole(embedded) -> None:
    client = embedded.client()
    asked = {
        "model": embedded.service.model,
        "messages": CHAT,
        "temperature": 0.8,
        "seed": 7,
        "max_tokens": 20,
    }
    whole = client.chat.completions.create(**asked)
    chunks = list(
        client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    ends = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert ends == [None] * (len(ends) - 1) + ["length"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 20
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert {chunk.system_fingerprint for chunk in chunks} == {whole.system_fingerprint}


def test_a_stream_without_the_option_has_no_usage(embedded) -> None:
    chunks = embedded.client().chat.completions.create(
        model=embedded.service.model, messages=CHAT, max_tokens=3, stream=True
    )
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)


def test_completions(embedded, reference, tokenizer) -> None:
    client = embedded.client()
    ids = tokenizer.encode_prompt(PROMPT)
    alone = text_of(reference, tokenizer, ids, Sampling(), 16)
    made = client.completions.create(model=embedded.service.model, prompt=PROMPT, temperature=0)
    assert (made.object, made.choices[0].text) == ("text_completion", alone)
    by_ids = client.completions.create(model=embedded.service.model, prompt=ids, temperature=0)
    assert by_ids.choices[0].text == alone
    stream = client.completions.create(
        model=embedded.service.model, prompt=PROMPT, temperature=0, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in stream) == alone


def test_several_prompts_and_several_choices(embedded, reference, tokenizer) -> None:
    prompts = [PROMPT, "The quick brown"]
    made = embedded.client().completions.create(
        model=embedded.service.model, prompt=prompts, n=2, temperature=1, seed=3, max_tokens=8
    )
    assert [choice.index for choice in made.choices] == [0, 1, 2, 3]
    for at, choice in enumerate(made.choices):
        sampling = Sampling(temperature=1, seed=3, choice=at % 2)
        ids = tokenizer.encode_prompt(prompts[at // 2])
        assert choice.text == text_of(reference, tokenizer, ids, sampling, 8)
    assert made.choices[0].text != made.choices[1].text
    assert made.usage is not None
    assert made.usage.prompt_tokens == sum(len(tokenizer.encode_prompt(p)) for p in prompts)


def test_streamed_choices_are_told_apart(embedded) -> None:
    asked = {
        "model": embedded.service.model,
        "messages": CHAT,
        "n": 3,
        "seed": 5,
        "max_tokens": 8,
    }
    client = embedded.client()
    whole = client.chat.completions.create(**asked)
    texts, ends = ["", "", ""], []
    for chunk in client.chat.completions.create(**asked, stream=True):
        choice = chunk.choices[0]
        texts[choice.index] += choice.delta.content or ""
        if choice.finish_reason:
            ends.append(choice.index)
    assert texts == [choice.message.content for choice in whole.choices]
    assert sorted(ends) == [0, 1, 2]


def test_a_seed_repeats_and_fresh_ones_differ(embedded) -> None:
    client = embedded.client()

    def once(seed: int | None) -> tuple[str | None, str | None]:
        made = client.chat.completions.create(
            model=embedded.service.model, messages=CHAT, seed=seed, max_tokens=12
        )
        return made.choices[0].message.content, made.system_fingerprint

    assert once(11) == once(11)
    assert once(-5) == once(-5)
    assert once(None)[0] != once(None)[0]


def test_the_seed_of_an_unseeded_answer_repeats_it(embedded) -> None:
    status, first = embedded.chat(temperature=1, max_tokens=12)
    assert status == 200
    figures = first["choices"][0]["outrider"]
    _, again = embedded.chat(temperature=1, max_tokens=12, seed=figures["seed"])
    assert again["choices"][0]["message"] == first["choices"][0]["message"]
    assert figures["rule"] == "coupled"


@pytest.mark.parametrize(
    "settings",
    [
        {"top_p": 0.5},
        {"presence_penalty": 1.5},
        {"frequency_penalty": -0.5},
        {"logit_bias": {"262": -100, "300": 5}},
    ],
    ids=lambda found: next(iter(found)),
)
def test_sampling_settings_reach_the_target(embedded, reference, tokenizer, settings) -> None:
    made = embedded.client().chat.completions.create(
        model=embedded.service.model,
        messages=CHAT,
        temperature=0.9,
        seed=9,
        max_tokens=16,
        **settings,
    )
    ours = {k: v for k, v in settings.items() if k != "logit_bias"}
    bias = tuple((int(k), float(v)) for k, v in settings.get("logit_bias", {}).items())
    sampling = Sampling(temperature=0.9, seed=9, logit_bias=bias, **ours)
    alone = text_of(reference, tokenizer, tokenizer.encode_chat(CHAT), sampling, 16)
    assert made.choices[0].message.content == alone


def test_the_usual_additions_and_ours(embedded, reference, tokenizer) -> None:
    client = embedded.client()
    asked = {"model": embedded.service.model, "messages": CHAT, "max_tokens": 16, "seed": 2}
    made = client.chat.completions.create(
        **asked,
        temperature=0.8,
        extra_body={"top_k": 3, "min_p": 0.1, "repetition_penalty": 1.2},
    )
    sampling = Sampling(temperature=0.8, seed=2, top_k=3, min_p=0.1, repetition_penalty=1.2)
    alone = text_of(reference, tokenizer, tokenizer.encode_chat(CHAT), sampling, 16)
    assert made.choices[0].message.content == alone
    for extras in ({"draft": False}, {"objective": "cost"}, {"trace": True}):
        again = client.chat.completions.create(
            **asked,
            temperature=0.8,
            extra_body={
                "top_k": 3,
                "min_p": 0.1,
                "repetition_penalty": 1.2,
                "outrider": extras,
            },
        )
        assert again.choices[0].message.content == alone


def test_drafting_can_be_turned_off(embedded) -> None:
    _, off = embedded.chat(max_tokens=20, outrider={"draft": False})
    _, on = embedded.chat(max_tokens=20)
    assert off["choices"][0]["message"] == on["choices"][0]["message"]
    assert (off["choices"][0]["outrider"]["drafts"], off["timings"]["draft_n"]) == (0, 0)
    assert off["choices"][0]["outrider"]["mode"] == "the request turned drafting off"


def test_what_it_cost_is_told(embedded) -> None:
    _, made = embedded.chat("And God said, Let there be light", max_tokens=32)
    figures, timings, usage = (
        made["choices"][0]["outrider"],
        made["timings"],
        made["usage"],
    )
    details = usage["completion_tokens_details"]
    drafted = details["accepted_prediction_tokens"] + details["rejected_prediction_tokens"]
    assert drafted == figures["drafted"] == timings["draft_n"]
    assert figures["accepted"] == timings["draft_n_accepted"]
    assert timings["predicted_n"] == usage["completion_tokens"] == 32
    assert timings["prompt_n"] + timings["cache_n"] == usage["prompt_tokens"]
    assert timings["prompt_ms"] > 0
    assert timings["predicted_ms"] > 0
    assert 0 < figures["target_passes"] <= 32


def test_a_conversation_keeps_its_earlier_turns(embedded, tokenizer) -> None:
    """Both ends still have them: only what is new is read."""
    turns = [{"role": "user", "content": "In the beginning God created the heaven"}]
    _, first = embedded.call(
        "POST", "/v1/chat/completions", {"messages": turns, "temperature": 0, "max_tokens": 12}
    )[1:]
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    turns += [first["choices"][0]["message"], {"role": "user", "content": "and the earth"}]
    turns[1].pop("refusal")
    _, second = embedded.call(
        "POST", "/v1/chat/completions", {"messages": turns, "temperature": 0, "max_tokens": 12}
    )[1:]
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= first["usage"]["prompt_tokens"]
    assert second["usage"]["prompt_tokens"] == len(tokenizer.encode_chat(turns)) > cached


def test_async_client(embedded) -> None:
    import asyncio

    async def main() -> list[str]:
        async with openai.AsyncOpenAI(base_url=embedded.base, api_key="none") as client:
            made = await client.chat.completions.create(
                model=embedded.service.model,
                messages=CHAT,
                temperature=0,
                max_tokens=8,
                stream=True,
            )
            return [chunk.choices[0].delta.content or "" async for chunk in made]

    status, whole = embedded.chat(max_tokens=8)
    assert status == 200
    assert "".join(asyncio.run(main())) == whole["choices"][0]["message"]["content"]
