"""A pair whose chat templates differ, as those of the real one do: the cloud writes chats out."""

from __future__ import annotations

import copy

import pytest

from outrider.runtime.text.template import ChatTemplate

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
ASK = [{"role": "user", "content": "What comes to pass in those days?"}]


@pytest.fixture(scope="module")
def differing(written, tokenizer):
    """The cloud's template is the right one; the edge's says something else."""
    words, edges = copy.copy(tokenizer), copy.copy(tokenizer)
    words.chat, edges.chat = ChatTemplate(TEMPLATE), ChatTemplate("{{ messages[0].content }}!")
    return written("some words that go on, ", tokenizer=words, edges=edges)


def ask(running, chat: list[dict[str, str]]) -> dict:
    body = {"messages": chat, "max_tokens": 6, "temperature": 0, "ignore_eos": True}
    status, _, came = running.call("POST", "/v1/chat/completions", body)
    assert status == 200, came
    return came


def test_the_clouds_template_counts(differing) -> None:
    assert not differing.service.client.welcome.same_template
    made = ask(differing, ASK)
    right = differing.verifier.tokenizer.encode_chat(ASK)
    assert made["usage"]["prompt_tokens"] == len(right)


def test_a_conversation_that_the_cloud_renders_keeps_its_session(differing) -> None:
    chat = [{"role": "user", "content": "Tell me of the words that go on and on."}]
    first = ask(differing, chat)
    sessions = len(differing.service.client.machine.sessions)
    said = first["choices"][0]["message"]["content"]
    longer = [*chat, {"role": "assistant", "content": said}, {"role": "user", "content": "More."}]
    second = ask(differing, longer)
    assert len(differing.service.client.machine.sessions) == sessions
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= first["usage"]["prompt_tokens"] - 3  # all but what opens the answer
    other = ask(differing, [{"role": "user", "content": "Something else."}])
    assert other["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_tools_are_refused_where_the_cloud_would_leave_them_out(differing) -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    status, came = differing.chat(tools=[tool])
    assert (status, came["error"]["param"]) == (400, "tools")
