"""Requests that make no sense or cannot be honoured: OpenAI's error object, with the field."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from outrider.edge_client.endpoint import schema
from outrider.edge_client.endpoint.errors import ApiError

HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def message(content: Any, role: Any = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content}], "max_tokens": 2}


CHATS = {
    "no messages": ({}, "messages"),
    "empty messages": ({"messages": []}, "messages"),
    "messages are no list": ({"messages": "Hello"}, "messages"),
    "a message is no object": ({"messages": ["Hello"]}, "messages[0]"),
    "no role": ({"messages": [{"content": "Hello"}]}, "messages[0]"),
    "an unknown role": (message("Hello", "wizard"), "messages[0]"),
    "no content": ({"messages": [{"role": "user"}]}, "messages[0].content"),
    "content is a number": (message(7), "messages[0].content"),
    "an image": (
        message([{"type": "text", "text": "See"}, IMAGE]),
        "messages[0].content[1]",
    ),
    "sound": (message([{"type": "input_audio"}]), "messages[0].content[0]"),
    "a part without text": (message([{"type": "text"}]), "messages[0].content[0]"),
    "temperature too high": (HELLO | {"temperature": 101}, "temperature"),
    "temperature below": (HELLO | {"temperature": -1}, "temperature"),
    "temperature is text": (HELLO | {"temperature": "hot"}, "temperature"),
    "top_p": (HELLO | {"top_p": 1.5}, "top_p"),
    "top_k": (HELLO | {"top_k": -1}, "top_k"),
    "min_p": (HELLO | {"min_p": 2}, "min_p"),
    "n too small": (HELLO | {"n": 0}, "n"),
    "n too large": (HELLO | {"n": 17}, "n"),
    "max_tokens": (HELLO | {"max_tokens": 0}, "max_tokens"),
    "max_completion_tokens": (
        HELLO | {"max_completion_tokens": -3},
        "max_completion_tokens",
    ),
    "far too many tokens": (HELLO | {"max_tokens": 10**7}, "max_tokens"),
    "stop is empty": (HELLO | {"stop": ""}, "stop"),
    "a stop is empty": (HELLO | {"stop": ["x", ""]}, "stop"),
    "stop is a number": (HELLO | {"stop": 5}, "stop"),
    "too many stops": (HELLO | {"stop": [str(i) for i in range(99)]}, "stop"),
    "bias without an id": (HELLO | {"logit_bias": {"word": 1}}, "logit_bias"),
    "bias of an endless id": (HELLO | {"logit_bias": {"1" * 5000: 1}}, "logit_bias"),
    "bias too strong": (HELLO | {"logit_bias": {"5": 101}}, "logit_bias"),
    "bias of no token": (HELLO | {"logit_bias": {"999999": 1}}, "logit_bias"),
    "penalties differ": (
        HELLO | {"repetition_penalty": 1.1, "repeat_penalty": 1.2},
        "repeat_penalty",
    ),
    "stream_options alone": (HELLO | {"stream_options": {}}, "stream_options"),
    "an unknown objective": (
        HELLO | {"outrider": {"objective": "speed"}},
        "outrider.objective",
    ),
    "an unknown wish": (HELLO | {"outrider": {"drafts": 1}}, "outrider"),
    "tools": (
        HELLO | {"tools": [{"type": "function", "function": {"name": "f"}}]},
        "tools",
    ),
    "tool_choice alone": (HELLO | {"tool_choice": "required"}, "tool_choice"),
    "a tool's message": (message("4", "tool"), "messages[0]"),
    "a schema": (HELLO | {"response_format": {"type": "json_schema"}}, "response_format"),
    "functions": (HELLO | {"functions": [{"name": "f"}]}, "functions"),
    "modalities": (HELLO | {"modalities": ["text", "audio"]}, "modalities"),
    "audio": (HELLO | {"audio": {"voice": "x"}}, "audio"),
    "prediction": (
        HELLO | {"prediction": {"type": "content", "content": "x"}},
        "prediction",
    ),
    "reasoning_effort": (HELLO | {"reasoning_effort": "high"}, "reasoning_effort"),
    "store": (HELLO | {"store": True}, "store"),
    "web search": (HELLO | {"web_search_options": {}}, "web_search_options"),
}

COMPLETIONS = {
    "no prompt": ({}, "prompt"),
    "an empty prompt": ({"prompt": ""}, "prompt"),
    "an empty list": ({"prompt": []}, "prompt"),
    "one of them empty": ({"prompt": ["Hello", ""]}, "prompt"),
    "ids that are none": ({"prompt": [1, 10**9]}, "prompt"),
    "a mixture": ({"prompt": ["Hello", 5]}, "prompt"),
    "truth": ({"prompt": [True]}, "prompt"),
    "an object": ({"prompt": {}}, "prompt"),
    "too many choices": ({"prompt": ["a"] * 9, "n": 2}, "n"),
    "more than a message": ({"prompt": "".join(map(str, range(150_000)))}, "prompt"),
    "suffix": ({"prompt": "Hello", "suffix": "!"}, "suffix"),
    "echo": ({"prompt": "Hello", "echo": True}, "echo"),
    "best_of": ({"prompt": "Hello", "best_of": 2}, "best_of"),
    "logprobs": ({"prompt": "Hello", "logprobs": 21}, "logprobs"),
}


@pytest.mark.parametrize(("body", "param"), CHATS.values(), ids=CHATS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_chats(embedded, body, param, stream) -> None:
    asked = body | ({"stream": True} if stream and "stream_options" not in body else {})
    status, headers, came = embedded.call("POST", "/v1/chat/completions", asked)
    assert status == 400, came
    assert headers["content-type"] == "application/json"
    error = came["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert error["message"]


@pytest.mark.parametrize(("body", "param"), COMPLETIONS.values(), ids=COMPLETIONS)
def test_completions(embedded, body, param) -> None:
    status, _, came = embedded.call("POST", "/v1/completions", body)
    assert (status, came["error"]["param"]) == (400, param), came


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"n": NaN}',
        b'{"messages": "\\ud8',
    ],
)
def test_bodies_that_are_no_object(embedded, data) -> None:
    for path in ("/v1/chat/completions", "/v1/completions"):
        status, _, came = embedded.call("POST", path, data)
        assert (status, came["error"]["code"]) == (400, "invalid_json")


def test_the_clients_error(embedded) -> None:
    with pytest.raises(openai.BadRequestError, match="content\\[0\\] is not supported") as caught:
        embedded.client().chat.completions.create(
            model=embedded.service.model, messages=[{"role": "user", "content": [IMAGE]}]
        )
    assert caught.value.code == "unsupported"


@pytest.mark.parametrize(
    "extra",
    [
        {"user": "me", "metadata": {"a": "b"}, "service_tier": "auto", "never_heard_of": 1},
        {"response_format": {"type": "text"}, "logprobs": False, "tools": None, "n": 1},
        {"stop": None, "seed": None, "max_tokens": None, "max_completion_tokens": 3},
        {"modalities": ["text"], "store": False, "functions": None, "tool_choice": "none"},
        {"stream": None, "stream_options": None, "temperature": None, "logit_bias": None},
    ],
)
def test_what_asks_for_nothing_is_taken(embedded, extra) -> None:
    status, _, came = embedded.call(
        "POST", "/v1/chat/completions", HELLO | {"max_tokens": 2} | extra
    )
    assert status == 200, came


def test_parts_of_text_are_one_text(embedded) -> None:
    parts = [{"type": "text", "text": "And it "}, {"type": "text", "text": "came to pass"}]
    _, _, apart = embedded.call(
        "POST", "/v1/chat/completions", message(parts) | {"temperature": 0, "max_tokens": 8}
    )
    _, together = embedded.chat("And it came to pass", max_tokens=8)
    assert apart["choices"][0]["message"] == together["choices"][0]["message"]


def test_a_developer_is_the_system_where_the_template_knows_no_other(embedded) -> None:
    texts = []
    for role in ("developer", "system"):
        turns = [{"role": role, "content": "Be short."}, *HELLO["messages"]]
        asked = {"messages": turns, "temperature": 0, "max_tokens": 8}
        texts.append(embedded.call("POST", "/v1/chat/completions", asked)[2]["choices"])
    assert texts[0][0]["message"] == texts[1][0]["message"]


def test_a_deep_value_is_no_stack_overflow() -> None:
    deep = b'{"messages": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"
    with pytest.raises(ApiError):
        schema.read(deep, schema.ChatBody)
