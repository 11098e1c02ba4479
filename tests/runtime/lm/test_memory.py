"""A model that does not fit is refused with figures instead of being killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.protocol.errors import BackendError
from outrider.runtime.lm import memory
from outrider.runtime.lm.memory import MIB, available, check_fits


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder


def test_the_smaller_of_machine_and_container(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9000 kB\nMemAvailable:    5000 kB\n")
    assert available(meminfo, tmp_path) == 5000 * 1024
    stat = "anon 7\ninactive_file 1000\nactive_file 500\n"
    write(tmp_path, memory_max="4000000\n", memory_current="3000000\n", memory_stat=stat)
    assert available(meminfo, tmp_path) == 1_001_500
    write(tmp_path, memory_max="max\n")
    assert available(meminfo, tmp_path) == 5000 * 1024


def test_unknown_is_not_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert available(tmp_path / "none", tmp_path) is None
    (tmp_path / "meminfo").write_text("MemAvailable: lots\n")
    assert available(tmp_path / "meminfo", tmp_path) is None
    monkeypatch.setattr(memory, "available", lambda: None)
    check_fits("m", 10**15, 10**15, "a cache")


def test_the_refusal_gives_the_figures(drafter_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from outrider.runtime.lm.llama_cpp import LlamaModel

    monkeypatch.setattr(memory, "available", lambda: 12 * MIB)
    # 2 layers x 1 head x (32 + 32) x 4 bytes = 512 bytes an id.
    figures = r"about 18 MiB \(2 of weights, 16 for a f32 cache of 16 x 2048 ids\) and 12 MiB"
    with pytest.raises(BackendError, match=figures):
        LlamaModel.load(drafter_gguf, 2048, 16)
    LlamaModel.load(drafter_gguf, 2048, 8).close()
    LlamaModel.load(drafter_gguf, 2048, 16, kv="f16").close()
