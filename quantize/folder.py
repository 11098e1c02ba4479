"""The folder that a command writes: by one command at a time, and never half of a model in it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from outrider.protocol.errors import BackendError, OutriderError, SettingError
from outrider.runtime.lm.manifest import MANIFEST_FILE

MAKING = ".making-"
"""How the folder is called in which parts are made before they are moved to their place."""

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
)


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """``out``, made if it is not there, for this command alone.

    Unfinished parts of a command that was killed are removed; the lock went with its process.

    Raises:
        SettingError: it is no folder, or not one that can be written to.
        BackendError: another command is at work in it, or the disk is full.
    """
    new = not out.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            handle = os.open(out, os.O_RDONLY)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise BackendError(f"cannot write {out}: {error.strerror}") from error
        raise SettingError(f"--out {out} cannot be written: {error.strerror or error}") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise BackendError(
                f"another outrider quantize is at work in {out}; wait for it, or choose another "
                "folder"
            ) from error
        for left in out.glob(f"{MAKING}*"):
            shutil.rmtree(left, ignore_errors=True)
        yield
    finally:
        os.close(handle)
        if new:
            with contextlib.suppress(OSError):  # it stays if there is anything in it
                out.rmdir()


@contextmanager
def saving(out: Path, size: int) -> Iterator[Path]:
    """A file to write beside ``out`` that takes its name only when it is whole.

    Raises:
        BackendError: there is no room for ``size`` bytes, or the disk filled up.
    """
    part = out.with_name(out.name + ".part")
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(out.parent).free
        if size > free:
            raise BackendError(
                f"{out} needs {math.ceil(size / (1 << 20))} MiB and the disk has {free >> 20} MiB "
                "free"
            )
        try:
            yield part
            part.replace(out)
        finally:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Names what could not be written, whoever wrote it.

    Raises:
        BackendError: in the words of the system.
    """
    try:
        yield
    except OutriderError:
        raise
    except OSError as error:
        raise BackendError(f"cannot write {out}: {error.strerror or error}") from error
    except Exception as error:  # safetensors has an error of its own kind, torch a RuntimeError
        if "os error" not in str(error) and "No space left" not in str(error):
            raise
        raise BackendError(f"cannot write {out}: {error}") from error


def refuse_a_model(out: Path) -> None:
    """Nobody's checkpoint or pack is written over.

    Raises:
        SettingError: the folder holds one.
    """
    for name in ("config.json", MANIFEST_FILE):
        if (out / name).exists():
            raise SettingError(
                f"{out} holds a model already ({name}); choose another folder, or remove it"
            )


def write_checkpoint(out: Path, save: Callable[[Path], object], *, tokenizer: Path) -> None:
    """Write a checkpoint by ``save(folder)``, with the tokenizer of another one.

    It is made in a folder of its own. What makes it a checkpoint, its configuration, comes last.

    Raises:
        BackendError: it cannot be written; nothing of it is left then.
    """
    with writing(out), tempfile.TemporaryDirectory(dir=out, prefix=MAKING) as made_in:
        made = Path(made_in)
        save(made)
        for name in TOKENIZER_FILES:
            if (tokenizer / name).is_file():
                shutil.copyfile(tokenizer / name, made / name)
        for file in sorted(made.iterdir(), key=lambda file: file.name == "config.json"):
            file.replace(out / file.name)
