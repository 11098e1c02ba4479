"""``outrider service``: the unit, what systemd thinks of it, and what is done with it."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

import pytest

from outrider.cli import exits, service


@pytest.fixture
def place(invoke, tmp_path, monkeypatch):
    """A home with settings, and a stand-in for systemctl that only writes down its arguments."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "a b%c"))
    file = tmp_path / "a b%c" / "outrider" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text('cloud = "ws://127.0.0.1:8471"\nthreads = 2\n[serve]\nport = 8081\n')
    programs = tmp_path / "bin"
    programs.mkdir()
    fake = programs / "systemctl"
    fake.write_text(f'#!/bin/sh\necho "$@" >> {shlex.quote(str(tmp_path / "calls"))}\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return tmp_path


def calls(place: Path) -> list[str]:
    file = place / "calls"
    return file.read_text().splitlines() if file.exists() else []


@pytest.mark.parametrize(
    ("role", "words"), [("edge", "outrider serve"), ("cloud", "outrider cloud serve")]
)
@pytest.mark.parametrize("scope", ["--user", "--system"])
def test_what_would_be_written(invoke, place, role, words, scope) -> None:
    result = invoke("service", "install", "--role", role, scope, "--dry-run")
    assert result.status == exits.DONE, result.err
    assert result.err == ""  # systemd-analyze, where it is installed, has nothing to say
    start = next(line for line in result.out.splitlines() if line.startswith("ExecStart="))
    assert f'{words} --config "{place}/a b%%c/outrider/config.toml"' in start
    assert ("User=" in result.out) == (scope == "--system")
    assert ("default.target" in result.out) == (scope == "--user")
    assert not (place / "a b%c" / "systemd").exists()
    assert calls(place) == []


def test_systemd_would_say_so(place) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    text = service.unit(service.Role.EDGE, place / "x", user=True)
    assert service._verified("outrider.service", text, user=True) == []
    broken = text.replace("Restart=on-failure", "Restart=perhaps").replace("/outrider", "/nothing")
    said = "\n".join(service._verified("outrider.service", broken, user=True))
    assert "perhaps" in said
    assert "nothing" in said


def test_install_again_and_uninstall(invoke, place) -> None:
    unit = place / "a b%c" / "systemd" / "user" / "outrider.service"
    for _ in range(2):
        result = invoke("service", "install")
        assert result.status == exits.DONE, result.err
        assert unit.read_text().startswith(service.OURS)
    once = ["--user daemon-reload", "--user enable --now outrider.service"]
    assert calls(place) == once * 2
    assert invoke("service", "uninstall", "--dry-run").status == exits.DONE
    assert unit.exists()
    assert invoke("service", "uninstall").status == exits.DONE
    assert not unit.exists()
    assert calls(place)[4:] == ["--user disable --now outrider.service", "--user daemon-reload"]
    assert invoke("service", "uninstall").status == exits.USAGE


def test_mistakes(invoke, place) -> None:
    unit = place / "a b%c" / "systemd" / "user" / "outrider.service"
    unit.parent.mkdir(parents=True)
    unit.write_text("[Service]\n")
    for command in ("install", "uninstall"):
        result = invoke("service", command)
        assert result.status == exits.USAGE
        assert "was not written by outrider" in result.err
    assert unit.read_text() == "[Service]\n"
    unit.unlink()
    (place / "bin" / "systemctl").write_text("#!/bin/sh\necho 'no bus' >&2; exit 1\n")
    failed = invoke("service", "install")
    assert failed.status == exits.FAILED
    assert "systemctl --user daemon-reload: no bus" in failed.err
    settings = place / "a b%c" / "outrider" / "config.toml"
    settings.write_text("prot = 1\n")
    wrong = invoke("service", "install", "--dry-run")
    assert wrong.status == exits.USAGE
    assert "no command has a flag named 'prot'" in wrong.err
    settings.unlink()
    missing = invoke("service", "install", "--dry-run")
    assert missing.status == exits.USAGE
    assert "outrider init writes one" in missing.err


@pytest.mark.parametrize(
    ("word", "written"),
    [("plain", "plain"), ("a b", '"a b"'), ("50%", "50%%"), ("$HOME", "$$HOME"), ('"', '"\\""')],
)
def test_words_for_systemd(word: str, written: str) -> None:
    assert service.quoted(word) == written
