"""The real pair's two files mean the same by every id, and render chats alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outrider.protocol.edge_session import Request
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


def test_the_fingerprints_are_equal(tokenizer: Tokenizer, drafter_tokenizer: Tokenizer) -> None:
    assert describe(tokenizer).fingerprint() == describe(drafter_tokenizer).fingerprint()
    assert tokenizer.template == drafter_tokenizer.template
    assert dict(tokenizer.specials) == dict(drafter_tokenizer.specials)


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
    request = Request(max_tokens=24, ids=tuple(tokenizer.encode_chat(CHAT)), templated=True)
    (answer,) = ask((request, 4))
    assert answer.reason == "stop"
    assert answer.ids[-1] in tokenizer.eos
    assert "<|" not in answer.text
    assert "Rust" in answer.text
    assert judge(answer, request.sampling).exact


def test_the_cloud_renders_the_same_ids_from_messages(ask: Any, tokenizer: Tokenizer) -> None:
    by_cloud, by_edge = ask(
        (Request(max_tokens=4, messages=CHAT), 3),
        (Request(max_tokens=4, ids=tuple(tokenizer.encode_chat(CHAT)), templated=True), 3),
    )
    assert by_cloud.prompt_ids == by_edge.prompt_ids
    assert by_cloud.ids == by_edge.ids
