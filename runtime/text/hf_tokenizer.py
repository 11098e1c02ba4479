"""Tokenizers from Hugging Face files: ``tokenizer.json`` and the settings that lie beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from outrider.protocol.errors import BackendError
from outrider.runtime.text.template import ChatTemplate
from outrider.runtime.text.tokenizer import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "▁"
_ROLES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


class HfTokenizer(Tokenizer):
    """The tokenizer of a model folder, read without transformers."""

    def __init__(self, folder: str | Path) -> None:
        """Read ``tokenizer.json``, and if present the tokenizer, generation and model settings.

        Raises:
            BackendError: a file is missing or broken, or the tokenizer is of a kind whose tokens
            have no exact bytes.
        """
        import tokenizers

        folder = Path(folder)
        file = folder / "tokenizer.json"
        raw = _read(file, required=True)
        try:
            # Two of them: whether special tokens are recognised in a text is a state of the object.
            self._parses = tokenizers.Tokenizer.from_file(str(file))
            self._literal = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises plain Exception
            raise BackendError(f"cannot load {file}: {error}") from error
        for tokenizer in (self._parses, self._literal):
            tokenizer.no_truncation()
            tokenizer.no_padding()
        self._literal.encode_special_tokens = True
        config = _read(folder / "tokenizer_config.json")
        self.name = folder.name
        self.warnings = []
        self.specials, self.entries = _contents(file, raw, self._parses)
        roles = {role: text for role in _ROLES if (text := _content(config.get(role)))}
        self.chat = _chat(folder, config, roles)
        self.bos = self._id(roles.get("bos_token"))
        self.adds_bos = self._adds_bos(config)
        self.eos = frozenset(self._ends(folder, roles))

    def _encode(self, text: str, special: bool) -> list[int]:
        tokenizer = self._parses if special else self._literal
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _id(self, content: str | None) -> int | None:
        found: int | None = self._parses.token_to_id(content) if content else None
        return found

    def _adds_bos(self, config: Mapping[str, Any]) -> bool:
        """The setting if there is one, else what the post-processor does to a text."""
        if isinstance(config.get("add_bos_token"), bool):
            return bool(config["add_bos_token"])
        ids = self._parses.encode("a", add_special_tokens=True).ids
        return self.bos is not None and ids[:1] == [self.bos]

    def _ends(self, folder: Path, roles: Mapping[str, str]) -> Iterator[int]:
        """End ids by the tokenizer, the generation and the model settings together.

        Models exist where any one of them lists an id that the others lack.
        """
        declared = self._id(roles.get("eos_token"))
        if declared is not None:
            yield declared
        for name in ("generation_config.json", "config.json"):
            settings = _read(folder / name)
            for part in (settings, settings.get("text_config")):
                value = part.get("eos_token_id") if isinstance(part, dict) else None
                for token in value if isinstance(value, list) else [value]:
                    if isinstance(token, int) and 0 <= token < self.size:
                        yield token


def _contents(
    file: Path, raw: Mapping[str, Any], tokenizer: Any
) -> tuple[dict[int, bytes], tuple[bytes, ...]]:
    """(special ids with their contents, the bytes of every ordinary id)."""
    to_bytes, is_byte_level = _bytes_of(file, raw)
    vocabulary: dict[str, int] = tokenizer.get_vocab(with_added_tokens=False)
    added = tokenizer.get_added_tokens_decoder()
    entries = [b""] * (1 + max([*vocabulary.values(), *added], default=-1))
    for text, token in vocabulary.items():
        entries[token] = to_bytes(text)
    specials = {}
    for token, entry in added.items():
        content = entry.content.encode()
        if entry.special or looks_special(entry.content):
            specials[token] = content
            entries[token] = b""
        else:
            entries[token] = content if is_byte_level else to_bytes(entry.content)
    return specials, tuple(entries)


def looks_special(content: str) -> bool:
    """Whether GGUF converters treat an added token as special although its file does not say so.

    Both kinds of file must give the same answer, or one model would have two fingerprints.
    """
    return (
        content in ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
        or (content.startswith("<|") and content.endswith("|>"))
        or (content.startswith("<｜") and content.endswith("｜>"))
        or (content.startswith("<unused") and content.endswith(">"))
    )


def _bytes_of(file: Path, raw: Mapping[str, Any]) -> tuple[Callable[[str], bytes], bool]:
    """(the function from a vocabulary string to the bytes it stands for, is it byte-level)."""
    kinds = set(_types(raw.get("decoder"))) | set(_types(raw.get("pre_tokenizer")))
    if "ByteLevel" in kinds:
        table = _byte_level_table()

        def byte_level(text: str) -> bytes:
            try:
                return text.translate(table).encode("latin-1")
            except UnicodeEncodeError:  # not written in the byte alphabet: literal
                return text.encode()

        return byte_level, True
    if kinds & {"Metaspace", "ByteFallback"} or _SPACE in json.dumps(
        raw.get("normalizer"), ensure_ascii=False
    ):

        def sentence_piece(text: str) -> bytes:
            match = _BYTE_TOKEN.fullmatch(text)
            if match:
                return bytes([int(match[1], 16)])
            return text.replace(_SPACE, " ").encode()

        return sentence_piece, False
    model = raw.get("model")
    kind = model.get("type") if isinstance(model, dict) else None
    raise BackendError(
        f"{file} is a {kind or 'tokenizer'} whose tokens have no exact bytes; byte-level BPE and "
        "SentencePiece tokenizers are supported"
    )


def _byte_level_table() -> dict[int, int]:
    """Code points of GPT-2's printable alphabet -> the bytes they stand for, as latin-1.

    Latin-1 characters that are not in the alphabet are sent out of latin-1, to be noticed.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = dict.fromkeys(others, 0xFFFF)
    table.update({256 + i: byte for i, byte in enumerate(others)})
    return table


def _types(part: object) -> Iterator[str]:
    """The types of a component of ``tokenizer.json`` and of what it is composed of."""
    if isinstance(part, dict):
        if isinstance(part.get("type"), str):
            yield part["type"]
        for key in ("decoders", "pretokenizers"):
            for child in part.get(key) or []:
                yield from _types(child)


def _chat(folder: Path, config: Mapping[str, Any], roles: Mapping[str, str]) -> ChatTemplate | None:
    """The default template: its own file, or the setting (one, or a list with names)."""
    source = config.get("chat_template")
    if isinstance(source, list):
        named = {
            item.get("name"): item.get("template") for item in source if isinstance(item, dict)
        }
        source = named.get("default")
    file = folder / "chat_template.jinja"
    if file.is_file():
        source = file.read_text(encoding="utf-8")
    return ChatTemplate(source, roles) if isinstance(source, str) else None


def _content(value: object) -> str | None:
    """A token in the settings is a string or an object with ``content``."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _read(file: Path, *, required: bool = False) -> dict[str, Any]:
    """A JSON object from a file; empty if an optional file is absent."""
    try:
        value = json.loads(file.read_bytes())
    except FileNotFoundError:
        if required:
            raise BackendError(f"no such file: {file}") from None
        return {}
    except (OSError, ValueError) as error:
        raise BackendError(f"cannot read {file}: {error}") from error
    if not isinstance(value, dict):
        raise BackendError(f"{file} is not a JSON object")
    return value
