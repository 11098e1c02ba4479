"""Hugging Face and GGUF files of one model say the same, byte for byte."""

from __future__ import annotations

import json
import shutil
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.protocol.errors import BackendError, SettingError
from outrider.runtime.text.fingerprint import PROBES, describe, differing_cuts
from outrider.runtime.text.gguf_tokenizer import GgufTokenizer
from outrider.runtime.text.hf_tokenizer import HfTokenizer
from outrider.runtime.text.tokenizer import Tokenizer, load_tokenizer

ODD = [
    "",
    " ",
    "plain words, punctuated: 1234567890.",
    "déjà vu, naïve, Ångström, Straße, ĲSSELMEER",
    unicodedata.normalize("NFD", "déjà vu"),
    "你好，世界。日本語のテキスト 한국어",
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪",
    "שלום עולם العربية",
    "tabs\tand\r\nlines\n\n\n   and   runs    of spaces   ",
    "NUL \x00 and \x7f and \u200b and \ufeff and \ufffd",
    "def f(x):\n    return x**2  # 'quoted' \"twice\"",
    "Z̷̢̛a̷l̷g̵o̷",
    "<|endoftext|><|user|>",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 ℵ₀ ﷺ",
]


@pytest.fixture(scope="module")
def hf(drafter_folder: Path) -> Tokenizer:
    return HfTokenizer(drafter_folder)


@pytest.fixture(scope="module")
def gguf(drafter_gguf: Path) -> Tokenizer:
    return GgufTokenizer(drafter_gguf)


@pytest.fixture(scope="module", params=["hf", "gguf"])
def either(request: pytest.FixtureRequest) -> Tokenizer:
    found: Tokenizer = request.getfixturevalue(request.param)
    return found


def test_both_files_of_the_embedded_pair_agree(hf: Tokenizer, gguf: Tokenizer) -> None:
    ours, theirs = describe(hf), describe(gguf)
    assert ours.entries == theirs.entries
    assert ours.specials == theirs.specials == dict(hf.specials)
    assert ours.template == theirs.template
    assert ours.template
    assert ours.fingerprint() == theirs.fingerprint()
    assert ours.size == hf.size == gguf.size == 4096
    assert (hf.eos, hf.bos, hf.adds_bos) == (gguf.eos, gguf.bos, gguf.adds_bos)
    assert hf.warnings == gguf.warnings == []


def test_target_and_drafter_of_the_embedded_pair_agree(hf: Tokenizer, drafter_folder: Path) -> None:
    target = HfTokenizer(drafter_folder.parent / "target")
    assert describe(target).fingerprint() == describe(hf).fingerprint()


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("text", ODD)
def test_odd_texts_give_equal_ids_and_come_back_exactly(
    hf: Tokenizer, gguf: Tokenizer, text: str, special: bool
) -> None:
    ids = hf.encode(text, special=special)
    assert gguf.encode(text, special=special) == ids
    if not special:
        assert b"".join(map(hf.token_bytes, ids)) == text.encode()
        assert gguf.decode(ids) == text


@given(text=st.text(max_size=40))
def test_any_text_comes_back_exactly(either: Tokenizer, text: str) -> None:
    ids = either.encode(text)
    assert b"".join(map(either.token_bytes, ids)) == text.encode()
    assert not set(ids) & set(either.specials)


def test_single_bytes_of_a_character_are_tokens(either: Tokenizer) -> None:
    assert {bytes([byte]) for byte in range(256)} <= set(either.entries)
    half = next(i for i, entry in enumerate(either.entries) if entry == b"\xf0")
    assert either.decode([half]) == "\ufffd"


def test_special_tokens_have_no_text_but_a_content(either: Tokenizer) -> None:
    assert either.specials[1] == b"<|system|>"
    assert either.token_bytes(1) == b""
    assert either.encode("<|system|>", special=True) == [1]
    assert 1 not in either.encode("<|system|>")


def test_ids_beyond_the_vocabulary_have_no_text(either: Tokenizer) -> None:
    assert either.token_bytes(either.size) == either.token_bytes(-1) == b""


def test_lone_surrogates_are_refused(either: Tokenizer) -> None:
    with pytest.raises(SettingError, match="not valid Unicode at character 2"):
        either.encode("ab\ud800")


def test_a_chat_is_rendered_and_tokenized_without_added_specials(either: Tokenizer) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi é"}]
    ids = either.encode_chat(messages)
    assert ids == [1, *either.encode("Be brief."), 2, *either.encode("Hi é"), 3]
    assert either.encode_chat(messages, add_generation_prompt=False) == ids[:-1]


def test_the_same_chat_as_transformers(hf: Tokenizer, drafter_folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    reference = transformers.AutoTokenizer.from_pretrained(drafter_folder)
    messages = [
        {"role": "system", "content": "You are terse."},
        {"role": "user", "content": "你好 👋🏽"},
        {"role": "assistant", "content": "  hm \n"},
        {"role": "user", "content": "again\n\n"},
    ]
    text = reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert hf.render(messages) == text
    ids = reference.encode(text, add_special_tokens=False)
    assert hf.encode_chat(messages) == ids


def test_probe_texts_find_a_wrong_pre_tokenizer(
    hf: Tokenizer, gguf: Tokenizer, drafter_folder: Path, tmp_path: Path
) -> None:
    assert differing_cuts(hf, gguf) == []
    raw = json.loads((drafter_folder / "tokenizer.json").read_text())
    raw["pre_tokenizer"]["use_regex"] = False  # words are no longer kept apart
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw))
    wrong = HfTokenizer(tmp_path)
    assert describe(wrong).entries == describe(hf).entries
    found = differing_cuts(hf, wrong)
    assert found
    assert set(found) <= set(PROBES)


def test_sentence_piece_files_agree(sentence_piece: tuple[Path, Path]) -> None:
    pytest.importorskip("llama_cpp")
    hf, gguf = HfTokenizer(sentence_piece[0]), GgufTokenizer(sentence_piece[1])
    ours, theirs = describe(hf), describe(gguf)
    assert ours.entries == theirs.entries
    assert ours.specials == theirs.specials == {0: b"<unk>", 1: b"<s>", 2: b"</s>"}
    assert hf.token_bytes(3 + 0xE2) == b"\xe2"
    assert hf.token_bytes(3 + 256 + 6) == b" ab"
    assert hf.token_bytes(3 + 256 + 8) == b"  "
    assert hf.entries[-1] == b"tool call"
    assert gguf.warnings == []
    assert hf.encode_prompt("ab")[0] == gguf.encode_prompt("ab")[0] == 1


def test_a_prompt_never_opens_twice(sentence_piece: tuple[Path, Path]) -> None:
    tokenizer = HfTokenizer(sentence_piece[0])
    ids = tokenizer.encode_prompt("<s>ab")
    assert ids.count(1) == 1
    assert 1 not in tokenizer.encode("ab")
    assert tokenizer.encode_prompt("") == [1]


def test_padding_rows_and_added_tokens_agree(
    tmp_path: Path,
    byte_level: Callable[..., Path],
    byte_tokens: list[tuple[str, int]],
    write_vocabulary: Callable[..., Path],
) -> None:
    pytest.importorskip("llama_cpp")
    # Special by its settings; visible; one that converters make special by its looks.
    folder = byte_level([("[END]", True), ("<tool é>", False), ("<|odd|>", False)])
    control, user, unused = 3, 4, 5
    added = [("[END]", control), ("<tool é>", user), ("<|odd|>", control)]
    padding = [("[PAD259]", unused), ("[PAD260]", unused)]
    file = write_vocabulary(tmp_path / "padded.gguf", [*byte_tokens, *added, *padding])
    ours, theirs = describe(HfTokenizer(folder)), describe(GgufTokenizer(file))
    assert ours.entries == theirs.entries
    assert ours.specials == theirs.specials == {256: b"[END]", 258: b"<|odd|>"}
    assert ours.entries[257] == "<tool é>".encode()
    assert ours.size == theirs.size == 259


@pytest.mark.parametrize(("pre", "warned"), [(None, True), ("default", True), ("gpt-2", False)])
def test_a_missing_pre_tokenizer_is_a_warning(
    tmp_path: Path,
    byte_tokens: list[tuple[str, int]],
    write_vocabulary: Callable[..., Path],
    pre: str | None,
    warned: bool,
) -> None:
    pytest.importorskip("llama_cpp")
    tokenizer = GgufTokenizer(write_vocabulary(tmp_path / "old.gguf", byte_tokens, pre=pre))
    assert len(tokenizer.warnings) == warned
    assert tokenizer.decode(tokenizer.encode("hello 123")) == "hello 123"
    assert not warned or "pre-tokenizer" in tokenizer.warnings[0]
    with pytest.raises(SettingError, match="no chat template"):
        tokenizer.render([{"role": "user", "content": "hi"}])


def test_end_tokens_are_the_union_of_all_settings(byte_level: Callable[..., Path]) -> None:
    names = ["<a>", "<b>", "<c>", "<d>", "<e>"]
    folder = byte_level([(name, True) for name in names], eos_token={"content": "<a>"})
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [257, 258]}))
    (folder / "config.json").write_text(
        json.dumps({"eos_token_id": 259, "text_config": {"eos_token_id": [9999, None]}})
    )
    assert HfTokenizer(folder).eos == {256, 257, 258, 259}


def test_templates_by_name_and_by_file(byte_level: Callable[..., Path]) -> None:
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    folder = byte_level([], chat_template=named)
    assert HfTokenizer(folder).template == "yes"
    (folder / "chat_template.jinja").write_text("from é file")
    assert HfTokenizer(folder).template == "from é file"


def test_loading_by_path(drafter_folder: Path, drafter_gguf: Path, tmp_path: Path) -> None:
    assert isinstance(load_tokenizer(drafter_folder), HfTokenizer)
    assert isinstance(load_tokenizer(drafter_folder / "tokenizer.json"), HfTokenizer)
    assert isinstance(load_tokenizer(drafter_gguf), GgufTokenizer)
    with pytest.raises(BackendError, match="no tokenizer"):
        load_tokenizer(tmp_path)
    shutil.copy(drafter_gguf, tmp_path / "one.gguf")
    assert isinstance(load_tokenizer(tmp_path), GgufTokenizer)
    shutil.copy(drafter_gguf, tmp_path / "two.gguf")
    with pytest.raises(BackendError, match=r"one\.gguf, two\.gguf"):
        load_tokenizer(tmp_path)
    with pytest.raises(BackendError, match="no such file or folder"):
        load_tokenizer(tmp_path / "absent")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tokenizer.json", ""),
        ("tokenizer.json", "[]"),
        ("tokenizer.json", '{"version": "1.0"}'),
        ("tokenizer_config.json", "{"),
        ("generation_config.json", "nonsense"),
        ("config.json", "7"),
    ],
)
def test_broken_files_are_named(drafter_folder: Path, tmp_path: Path, name: str, text: str) -> None:
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(drafter_folder / file, tmp_path)
    (tmp_path / name).write_text(text)
    with pytest.raises(BackendError, match=name):
        HfTokenizer(tmp_path)


def test_a_tokenizer_without_exact_bytes_is_refused(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]")
    tokenizers.Tokenizer(model).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(BackendError, match="WordPiece whose tokens have no exact bytes"):
        HfTokenizer(tmp_path)
