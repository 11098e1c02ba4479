"""The installer for small boards, as far as it can be checked on another machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "boards"
SCRIPT = FOLDER / "install.sh"
BOARDS = {
    "pi": "Raspberry Pi 5 Model B Rev 1.0",
    "jetson": "NVIDIA Jetson Orin Nano Developer Kit",
    "other": None,
}


def dry(
    tmp_path: Path, *args: str, board: str | None = None, memory: int = 6000, **env: str
) -> subprocess.CompletedProcess[str]:
    """A dry run in an empty home."""
    tree, meminfo = tmp_path / "model", tmp_path / "meminfo"
    if board:
        tree.write_text(board + "\0")
    meminfo.write_text(f"MemTotal: 1 kB\nMemAvailable: {memory * 1024} kB\n")
    own = {"HOME": str(tmp_path), "OUTRIDER_DEVICE_TREE": str(tree)}
    own |= {"OUTRIDER_MEMINFO": str(meminfo), "PATH": os.environ["PATH"]}
    return subprocess.run(
        ["sh", str(SCRIPT), "--dry-run", *args],
        capture_output=True,
        text=True,
        timeout=30,
        env=own | env,
        check=False,
    )


@pytest.mark.parametrize("board", BOARDS)
@pytest.mark.parametrize("drafter", ["onnx", "llama", "none"])
def test_what_it_would_do(tmp_path, board, drafter) -> None:
    found = dry(tmp_path, "--drafter", drafter, board=BOARDS[board])
    assert found.returncode == 0, found.stderr
    cuda = "-DCMAKE_CUDA_ARCHITECTURES=87" in found.stdout
    assert cuda == (board == "jetson" and drafter == "llama")
    assert ("[edge-llama]" in found.stdout) == (drafter == "llama")
    assert ("--only-binary=:all:" in found.stdout) == (drafter != "llama")
    assert not list((tmp_path).glob(".local/**/*"))  # nothing was done


def test_an_old_python_gets_a_newer_one_beside_it(tmp_path) -> None:
    old = tmp_path / "python-old"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.10.12" && exit 0\nexit 1\n')
    old.chmod(0o755)
    found = dry(tmp_path, board=BOARDS["jetson"], OUTRIDER_PYTHON=str(old))
    assert "Python 3.10.12 is too old" in found.stdout
    assert "venv --python 3.12" in found.stdout


def test_memory_is_refused_in_advance(tmp_path) -> None:
    found = dry(tmp_path, "--drafter", "llama", board=BOARDS["pi"], memory=900)
    assert found.returncode == 1
    assert "needs about 1800 MiB here, 900 MiB are available" in found.stderr
    assert dry(tmp_path, board=BOARDS["pi"], memory=900).returncode == 0


@pytest.mark.parametrize("args", [("--drafter", "gpu"), ("--drafter",), ("--fast",)])
def test_mistakes(tmp_path, args) -> None:
    found = dry(tmp_path, *args)
    assert found.returncode == 2
    assert found.stderr.count("\n") == 1


def test_shellcheck() -> None:
    if not shutil.which("shellcheck"):
        pytest.skip("shellcheck is not installed")
    scripts = [SCRIPT, FOLDER.parent / "curl.sh"]
    done = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True, check=False)
    assert done.stdout == ""


def test_the_unit(tmp_path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    program = tmp_path / ".local/share/outrider/venv/bin/outrider"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / "outrider.service"
    unit.write_text((FOLDER / "outrider.service").read_text().replace("%h", str(tmp_path)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)},
    )
    assert "outrider.service" not in done.stderr, done.stderr


def test_the_settings_are_those_of_the_commands(tmp_path, monkeypatch) -> None:
    import typer

    from outrider.cli.main import app
    from outrider.cli.settings import values_for

    root = typer.main.get_command(app)
    text = (FOLDER / "config.toml").read_text().replace("# api-key", "api-key")
    text = text.replace("# tls-f", "tls-f").replace("# draft-m", "draft-m")
    file = tmp_path / "config.toml"
    file.write_text(text)
    assert len(tomllib.loads(text)) == 6
    found = values_for(file, root.commands["serve"], ("serve",), root=root)
    assert found["port"] == 8080
    assert found["max_sessions"] == 2
    assert found["api_key_file"] == "~/.config/outrider/key.txt"
