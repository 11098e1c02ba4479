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


def test_it_sets_the_board_up_by_the_commands_for_that(tmp_path) -> None:
    program = f"{tmp_path}/.local/share/outrider/venv/bin/outrider"
    alone = dry(tmp_path, board=BOARDS["pi"]).stdout
    assert f"Next: {program} init " in alone
    assert f"{program} service install" in alone
    found = dry(tmp_path, "--cloud", "wss://gpu.example:8471", "--api-key-file", "my key.txt")
    assert f"+ {program} init --cloud wss://gpu.example:8471 --api-key-file my key.txt --yes" in (
        found.stdout
    )
    assert f"+ {program} service install" in found.stdout
    file = tmp_path / ".config/outrider/config.toml"
    file.parent.mkdir(parents=True)
    file.write_text("port = 1\n")
    again = dry(tmp_path, "--cloud", "wss://gpu.example:8471").stdout
    assert f"{file} is kept as it is" in again
    assert "+ {program} init" not in again


@pytest.mark.parametrize("drafter", ["onnx", "none"])
def test_it_does_so_for_real(tmp_path, drafter) -> None:
    """With programs that only say what they were called with in the place of pip's and ours."""
    venv = tmp_path / ".local/share/outrider/venv/bin"
    venv.mkdir(parents=True)
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 0\n")
    settings = tmp_path / ".config/outrider/config.toml"
    (venv / "pip").write_text("#!/bin/sh\nexit 0\n")
    (venv / "outrider").write_text(
        f'#!/bin/sh\necho "called $*"\n[ "$1" != init ] || {{ mkdir -p {settings.parent}; '
        f"echo '[serve]' > {settings}; echo 'port = 9' >> {settings}; }}\n"
    )
    for program in (python, venv / "pip", venv / "outrider"):
        program.chmod(0o755)
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "OUTRIDER_PYTHON": str(python)}
    args = ["--drafter", drafter, "--cloud", "ws://127.0.0.1:1"]
    done = subprocess.run(
        ["sh", str(SCRIPT), *args], capture_output=True, text=True, env=env, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "called init --cloud ws://127.0.0.1:1 --yes" in done.stdout
    assert "called service install" in done.stdout
    read = tomllib.loads(settings.read_text())
    assert read == ({"draft": "off"} if drafter == "none" else {}) | {"serve": {"port": 9}}
    assert settings.stat().st_mode & 0o077 == 0 or drafter != "none"
