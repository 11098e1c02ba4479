"""Chat templates: what authors rely on works, what is wrong is said."""

from __future__ import annotations

import re
from typing import Any

import pytest

from outrider.protocol.errors import BackendError, SettingError
from outrider.runtime.text.template import ChatTemplate

HELLO = [{"role": "user", "content": "hello"}]


def render(source: str, messages: list[Any] = HELLO, **options: bool) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(messages, **options)


def test_variables() -> None:
    source = "{{ bos_token }}{{ eos_token }}{{ messages[0].content }}"
    assert render(source) == "<s>hello"
    assert render("{% if add_generation_prompt %}go{% endif %}") == "go"
    assert render("{% if add_generation_prompt %}go{% endif %}", add_generation_prompt=False) == ""
    assert render("{{ tools is none }}") == "True"


def test_blocks_leave_no_blank_lines() -> None:
    assert render("  {% for m in messages %}\n{{ m.role }}\n  {% endfor %}\nend") == "user\nend"


def test_loop_controls_json_generation_and_time() -> None:
    assert (
        render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}")
        == "01"
    )
    assert render("{{ {'a': 'é<'} | tojson }}") == '{"a": "é<"}'
    assert render("{{ [1] | tojson(indent=1) }}") == "[\n 1\n]"
    assert render("{% generation %}x{% endgeneration %}y") == "xy"
    assert re.fullmatch(r"\d{4}", render("{{ strftime_now('%Y') }}"))


def test_content_in_text_parts_is_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert render("{{ messages[0].content }}", [{"role": "user", "content": parts}]) == "ab"
    assert render("{{ messages[0].content }}", [{"role": "assistant", "content": None}]) == ""


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ([], "empty"),
        (["hi"], r"messages\[0\] is not an object"),
        ([{"content": "hi"}], r"messages\[0\] has no role"),
        ([*HELLO, {"role": "user", "content": 7}], r"messages\[1\] has content that is not text"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "part that is not text"),
    ],
)
def test_messages_that_are_none(messages: list[Any], complaint: str) -> None:
    with pytest.raises(SettingError, match=complaint):
        render("x", messages)


def test_the_template_can_refuse() -> None:
    with pytest.raises(SettingError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ 1 / 0 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ missing.field }}",
    ],
)
def test_a_template_that_fails_or_misbehaves(source: str) -> None:
    with pytest.raises(BackendError, match="fails on these messages"):
        render(source)


def test_a_template_that_is_not_one() -> None:
    with pytest.raises(BackendError, match="broken"):
        ChatTemplate("{% for %}")
