"""Tools from the client to the prompt, and calls from the text to the client."""

from __future__ import annotations

import copy
import json

import pytest

from outrider.runtime.text.template import ChatTemplate

TEMPLATE = """
{%- for tool in tools or [] %}[{{ tool.function.name }} <tool_call>]{% endfor %}
{%- for message in messages %}<{{ message.role }}>{{ message.content }}
{%- for call in message.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}
{%- endfor %}<assistant>"""
ASK = [{"role": "user", "content": "What is 1 + 2?"}]
TOOLS = [
    {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {}}}
]
SAID = 'Let me see. <tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'


@pytest.fixture(scope="module")
def calling(written, tokenizer):
    words = copy.copy(tokenizer)
    words.chat = ChatTemplate(TEMPLATE)
    end = next(iter(tokenizer.eos))
    prompt = len(words.encode_chat(ASK, tools=TOOLS))
    ids = [*tokenizer.encode(SAID), end]
    return written(ids, tokenizer=words, prompt=prompt, eos=frozenset({end}))


def test_a_call_comes_back(calling) -> None:
    made = calling.client().chat.completions.create(
        model=calling.service.model, messages=ASK, tools=TOOLS, temperature=0
    )
    choice = made.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see. "
    call = choice.message.tool_calls[0]
    assert (call.type, call.function.name) == ("function", "add")
    assert json.loads(call.function.arguments) == {"a": 1, "b": 2}


def test_a_streamed_call(calling) -> None:
    stream = calling.client().chat.completions.create(
        model=calling.service.model, messages=ASK, tools=TOOLS, temperature=0, stream=True
    )
    text, calls, ends = "", [], []
    for chunk in stream:
        delta = chunk.choices[0].delta
        text += delta.content or ""
        calls += delta.tool_calls or []
        ends.append(chunk.choices[0].finish_reason)
    assert (text, ends[-1]) == ("Let me see. ", "tool_calls")
    assert [call.function.name for call in calls] == ["add"]
    assert json.loads(calls[0].function.arguments) == {"a": 1, "b": 2}


def test_the_next_turn_has_the_call_and_its_result(calling) -> None:
    made = calling.client().chat.completions.create(
        model=calling.service.model, messages=ASK, tools=TOOLS, temperature=0
    )
    said = made.choices[0].message
    result = {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "3"}
    chat = [*ASK, said, result]
    again = calling.client().chat.completions.create(
        model=calling.service.model, messages=chat, tools=TOOLS, temperature=0, max_tokens=3
    )
    assert again.usage.prompt_tokens > made.usage.prompt_tokens


def test_tool_choice_none_leaves_them_out(calling) -> None:
    made = calling.client().chat.completions.create(
        model=calling.service.model, messages=ASK, tools=TOOLS, tool_choice="none", max_tokens=2
    )
    assert made.usage.prompt_tokens == len(calling.tokenizer.encode_chat(ASK))
