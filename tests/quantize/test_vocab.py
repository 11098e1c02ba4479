"""A tokenizer written into a GGUF file gives the ids of the original, whichever kind it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from outrider.protocol.errors import BackendError
from outrider.quantize import gguf_vocab
from outrider.quantize.gguf_vocab import CORPUS, read_vocab
from outrider.runtime.text.gguf_tokenizer import GgufTokenizer
from outrider.runtime.text.hf_tokenizer import HfTokenizer

pytestmark = pytest.mark.llama
ROOT = Path(__file__).parents[2]
QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


def texts() -> list[str]:
    """Something to learn merges from."""
    return [file.read_text("utf-8") for file in sorted((ROOT / "docs").glob("*.md"))] + list(CORPUS)


def byte_level(*cuts: Any) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not cuts)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        special_tokens=["<|endoftext|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(), trainer)
    return tokenizer


def split(pattern: str) -> Any:
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated")


def digits() -> Tokenizer:
    tokenizer = byte_level(pre_tokenizers.Digits(individual_digits=True))
    cuts = [
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    return tokenizer


def sentence_pieces(prepend: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    steps: list[Any] = [normalizers.Prepend("▁")] if prepend else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    specials = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=1800,
        special_tokens=[*specials, *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
    )
    # llama.cpp keeps tokens as C strings: one of a NUL (real ones have none) would be lost.
    words = [
        word for text in texts() if "\0" not in text for word in text.replace(" ", " ▁").split(" ")
    ]
    tokenizer.train_from_iterator(words, trainer)
    # Bytes are ordinary tokens; the trainer could only be told of them as special ones.
    raw = json.loads(tokenizer.to_str())
    raw["added_tokens"] = [t for t in raw["added_tokens"] if t["content"] in specials]
    return Tokenizer.from_str(json.dumps(raw))


KINDS: dict[str, tuple[str, Callable[[], Tokenizer]]] = {
    "gpt-2": ("gpt-2", byte_level),
    "qwen2": ("qwen2", lambda: byte_level(split(QWEN))),
    "llama-3": ("llama-bpe", lambda: byte_level(split(LLAMA3))),
    "smollm": ("smollm", digits),
    "sentencepiece": ("default", lambda: sentence_pieces(True)),
    "gemma": ("default", lambda: sentence_pieces(False)),
}


def save(tokenizer: Tokenizer, folder: Path, **settings: Any) -> Path:
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_the_way_of_cutting_is_found_and_ids_are_equal(kind: str, tmp_path: Path) -> None:
    pre, make = KINDS[kind]
    folder = save(make(), tmp_path, eos_token="<|endoftext|>" if "-" in kind else None)
    original = HfTokenizer(folder)
    vocab = read_vocab(folder, original.size + 60)
    assert vocab.pre == pre
    gguf_vocab._write_alone(vocab, tmp_path / "v.gguf", vocab.pre)
    made = GgufTokenizer(tmp_path / "v.gguf")
    assert made.size == original.size  # the rows of padding do not count
    assert made.entries == original.entries
    assert dict(made.specials) == dict(original.specials)
    for text in (*CORPUS, *texts()):
        assert made.encode(text) == original.encode(text), text[:60]


def test_a_way_that_llama_cpp_does_not_have_is_refused(tmp_path: Path) -> None:
    """Cut at every vowel: no model does, and the error says where it shows."""
    folder = save(byte_level(split("[aeiou]")), tmp_path)
    with pytest.raises(BackendError, match="no way in which llama.cpp cuts texts .* probes"):
        read_vocab(folder, 1500)


def test_word_pieces_are_refused(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(BackendError, match="WordPiece"):
        read_vocab(save(tokenizer, tmp_path), 2)
