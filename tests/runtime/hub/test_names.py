"""How models are named, and which file a quantization means."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.protocol.errors import BackendError, SettingError
from outrider.runtime.hub import select
from outrider.runtime.hub.names import is_path, parse
from outrider.runtime.hub.resolve import resolve

DRAFTER = "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF"
TARGET = "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF"


def test_an_alias_is_a_pair() -> None:
    assert [(w.repo, w.quant, w.role) for w in parse("qwen2.5-coder")] == [
        (DRAFTER, None, "drafter"),
        (TARGET, None, "target"),
    ]
    assert [w.quant for w in parse("Qwen2.5-Coder:q8_0")] == ["q8_0", "q8_0"]


def test_a_repository_and_its_quantization() -> None:
    assert [str(w) for w in parse("a/b:Q4_0")] == ["a/b:Q4_0"]
    assert [str(w) for w in parse("a/b")] == ["a/b"]


@pytest.mark.parametrize(
    "name", ["nope", "a/b:", "a/b:q 4", "../b", "a/b/c", "", "a/..", "http://x"]
)
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(SettingError):
        parse(name)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("./m", True),
        ("m.gguf", True),
        ("/m", True),
        ("~/m", True),
        ("a/b", False),
        ("a/b:Q4_0", False),
    ],
)
def test_what_is_a_path(name: str, path: bool) -> None:
    assert is_path(name) is path


@pytest.mark.parametrize(
    ("name", "quant"),
    [
        ("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", "Q4_K_M"),
        ("sub/Llama-3.2-1B-Instruct-IQ4_XS.gguf", "IQ4_XS"),
        ("model.Q8_0.gguf", "Q8_0"),
        ("model-f16.gguf", "F16"),
        ("model-BF16-00001-of-00003.gguf", "BF16"),
        ("gpt-oss-MXFP4.gguf", "MXFP4"),
        ("qwen2.gguf", None),
    ],
)
def test_the_quantization_in_a_file_name(name: str, quant: str | None) -> None:
    assert select.quant_of(name) == quant


def test_preferences() -> None:
    sizes = {f"m-{quant}.gguf": 1 for quant in ("f16", "q8_0", "q2_k", "q5_k_m")}
    assert select.choose(sizes, None, "r").quant == "Q5_K_M"
    assert select.choose({"m-q2_k.gguf": 1}, None, "r").quant == "Q2_K"


def test_incomplete_shards_are_no_candidate() -> None:
    sizes = {"m-q4_0-00001-of-00003.gguf": 1, "m-q4_0-00003-of-00003.gguf": 1}
    with pytest.raises(BackendError, match="no GGUF model; .* is its parts 2 are missing|missing"):
        select.choose(sizes, None, "r")


def test_two_files_of_one_quantization_need_a_name() -> None:
    with pytest.raises(
        BackendError, match=r"several files Q4_0: a-q4_0.gguf, b-q4_0.gguf; use --f"
    ):
        select.choose({"a-q4_0.gguf": 1, "b-q4_0.gguf": 1}, None, "r")


def test_a_pair_that_lies_in_our_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "outrider" / "models" / "qwen2.5-coder"
    folder.mkdir(parents=True)
    for size in ("0.5b", "1.5b"):
        (folder / f"qwen2.5-coder-{size}-instruct-q4_k_m.gguf").write_bytes(b"GGUF")
    assert "0.5b" in resolve("qwen2.5-coder").name
    assert "1.5b" in resolve("qwen2.5-coder", "target").name


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve(str(tmp_path)) == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "m.gguf").write_bytes(b"x")
    assert resolve("~/m.gguf") == tmp_path / "m.gguf"
    with pytest.raises(BackendError, match="no such file or folder: ./missing"):
        resolve("./missing")
