"""Texts to calibrate, distil and measure with: read from files, cut into blocks of ids."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from outrider.protocol.errors import OutriderError, SettingError
from outrider.runtime.text.tokenizer import Tokenizer, load_tokenizer


def read_texts(path: Path) -> list[str]:
    """A folder of texts, a text file, or JSON lines with ``text``, ``prompt`` or ``messages``.

    Raises:
        SettingError: it is not there, not UTF-8, or a line is no such object.
    """
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in (".txt", ".md", ".jsonl"))
        if not files:
            raise SettingError(f"{path} has no .txt, .md or .jsonl file")
        return [text for file in files for text in read_texts(file)]
    try:
        raw = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"cannot read {path}: {error}") from error
    if path.suffix != ".jsonl":
        return [raw]
    lines = [line for line in raw.splitlines() if line.strip()]
    return [_text(path, number, line) for number, line in enumerate(lines, 1)]


def _text(path: Path, number: int, line: str) -> str:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise SettingError(f"{path}, line {number} is not JSON: {error}") from error
    if isinstance(entry, dict):
        for key in ("text", "prompt", "content"):
            if isinstance(entry.get(key), str):
                return str(entry[key])
        if isinstance(entry.get("messages"), list):
            return "\n".join(_content(message) for message in entry["messages"])
    raise SettingError(f"{path}, line {number} has neither text nor prompt nor messages")


def _content(message: Any) -> str:
    return str(message.get("content", "")) if isinstance(message, dict) else ""


def token_blocks(
    folder: Path, texts: Iterable[str], length: int, most: int, tokenizer: Tokenizer | None = None
) -> list[list[int]]:
    """Whole blocks of ``length`` ids, at most ``most`` ids in all, text after text."""
    tokenizer = tokenizer or load_tokenizer(folder)
    blocks: list[list[int]] = []
    held: list[int] = []
    for text in texts:
        try:
            held += tokenizer.encode(text)
        except OutriderError as error:
            raise SettingError(f"a text cannot be used: {error}") from error
        while len(held) >= length and len(blocks) * length < most:
            blocks.append(held[:length])
            del held[:length]
        if len(blocks) * length >= most:
            break
    return blocks
