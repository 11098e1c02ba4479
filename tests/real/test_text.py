"""The real pair's two files mean the same by every id, and render chats alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outrider.protocol.request import Request
from outrider.runtime.hub.gguf import read_header
from outrider.runtime.text.fingerprint import describe
from outrider.runtime.text.tokenizer import Tokenizer

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

CORPUS = (
    "Ärger über Öl: naïve façade, Łódź, Ελλάδα, Привет",
    "0 12 345 6789 3.14159 1e-9 0xFF 2026-11-30",
    "👩‍👩‍👧‍👦 🇩🇪 👍🏽 🙂🎉 e\u0301 \u200d\u200b",
    "从前有一座山 日本語のテキスト 한국어",
    "for (i = 0; i < n; ++i) {\n\treturn a[i] != b->c;\n}\r\n",
    " a  b   c    \t\t\n\n\n   \u00a0\u3000",
    "<|im_start|> <|endoftext|> <|fim_prefix|> <|not special|>",
)
CHAT = (
    {"role": "system", "content": "You answer in one word."},
    {"role": "user", "content": "Which language is `fn main() {}`?"},
)


def test_the_padding_of_both_files_is_ignored(
    pair: tuple[Path, Path], tokenizer: Tokenizer, drafter_tokenizer: Tokenizer
) -> None:
    widths = [read_header(path).lengths["tokenizer.ggml.tokens"] for path in pair]
    assert widths == [151936, 151936]
    assert tokenizer.size == drafter_tokenizer.size == 151665


def test_the_tokens_are_equal(tokenizer: Tokenizer, drafter_tokenizer: Tokenizer) -> None:
    here, there = (describe(t).fingerprint() for t in (drafter_tokenizer, tokenizer))
    assert (here.size, here.ordinary, here.special) == (there.size, there.ordinary, there.special)


def test_the_templates_differ_by_braces_around_tools_only(
    tokenizer: Tokenizer, drafter_tokenizer: Tokenizer
) -> None:
    """The publisher's two files differ there: so the cloud renders, and nobody has to guess."""
    here, there = drafter_tokenizer.template, tokenizer.template
    assert here is not None
    assert there is not None
    assert here != there
    name = r"\"name\": <function-name>, \"arguments\": <args-json-object>"
    assert here.replace("{" + name + "}", "{{" + name + "}}") == there
    assert drafter_tokenizer.encode_chat(CHAT) == tokenizer.encode_chat(CHAT)


@pytest.mark.parametrize("text", CORPUS)
@pytest.mark.parametrize("special", [False, True])
def test_texts_become_the_same_ids_and_come_back(
    text: str, special: bool, tokenizer: Tokenizer, drafter_tokenizer: Tokenizer
) -> None:
    ids = tokenizer.encode(text, special=special)
    assert ids == drafter_tokenizer.encode(text, special=special)
    if not special:
        assert tokenizer.decode(ids) == text


def test_the_template_opens_and_closes_turns_with_special_ids(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_chat(CHAT)
    start, end = (tokenizer.encode(mark, special=True) for mark in ("<|im_start|>", "<|im_end|>"))
    assert len(start) == len(end) == 1
    assert (ids.count(start[0]), ids.count(end[0])) == (3, 2)
    assert set(end) <= tokenizer.eos
    assert tokenizer.render(CHAT).endswith("<|im_start|>assistant\n")


def test_a_chat_ends_with_the_turn_and_shows_no_special_text(
    ask: Any, judge: Any, tokenizer: Tokenizer
) -> None:
    request = Request(max_tokens=24, messages=CHAT)
    (answer,) = ask((request, 4))
    assert answer.reason == "stop"
    assert answer.ids[-1] in tokenizer.eos
    assert "<|" not in answer.text
    assert "Rust" in answer.text
    assert judge(answer, request.sampling).exact


def test_ids_that_the_edge_rendered_are_rendered_again_by_the_cloud(
    ask: Any, tokenizer: Tokenizer
) -> None:
    ids = tuple(tokenizer.encode_chat(CHAT))
    by_cloud, by_edge = ask(
        (Request(max_tokens=4, messages=CHAT), 3),
        (Request(max_tokens=4, ids=ids, messages=CHAT, templated=True), 3),
    )
    assert by_cloud.prompt_ids == by_edge.prompt_ids == ids
    assert by_cloud.ids == by_edge.ids
