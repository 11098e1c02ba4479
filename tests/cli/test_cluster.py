"""``outrider cloud cluster`` and ``scale`` as a user meets them."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from outrider.cli.cloud_status import view

OUTRIDER = [sys.executable, "-m", "outrider.cli.main"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*OUTRIDER, *arguments], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
def test_ray_is_missing() -> None:
    done = run("cloud", "cluster")
    assert done.returncode == 1
    assert "Ray is not installed" in done.stderr
    assert ".[cluster]" in done.stderr
    assert "--launcher processes" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_placement_that_there_is_not() -> None:
    done = run("cloud", "cluster", "--launcher", "processes", "--placement", "nearest")
    assert done.returncode == 2
    assert "'nearest' is not one of random" in done.stderr


def test_a_learned_policy_is_for_the_simulator(tmp_path: Path) -> None:
    """Named as such whether or not there is such a file, before anything is started."""
    there = tmp_path / "actor.onnx"
    there.write_bytes(b"no policy at all")
    for name in (str(there), "checkpoint.pt"):
        done = run("cloud", "cluster", "--launcher", "processes", "--placement", name)
        assert done.returncode == 2
        assert name in done.stderr
        assert "fits the simulator alone" in done.stderr
        assert "random, " in done.stderr
        assert "Traceback" not in done.stderr


def test_a_model_that_there_is_not() -> None:
    done = run("cloud", "cluster", "--launcher", "processes", "--model", "/nowhere/at/all.gguf")
    assert done.returncode == 1
    assert "/nowhere/at/all.gguf" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_gateway_beyond_loopback_needs_a_key() -> None:
    done = run("cloud", "cluster", "--launcher", "processes", "--host", "0.0.0.0", "--port", "0")
    assert done.returncode == 1
    assert "a key file" in done.stderr
    assert "Traceback" not in done.stderr


def test_scale_where_there_is_no_cluster() -> None:
    done = run("cloud", "scale", "--port", "1")
    assert done.returncode == 3
    assert "no cluster takes orders" in done.stderr
    both = run("cloud", "scale", "--replicas", "2", "--drain", "replica-0")
    assert "two orders" in both.stderr


@pytest.mark.llama
def test_a_cluster_from_its_start_to_its_end(tmp_path: Path) -> None:
    """Status, orders, keys that are read again; at the end of its standard input all of it ends."""
    keys = tmp_path / "keys.txt"
    keys.write_text("ann:first-key-of-ann\n")
    command = ["cloud", "cluster", "--launcher", "processes", "--target-backend", "llama"]
    more = ["--replicas", "1", "--port", "0", "--json", "--with-stdin", "--api-key-file", str(keys)]
    process = subprocess.Popen(
        [*OUTRIDER, *command, *more],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )

    def status(key: str, *more: str) -> subprocess.CompletedProcess[str]:
        return run("cloud", "status", "--cloud", ready["url"], "--api-key", key, *more)

    try:
        ready = json.loads(process.stdout.readline())
        port = ready["url"].rpartition(":")[2].partition("/")[0]
        said = json.loads(status("first-key-of-ann", "--json").stdout)
        assert list(said["replicas"]) == ["replica-0"]
        assert "replica-0" in status("first-key-of-ann").stdout
        known = json.loads(run("cloud", "scale", "--port", port, "--json").stdout)
        assert list(known["replicas"]) == ["replica-0"]
        last = run("cloud", "scale", "--port", port, "--drain", "replica-0")
        assert last.returncode == 2
        assert "the last replica" in last.stderr
        keys.write_text("ann:second-key-of-ann\n")
        process.send_signal(signal.SIGHUP)
        while status("second-key-of-ann").returncode:
            assert process.poll() is None
        assert status("first-key-of-ann").returncode == 3
    finally:
        process.stdin.close()
        assert process.wait(60) == 0
    assert status("second-key-of-ann").returncode == 3


def test_what_a_gateway_says_as_a_table() -> None:
    from rich.console import Console

    replica = {"state": "ready", "working": 1, "slots": 4, "round_trip_s": 0.002}
    facts = {
        "model": "m",
        "state": "ok",
        "replicas": {"a": replica, "b": {"state": "refused", "why": "its model is 'n'"}},
        "placement": [
            {"session": "0123456789", "key": "", "replica": "a", "ids": 7, "moves": 2},
            {"session": "fedcba98", "key": "ann", "replica": None, "ids": 9,
             "weight": 1.25, "round_trip_s": 0.012, "draft_bytes_per_second": 256.4},
        ],
    }  # fmt: skip
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(view(facts))
    text = console.export_text()
    for part in ("1 of 4", "2.0 ms", "its model is 'n'"):
        assert part in text
    rows = [line.split() for line in text.splitlines()]
    assert ["01234567", "(none)", "a", "-", "7", "2", "1.00", "no", "cap"] in rows
    assert ["fedcba98", "ann", "waits", "12.0", "ms", "9", "0", "1.25", "256", "B/s"] in rows
