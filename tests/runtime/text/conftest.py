"""Tokenizers for these tests: the embedded one, and small ones written on the spot."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DRAFTER = Path(__file__).parents[3] / "models" / "drafter"
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

SPECIALS = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)]
ADDED = "tool▁call"  # an added token that is not special
WORDS = ["▁", "a", "b", "c", "▁a", "ab", "▁ab", "é", "▁▁"]


@pytest.fixture(scope="session")
def drafter_folder() -> Path:
    """The embedded drafter's folder."""
    return DRAFTER


@pytest.fixture(scope="session")
def drafter_gguf() -> Path:
    """The same vocabulary inside a GGUF file."""
    pytest.importorskip("llama_cpp")
    return DRAFTER / "drafter-q8_0.gguf"


@pytest.fixture(scope="session")
def write_vocabulary() -> Callable[..., Path]:
    """A writer of GGUF files that hold a vocabulary and nothing else."""
    return _write_vocabulary


def _write_vocabulary(
    path: Path,
    tokens: list[tuple[str, int]],
    *,
    kind: str = "gpt2",
    pre: str | None = "gpt-2",
    template: str | None = None,
    bos: int | None = None,
    adds_bos: bool = False,
) -> Path:
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, "llama")
    for key in ("context_length", "embedding_length", "block_count", "feed_forward_length"):
        writer.add_uint32(f"llama.{key}", 32)
    writer.add_uint32("llama.attention.head_count", 2)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_tokenizer_model(kind)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list([text for text, _ in tokens])
    writer.add_token_types([what for _, what in tokens])
    if kind == "gpt2":
        writer.add_token_merges(["a b"])
    else:
        writer.add_token_scores([-float(i) for i in range(len(tokens))])
        writer.add_unk_token_id(0)
        writer.add_eos_token_id(2)
    if bos is not None:
        writer.add_bos_token_id(bos)
    writer.add_add_bos_token(adds_bos)
    if template is not None:
        writer.add_chat_template(template)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def sentence_piece_tokens() -> list[tuple[str, int]]:
    """(text, kind) as in a SentencePiece model: specials, 256 bytes, words."""
    bytes_ = [(f"<0x{byte:02X}>", BYTE) for byte in range(256)]
    return [*SPECIALS, *bytes_, *((word, NORMAL) for word in WORDS), (ADDED, USER)]


@pytest.fixture
def sentence_piece(tmp_path: Path) -> tuple[Path, Path]:
    """One small SentencePiece model twice: (folder with tokenizer.json, GGUF file)."""
    tokens = sentence_piece_tokens()
    raw = {
        "version": "1.0",
        "added_tokens": [
            *(_added(i, text) for i, (text, _) in enumerate(SPECIALS)),
            _added(len(tokens) - 1, ADDED, special=False),
        ],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}],
        },
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "byte_fallback": True,
            "vocab": {text: i for i, (text, _) in enumerate(tokens)},
            "merges": [["▁", "a"], ["a", "b"], ["▁a", "b"], ["▁", "▁"]],
        },
    }
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True}
    folder = write_folder(tmp_path / "sp", raw, config)
    gguf = _write_vocabulary(
        tmp_path / "sp.gguf", tokens, kind="llama", pre=None, bos=1, adds_bos=True
    )
    return folder, gguf


def write_folder(folder: Path, raw: dict[str, Any], config: dict[str, Any]) -> Path:
    """A Hugging Face folder with a tokenizer and its settings."""
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(raw))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def _added(token: int, text: str, *, special: bool = True) -> dict[str, Any]:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token, "content": text, "special": special, **plain}


@pytest.fixture
def byte_level(tmp_path: Path) -> Callable[..., Path]:
    """A maker of byte-level folders: 256 bytes, then added tokens as (text, special)."""

    def make(added: list[tuple[str, bool]], **config: Any) -> Path:
        vocab = {text: i for i, (text, _) in enumerate(byte_level_tokens())}
        plain = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
        raw = {
            "version": "1.0",
            "added_tokens": [
                _added(256 + i, text, special=special) for i, (text, special) in enumerate(added)
            ],
            "pre_tokenizer": plain,
            "decoder": plain,
            "model": {"type": "BPE", "vocab": vocab, "merges": []},
        }
        return write_folder(tmp_path / "bytes", raw, config)

    return make


@pytest.fixture
def byte_tokens() -> list[tuple[str, int]]:
    """The 256 bytes as (text in GPT-2's alphabet, kind)."""
    return byte_level_tokens()


def byte_level_tokens() -> list[tuple[str, int]]:
    """GPT-2's alphabet, written out the way its authors did."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    extra = 0
    tokens = []
    for byte in range(256):
        if byte in printable:
            tokens.append((chr(byte), NORMAL))
        else:
            tokens.append((chr(256 + extra), NORMAL))
            extra += 1
    return tokens
