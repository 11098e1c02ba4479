"""What is written is whole and by one command; what cannot be written is said, and none stays."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from outrider.protocol.errors import BackendError, SettingError
from outrider.quantize import folder as module
from outrider.quantize.checkpoint import read_checkpoint
from outrider.quantize.folder import alone, refuse_a_model, saving, write_checkpoint, writing
from outrider.quantize.shrink import shrink

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "models" / "target"
HOLDER = """
import sys
from pathlib import Path
from outrider.quantize.folder import alone
with alone(Path(sys.argv[1])):
    (Path(sys.argv[1]) / ".making-x").mkdir()
    print("in", flush=True)
    sys.stdin.read()
"""


def test_two_commands_do_not_write_one_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(out)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "in\n"
        with pytest.raises(BackendError, match="another outrider quantize is at work"), alone(out):
            pass
        assert (out / ".making-x").exists()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with alone(out):  # the lock died with it, and what it left is removed
        assert not list(out.iterdir())


def test_a_folder_in_which_nothing_was_made_does_not_stay(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), alone(tmp_path / "out"):
        raise ZeroDivisionError
    assert not (tmp_path / "out").exists()
    with alone(tmp_path / "out"):
        (tmp_path / "out" / "a").touch()
    assert (tmp_path / "out" / "a").exists()


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingError, match="written: File exists"), alone(tmp_path / "file"):
        pass


def _half(file: Path) -> None:
    file.write_text("ne")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class TestFullDisk:
    def test_a_file(self, tmp_path: Path) -> None:
        out = tmp_path / "x"
        out.write_text("old")
        with pytest.raises(BackendError, match=r"write .*x: No space left"), saving(out, 3) as part:
            _half(part)
        assert out.read_text() == "old"
        assert [file.name for file in tmp_path.iterdir()] == ["x"]
        with pytest.raises(BackendError, match=r"needs 1073741824 MiB and"), saving(out, 1 << 50):
            pass

    def test_other_peoples_errors(self, tmp_path: Path) -> None:
        with pytest.raises(BackendError, match="cannot write"), writing(tmp_path):
            raise RuntimeError("I/O error: No space left on device (os error 28)")
        with pytest.raises(RuntimeError, match="another"), writing(tmp_path):
            raise RuntimeError("another")
        with pytest.raises(BackendError, match="^own: No space left$"), writing(tmp_path):
            raise BackendError("own: No space left")

    def test_a_checkpoint(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The disk fills up at the last file: no weights stay without a tokenizer."""

        def full(_source: Path, _out: Path) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(module.shutil, "copyfile", full)
        with pytest.raises(BackendError, match="No space left"):
            shrink(read_checkpoint(TARGET), tmp_path / "small", 2)
        assert not list((tmp_path / "small").iterdir())


def test_what_makes_a_checkpoint_comes_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill between two moves leaves no configuration, so that nothing takes it for a model."""

    def save(made: Path) -> None:
        for name in ("config.json", "model.safetensors", "tokenizer.json"):
            (made / name).touch()

    replace: Callable[[Path, Path], Path] = Path.replace
    moved: list[str] = []

    def watch(source: Path, to: Path) -> Path:
        moved.append(to.name)
        return replace(source, to)

    monkeypatch.setattr(Path, "replace", watch)
    write_checkpoint(tmp_path, save, tokenizer=TARGET)
    assert moved[-1] == "config.json"
    assert {"model.safetensors", "tokenizer.json"} < set(moved)


@pytest.mark.parametrize("name", ["config.json", "outrider_pack.json"])
def test_nothing_is_written_over(name: str, tmp_path: Path) -> None:
    refuse_a_model(tmp_path)
    (tmp_path / name).touch()
    with pytest.raises(SettingError, match=f"holds a model already .{name}.; choose another"):
        shrink(read_checkpoint(TARGET), tmp_path, 2)
