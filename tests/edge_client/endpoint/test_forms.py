"""Text held to a form, at the endpoint: JSON, a schema, a call that must be made.

The embedded pair, which was trained on scripture and writes no JSON by itself.
"""

from __future__ import annotations

import copy
import json
from importlib.resources import files
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("llguidance")
pytest.importorskip("llama_cpp")

from outrider.cloud_server.grammar import Grammars
from outrider.cloud_server.replay import plain
from outrider.cloud_server.targets.factory import load_target
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.messages import GRAMMAR, TOOLS
from outrider.runtime.lm.drafter import Drafter
from outrider.runtime.lm.factory import load_lm
from outrider.runtime.text.template import ChatTemplate

MODELS = Path(str(files("outrider.models")))
ASK = [{"role": "user", "content": "And it came to pass"}]
SCHEMA = {
    "type": "object",
    "properties": {
        "book": {"enum": ["Genesis", "Exodus"]},
        "chapter": {"type": "integer", "minimum": 1, "maximum": 50},
        "words": {"type": "array", "items": {"enum": ["the", "and"]}, "maxItems": 3},
    },
    "required": ["book", "chapter", "words"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "verse", "schema": SCHEMA}}
TEMPLATE = """
{%- for tool in tools or [] %}[{{ tool.function.name }} <tool_call>]{% endfor %}
{%- for message in messages %}<{{ message.role }}>{{ message.content }}
{%- endfor %}<assistant>"""
OFFERED = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
                "required": ["n"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("add", "take")
]


@pytest.fixture(scope="module", params=["same template", "the cloud's template"])
def calling(request, serve, tokenizer):
    """The embedded pair with a template that knows tools; at the edge it may be another."""
    words, edges = copy.copy(tokenizer), copy.copy(tokenizer)
    words.chat = ChatTemplate(TEMPLATE)
    same = request.param == "same template"
    edges.chat = words.chat if same else ChatTemplate("{{ messages[0].content }}!")
    path = str(MODELS / "target" / "target-f16.gguf")
    target = load_target(path, backend="llama", threads=1, slots=2)
    drafter = Drafter(load_lm(MODELS / "drafter", "llama", threads=1).lm, tokenizer.size)
    return serve(target, words, drafter, edges=edges)


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_schema(embedded, reference, tokenizer, temperature) -> None:
    """The text that the target alone gives under the form, drafts or not; and it is of the form."""
    body = {"temperature": temperature, "seed": 11, "max_tokens": 60, "response_format": FORMAT}
    sampling = Sampling(temperature=temperature, seed=11)
    form = json.dumps({"json": SCHEMA})
    eos = embedded.verifier.engine.eos
    alone = plain(
        reference,
        tokenizer.encode_chat(ASK),
        sampling,
        60,
        lambda output: output[-1] in eos,
        constraint=Grammars(tokenizer.entries, eos).constraint(form),
    )
    expected = tokenizer.decode(alone)
    for draft in (True, False):
        status, came = embedded.chat(**body, outrider={"draft": draft})
        assert status == 200, came
        (choice,) = came["choices"]
        assert choice["message"]["content"] == expected
        if choice["finish_reason"] == "length":  # spaces are part of JSON
            continue
        read = json.loads(choice["message"]["content"])
        assert read["book"] in ("Genesis", "Exodus")
        assert 1 <= read["chapter"] <= 50
        assert set(read["words"]) <= {"the", "and"}
        assert choice["finish_reason"] == "stop"


def test_any_object_by_the_openai_client(embedded) -> None:
    stream = embedded.client().chat.completions.create(
        model=embedded.service.model,
        messages=ASK,
        response_format={"type": "json_object"},
        temperature=0,
        max_tokens=40,
        logprobs=True,
        stream=True,
    )
    chunks = [chunk.choices[0] for chunk in stream if chunk.choices]
    text = "".join(chunk.delta.content or "" for chunk in chunks)
    assert text.startswith("{")
    told = [e for chunk in chunks if chunk.logprobs for e in chunk.logprobs.content or []]
    assert "".join(entry.token for entry in told) == text
    assert told[0].logprob < -1  # of the target as it is, which expected no brace


def test_a_client_that_leaves_takes_its_form_with_it(embedded) -> None:
    client = embedded.client()
    asked = {"model": embedded.service.model, "messages": ASK, "temperature": 0}
    with client.chat.completions.create(
        **asked, response_format=FORMAT, max_tokens=100, stream=True
    ) as stream:
        next(iter(stream))
    free = client.chat.completions.create(**asked, max_tokens=8).choices[0].message.content
    again = embedded.chat(max_tokens=8)[1]["choices"][0]["message"]["content"]
    assert free == again
    assert "{" not in free


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "take"}}])
def test_a_call_that_must_be_made(calling, choice) -> None:
    calls = 0
    for seed in (1, 2):
        made = calling.client().chat.completions.create(
            model=calling.service.model,
            messages=ASK,
            tools=OFFERED,
            tool_choice=choice,
            parallel_tool_calls=False,
            temperature=1,
            seed=seed,
            max_tokens=60,
        )
        (answer,) = made.choices
        if answer.finish_reason == "length":
            assert answer.message.content.startswith("<tool_call>\n")
            continue
        (call,) = answer.message.tool_calls
        calls += 1
        names = ["add", "take"] if choice == "required" else ["take"]
        assert call.function.name in names
        assert 0 <= json.loads(call.function.arguments)["n"] <= 99
        assert answer.finish_reason == "tool_calls"
    assert calls


def test_the_tools_are_in_the_prompt_whoever_writes_it(calling) -> None:
    made = calling.client().chat.completions.create(
        model=calling.service.model, messages=ASK, tools=OFFERED, max_tokens=2
    )
    right = calling.verifier.tokenizer.encode_chat(ASK, tools=OFFERED)
    assert made.usage.prompt_tokens == len(right)
    history = [
        *ASK,
        {
            "role": "assistant",
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "c", "content": "3"},
    ]
    status, _, came = calling.call(
        "POST", "/v1/chat/completions", {"messages": history, "tools": OFFERED, "max_tokens": 2}
    )
    assert status == 200, came


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
        ({"response_format": {"type": "regex"}}, "response_format"),
        ({"response_format": {"type": "json_object"}, "ignore_eos": True}, "response_format"),
        ({"response_format": FORMAT, "tools": OFFERED}, "response_format"),
        ({"tools": OFFERED, "tool_choice": "always"}, "tool_choice"),
        ({"tools": OFFERED, "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": OFFERED, "parallel_tool_calls": False}, "parallel_tool_calls"),
    ],
)
def test_refused(calling, more, param) -> None:
    status, came = calling.chat(**more)
    assert (status, came["error"]["param"]) == (400, param), came


def test_a_tool_that_is_not_offered(calling) -> None:
    choice = {"type": "function", "function": {"name": "give"}}
    status, came = calling.chat(tools=OFFERED, tool_choice=choice)
    assert status == 400
    said = "tool_choice names 'give', which is none of the tools: 'add', 'take'"
    assert said in came["error"]["message"]


def test_a_schema_that_cannot_be_enforced(calling) -> None:
    schema = {"type": "array", "uniqueItems": True}
    asked = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    status, came = calling.chat(response_format=asked)
    assert status == 400
    assert came["error"]["param"] == "response_format"
    assert came["error"]["code"] == "unsupported"
    assert "uniqueItems" in came["error"]["message"]
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    status, came = calling.chat(tools=[tool], tool_choice="required")
    assert (status, came["error"]["param"]) == (400, "tools")


def test_a_cloud_that_enforces_nothing(calling) -> None:
    machine = calling.service.client.machine
    before = machine.welcome
    less = tuple(f for f in before.features if f not in (GRAMMAR, TOOLS))

    def say(features: tuple[str, ...]) -> None:
        machine.welcome = msgspec.structs.replace(before, features=features)

    calling.on_loop(lambda: say(less))
    try:
        found = [
            calling.chat(response_format={"type": "json_object"}),
            calling.chat(tools=OFFERED, tool_choice="required"),
        ]
    finally:
        calling.on_loop(lambda: say(before.features))
    assert [status for status, _ in found] == [400, 400]
    assert found[0][1]["error"]["param"] == "response_format"
    assert "llguidance" in found[0][1]["error"]["message"]
    same = before.same_template
    assert found[1][1]["error"]["param"] == ("tool_choice" if same else "tools")
