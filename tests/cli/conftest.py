"""The command as users run it: real processes, real sockets, the embedded models."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

START = 90.0
COMMAND = [sys.executable, "-m", "outrider.cli.main"]


def clean_environment(home: Path) -> dict[str, str]:
    """No settings of whoever runs the tests; one thread a model."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("OUTRIDER_")}
    return env | {"XDG_CONFIG_HOME": str(home), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty place for configuration."""
    return tmp_path_factory.mktemp("config-home")


@pytest.fixture(scope="session")
def models() -> Path:
    """The embedded models."""
    return Path(__file__).resolve().parents[2] / "models"


@dataclass
class Result:
    """How a command ended and what it said."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one object on standard output."""
        lines = self.out.splitlines()
        assert len(lines) == 1, self
        found: dict[str, Any] = json.loads(lines[0])
        return found


@pytest.fixture
def invoke(home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    """``invoke(*args)`` runs the command in this process and gives its :class:`Result`."""
    from outrider.cli.main import main

    for name in list(os.environ):
        if name.startswith("OUTRIDER_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))

    def run(*args: str) -> Result:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(arg) for arg in args])
        out, err = capfd.readouterr()
        return Result(int(ended.value.code or 0), out, err)

    return run


@pytest.fixture(scope="session")
def process(home: Path):
    """``process(*args, stdin=b"", **env)`` runs the command as a process of its own."""

    def run(*args: str, stdin: bytes = b"", **env: str) -> Result:
        done = subprocess.run(
            [*COMMAND, *map(str, args)],
            input=stdin,
            capture_output=True,
            timeout=START,
            env=clean_environment(home) | env,
            check=False,
        )
        return Result(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


@pytest.fixture(scope="session")
def popen(home: Path):
    """``popen(*args, **more)`` starts the command; whatever is left of it is killed at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*args: str, env: dict[str, str] | None = None, **more: Any):
        more.setdefault("stdin", subprocess.DEVNULL)
        more.setdefault("stderr", subprocess.PIPE)
        found = subprocess.Popen(
            [*COMMAND, *map(str, args)],
            stdout=subprocess.PIPE,
            bufsize=0,  # what a test has not read is still there for communicate()
            env=clean_environment(home) | (env or {}),
            **more,
        )
        started.append(found)
        return found

    yield start
    for found in started:
        if found.poll() is None:
            found.kill()
        found.wait()
        for pipe in (found.stdin, found.stdout, found.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


@dataclass
class Cloud:
    """A running ``outrider cloud serve``; ``errors`` collects what it says on stderr."""

    process: subprocess.Popen[bytes]
    ready: dict[str, Any]
    errors: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        found: str = self.ready["url"]
        return found


def read_some(process: subprocess.Popen[bytes], count: int) -> bytes:
    """At least ``count`` bytes of standard output, fewer only at its end."""
    assert process.stdout is not None
    found = b""
    while len(found) < count and (data := process.stdout.read(count - len(found))):
        found += data
    return found


@pytest.fixture(scope="session")
def read():
    """:func:`read_some`."""
    return read_some


def drain(cloud: Cloud) -> None:
    """Read stderr as it comes, so that the pipe never fills."""
    assert cloud.process.stderr is not None
    for line in cloud.process.stderr:
        cloud.errors.append(line.decode("utf-8", "replace"))


@pytest.fixture(scope="session")
def start_cloud(popen):
    """``start_cloud(*args)`` serves on a free port and waits until it is ready."""

    def start(*args: str) -> Cloud:
        process = popen("cloud", "serve", "--port", "0", "--json", *args)
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise AssertionError(process.stderr.read().decode())
        cloud = Cloud(process, json.loads(line))
        threading.Thread(target=drain, args=(cloud,), daemon=True).start()
        return cloud

    return start


@pytest.fixture(scope="session")
def cloud(start_cloud) -> Iterator[Cloud]:
    """One cloud with the embedded target on transformers, for all tests that leave it alive."""
    pytest.importorskip("torch")
    return start_cloud()


@pytest.fixture(scope="session")
def llama_cloud(start_cloud) -> Iterator[Cloud]:
    """The same on llama.cpp: it starts in a moment, for tests that do bad things to a cloud."""
    pytest.importorskip("llama_cpp")
    return start_cloud("--target-backend", "llama")


@pytest.fixture
def altered_pack(models: Path, tmp_path: Path):
    """``altered_pack(change)``: the ONNX draft pack with ``change`` applied to its tokenizer."""

    def make(change) -> Path:
        folder = tmp_path / "altered"
        folder.mkdir()
        for file in (models / "drafter").iterdir():
            if file.is_file() and file.suffix not in (".gguf", ".safetensors"):
                (folder / file.name).write_bytes(file.read_bytes())
        place = folder / "tokenizer.json"
        content = json.loads(place.read_text("utf-8"))
        change(content)
        place.write_text(json.dumps(content), "utf-8")
        return folder

    return make
