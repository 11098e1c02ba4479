"""What the machine is, told from the kernel's files."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from outrider.runtime.doctor import machine
from outrider.runtime.lm import memory
from outrider.runtime.lm.memory import MIB


def by_name() -> dict[str, machine.Check]:
    return {check.name: check for check in machine.check_machine()}


def test_this_machine() -> None:
    found = by_name()
    assert found["cores"].facts["cores"] == machine.cores() > 0
    assert {"processor", "memory"} <= set(found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("processor : 0\nflags\t\t: fpu avx2 fma\n", {"fpu", "avx2", "fma"}),
        ("Features\t: fp asimd asimddp\n", {"fp", "asimd", "asimddp"}),
        ("model name : x\n", set()),
    ],
)
def test_flags_of_both_kinds(text: str, expected: set[str], tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(text)
    assert machine.flags(file) == expected
    assert machine.flags(tmp_path / "none") == frozenset()


def test_a_processor_without_fast_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(machine, "flags", lambda: frozenset({"asimd"}))
    found = by_name()["processor"]
    assert found.state == "warning"
    assert "without asimddp" in found.says


def test_heat(tmp_path: Path) -> None:
    assert machine.warmest(tmp_path) is None
    for number, value in enumerate(("45000", "83500", "broken")):
        zone = tmp_path / f"thermal_zone{number}"
        zone.mkdir()
        (zone / "temp").write_text(value)
    warmest = machine.warmest(tmp_path)
    assert warmest == 83.5
    assert machine._warmth(83.5).state == "warning"
    assert machine._warmth(50).state == "ok"


def test_too_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4096")
    found = by_name()["cores"]
    assert found.state == "warning"
    assert "OMP_NUM_THREADS is 4096" in found.says


@pytest.mark.parametrize(
    ("free", "state"), [(None, "ok"), (100 * MIB, "warning"), (4096 * MIB, "ok")]
)
def test_memory(free: int | None, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available", lambda: free)
    assert by_name()["memory"].state == state
