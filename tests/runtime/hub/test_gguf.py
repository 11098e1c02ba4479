"""The reader of GGUF headers: real files, files cut anywhere, and files that lie."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.protocol.errors import BackendError
from outrider.runtime.hub.gguf import read_header

MODELS = Path(__file__).parents[3] / "models"
DRAFTER = MODELS / "drafter" / "drafter-q8_0.gguf"


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def entry(key: str, value: str | int | bool | list[int]) -> bytes:
    """One key of a header, in the types that converters use."""
    if isinstance(value, bool):
        return text(key) + struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return text(key) + struct.pack("<II", 4, value)
    if isinstance(value, str):
        return text(key) + struct.pack("<I", 8) + text(value)
    return text(key) + struct.pack(f"<IIQ{len(value)}I", 9, 4, len(value), *value)


def header(*entries: bytes, version: int = 3, tensors: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, len(entries)) + b"".join(entries)


@pytest.fixture
def read(tmp_path: Path) -> Callable[[bytes], object]:
    def go(data: bytes) -> object:
        path = tmp_path / "m.gguf"
        path.write_bytes(data)
        return read_header(path)

    return go


def test_the_embedded_drafter() -> None:
    found = read_header(DRAFTER)
    assert found.architecture == "llama"
    assert found.quantization == "Q8_0"
    assert found.number("context_length") == 2048
    assert found.number("no_such_thing") is None
    assert found.lengths["tokenizer.ggml.tokens"] == 4096
    assert found.facts["tokenizer.ggml.pre"] == "gpt-2"
    assert sum(found.types.values()) == found.parameters
    assert 0 < DRAFTER.stat().st_size - found.tensor_bytes < 200_000


def test_a_number_for_each_layer() -> None:
    path = MODELS / "target" / "target-f16.gguf"
    assert read_header(path).number("attention.head_count_kv") == 2


def test_lists_of_numbers_give_the_largest(read: Callable[[bytes], object]) -> None:
    found = read(header(entry("general.architecture", "a"), entry("a.heads", [1, 7, 3])))
    assert found.number("heads") == 7  # type: ignore[attr-defined]


@pytest.mark.parametrize("size", [1, 3, 4, 8, 23, 24, 100, 5000, 120_000, 1_000_000, -1])
def test_cut_short_anywhere(size: int, tmp_path: Path) -> None:
    data = DRAFTER.read_bytes()
    path = tmp_path / "m.gguf"
    path.write_bytes(data[:size])
    with pytest.raises(BackendError, match="cut short|not a GGUF file"):
        read_header(path)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04 a zip archive", "is not a GGUF file"),
        (header(version=1), "GGUF version 1; versions 2 and 3 are read"),
        (header(version=3 << 24), "written for a big-endian machine"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), "is broken: .* entries"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "is broken: .* tensors announced"),
        (header(text("key") + struct.pack("<I", 77)), "unknown type 77"),
        (header(text("key") + struct.pack("<IIQ", 9, 77, 1)), "a list of the unknown type 77"),
        (header(text("key") + struct.pack("<IIQ", 9, 4, 1 << 62)), "cut short"),
        (header(struct.pack("<Q", 1 << 62)), "cut short"),
        (header(tensors=1) + text("t") + struct.pack("<I", 99), "has 99 dimensions"),
        (header(tensors=1) + text("t") + struct.pack("<IQIQ", 1, 1000, 0, 0), "cut short"),
    ],
)
def test_files_that_lie(data: bytes, words: str, read: Callable[[bytes], object]) -> None:
    with pytest.raises(BackendError, match=words):
        read(data)


def test_a_tensor_type_that_is_newer_than_this_reader(read: Callable[[bytes], object]) -> None:
    tensor = text("t") + struct.pack("<IQIQ", 1, 64, 999, 0)
    found = read(header(tensors=1) + tensor + bytes(64))
    assert found.types == {"type 999": 64}  # type: ignore[attr-defined]


def test_a_folder_and_nothing(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="is a folder; give the .gguf file inside it"):
        read_header(tmp_path)
    with pytest.raises(BackendError, match="no such file"):
        read_header(tmp_path / "none")


@given(st.data())
def test_flipped_bytes_raise_nothing_else(data: st.DataObject) -> None:
    import tempfile

    raw = bytearray(DRAFTER.read_bytes()[:4096])
    for _ in range(3):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(bytes(raw))
        file.flush()
        with pytest.raises(BackendError):
            read_header(file.name)
