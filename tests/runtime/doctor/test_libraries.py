"""Libraries are tried in a child process: one that ends with a signal ends nothing else."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from pathlib import Path

import pytest

from outrider.runtime.doctor import child, libraries
from outrider.runtime.doctor.libraries import Library, check_library, known_bad

STUB = Library("stub-package", "outrider_stub", "edge", "testing")


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """An installed package with this code in it."""

    def write(code: str, version: str = "1.0") -> None:
        (tmp_path / "outrider_stub.py").write_text(code)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setattr(libraries, "version_of", lambda _package: version)

    return write


def test_an_illegal_instruction_is_told_and_survived(stub: Callable[[str], None]) -> None:
    stub("import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n")
    found = check_library(STUB)
    assert found.state == "problem"
    assert found.says == "1.0 uses instructions that this CPU lacks"
    assert found.facts["killed_by"] == "SIGILL"
    assert "install a build for this processor" in (found.do or "")


def test_another_signal(stub: Callable[[str], None]) -> None:
    stub("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    assert "it was ended by SIGSEGV" in check_library(STUB).says


def test_an_import_that_fails_says_why(stub: Callable[[str], None]) -> None:
    stub("raise OSError('libgomp.so.1: cannot open shared object file')\n")
    found = check_library(STUB)
    assert found.state == "problem"
    assert "libgomp.so.1" in found.says
    assert "pip install --force-reinstall" in (found.do or "")


def test_one_that_works(stub: Callable[[str], None]) -> None:
    stub("")
    assert check_library(STUB).state == "ok"


def test_one_that_is_known_to_be_bad(
    stub: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    import platform

    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    (tmp,) = [entry for entry in libraries.KNOWN_BAD if entry.package == "onnxruntime"]
    monkeypatch.setattr(libraries, "version_of", lambda _package: "1.21.1")
    monkeypatch.setattr(child, "run", lambda *_: child.Outcome())
    found = check_library(libraries.DRAFTING[0])
    assert found.state == "warning"
    assert "Raspberry Pi 4" in found.says
    assert found.do == tmp.do
    crashed = child.Outcome(failure="it was ended by SIGILL", killed_by="SIGILL")
    monkeypatch.setattr(child, "run", lambda *_: crashed)
    assert check_library(libraries.DRAFTING[0]).do == tmp.do


@pytest.mark.parametrize(
    ("package", "version", "machine", "bad"),
    [
        ("onnxruntime", "1.21.0", "aarch64", True),
        ("onnxruntime", "1.21.0", "x86_64", False),
        ("onnxruntime", "1.22.0", "aarch64", False),
        ("torch", "2.6.0", "aarch64", True),
    ],
)
def test_what_is_known(package: str, version: str, machine: str, bad: bool) -> None:
    assert (known_bad(package, version, machine) is not None) is bad


def test_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "version_of", lambda _package: None)
    assert check_library(STUB).state == "ok"
    needed = check_library(STUB, required=True)
    assert (needed.state, needed.do) == ("problem", "pip install '.[edge]' in Outrider's folder")
    names = [check.name for check in libraries.check_libraries() if check.state == "problem"]
    assert names == ["drafter backends", "tokenizers"]


def test_versions_are_read_without_importing() -> None:
    assert libraries.version_of("numpy") == importlib.metadata.version("numpy")
    assert libraries.version_of("no-such-package-anywhere") is None


def test_a_child_that_hangs_or_babbles() -> None:
    assert "within 0.2 s" in (child.run("while True: pass", timeout=0.2).failure or "")
    assert "nothing that can be read" in (child.run("print('hello')").failure or "")
    assert child.run("print('noise'); print('{\"a\": 1}')").facts == {"a": 1}
