"""`outrider sim`: interrupted and gone on, a full disk, folders and policies that do not fit."""

from __future__ import annotations

import json
import resource
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from outrider.cli import exits

pytest.importorskip("pettingzoo")
pytest.importorskip("scipy")


def wait_for_rows(process, file: Path, count: int) -> None:
    deadline = time.monotonic() + 200
    while not file.exists() or file.read_bytes().count(b"\n") < count:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_ctrl_c_and_the_same_command_again(popen, tmp_path: Path) -> None:
    folder, rows = tmp_path / "new" / "uara", tmp_path / "new" / "uara" / "rows.jsonl"
    kept: list[str] = []
    for _ in range(2):
        process = popen("sim", "uara", "--quick", "--no-learn", "--out", folder)
        wait_for_rows(process, rows, len(kept) + 3)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == exits.INTERRUPTED
        said = " ".join(err.decode().split())
        assert "keeps what was done: the same command goes on from there" in said
        assert "Traceback" not in said
        lines = rows.read_text().splitlines()
        assert lines[: len(kept)] == kept
        kept = lines
        keys = [tuple(list(json.loads(line).items())[:6]) for line in lines]
        assert len(keys) == len(set(keys))  # nothing is done twice
        with rows.open("a") as file:
            file.write('{"policy": "ran')  # as a cut in the middle of a line leaves it


def test_a_full_disk(popen, tmp_path: Path) -> None:
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))

    process = popen(
        "sim", "uara", "--quick", "--no-learn", "--out", tmp_path, preexec_fn=small_files
    )
    _, err = process.communicate(timeout=200)
    assert process.returncode == exits.FAILED
    said = " ".join(err.decode().split())
    assert "cannot write" in said
    assert "rows.jsonl" in said
    assert "bug" not in said


def test_folders_that_do_not_fit(invoke, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    found = invoke("sim", "uara", "--quick", "--no-learn", "--out", file)
    assert found.status == exits.FAILED
    assert "cannot write to" in found.err
    other = tmp_path / "other"
    other.mkdir()
    (other / "rows.jsonl").write_text('{"policy": "random"}\n')
    found = invoke("sim", "uara", "--quick", "--no-learn", "--out", other)
    assert found.status == exits.FAILED
    assert "line 1 is no row of this experiment" in " ".join(found.err.split())
    (other / "rows.jsonl").write_bytes(b"\xff\xfe\n")
    found = invoke("sim", "uara", "--quick", "--no-learn", "--out", other)
    assert found.status == exits.FAILED
    assert "cannot read" in found.err


def test_policies_that_do_not_fit(invoke, tmp_path: Path, models: Path) -> None:
    words = {
        tmp_path / "none.onnx": "no such file",
        Path(__file__): "cannot load",
        next((models / "drafter").rglob("*.onnx")): "is no policy of placement",
    }
    for file, expected in words.items():
        found = invoke("sim", "uara", "--quick", "--no-learn", "--out", tmp_path, "--policy", file)
        assert found.status == exits.FAILED
        assert expected in " ".join(found.err.split())
        assert not (tmp_path / "rows.jsonl").exists()  # said before any work


def test_radio_that_cannot_be(invoke, tmp_path: Path) -> None:
    found = invoke("sim", "radio", "--scenario", "moon", "--out", tmp_path)
    assert found.status == exits.USAGE
    assert "scenario 'moon' is not one of umi, uma" in found.err
    found = invoke("sim", "radio", "--devices", "0", "--out", tmp_path)
    assert found.status == exits.USAGE
    assert "at least one device" in " ".join(found.err.split())


def test_radio_of_both_kinds(invoke, tmp_path: Path) -> None:
    pytest.importorskip("sionna")
    found = invoke("sim", "radio", "--devices", "2", "--servers", "2", "--slots", "13",
                   "--out", tmp_path, "--json")  # fmt: skip
    assert found.status == exits.DONE
    assert found.json["sionna"]["path_loss_off_db"] < 1e-3
    assert "NaN" not in found.out
    for name in ("numpy", "sionna"):
        with np.load(tmp_path / f"{name}.npz") as trace:
            assert trace["sinr"].shape == trace["rate"].shape == (13, 2, 2)
