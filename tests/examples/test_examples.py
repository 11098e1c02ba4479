"""Every example as a reader would run it, and what it prints."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples"
ENDPOINT = ("openai_client.py", "curl.sh")
SAYS = {
    "python_api.py": r"embedded-target:.*\n.*\d+ of \d+ guesses accepted, \d+ passes\nit goes on:",
    "python_async.py": r"In the beginning.+---\nimport os.+---\nThe quick brown.+cancelled",
    "two_devices.py": r"laptop: \d+ guesses.*\nphone:  0 guesses.*\nthe same text: yes",
    "bad_link.py": r"loopback: first .*\ngeo: first token after \d{3,} ms\n"
    r"cut: 1 new link\nthe same text: yes",
    "group.py": r"gguf \(llama\) \+ model.onnx \(onnx\): \d+ of \d+ .*the same text: yes",
    "collaborate.py": r"target: .*  0 of ours.*text: yes\n0.9 of ours.*text: no",
    "own_policy.py": r"\d+ guesses in \d+ frames, \d+ accepted",
    "openai_client.py": r"24 tokens of embedded-target",
    "curl.sh": r'"object":"list".*"chat.completion".*data: \[DONE\]',
}


def environment() -> dict[str, str]:
    found = {k: v for k, v in os.environ.items() if not k.startswith("OUTRIDER_")}
    return found | {"OUTRIDER_CONFIG": os.devnull, "OMP_NUM_THREADS": "1"}


def ready(*arguments: str) -> tuple[subprocess.Popen[bytes], str]:
    """A command that serves, and the address that it says."""
    process = subprocess.Popen(
        [sys.executable, "-m", "outrider.cli.main", *arguments, "--port", "0", "--json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(),
    )
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())["url"]


@pytest.fixture(scope="module")
def addresses() -> Iterator[tuple[str, str]]:
    """Of a verifier and of an endpoint for it."""
    pytest.importorskip("llama_cpp")
    cloud, url = ready("cloud", "serve", "--target-backend", "llama")
    edge, base = ready("serve", "--cloud", url)
    yield url, base
    for process in (edge, cloud):
        process.terminate()
        process.communicate(timeout=30)


def test_there_is_nothing_else() -> None:
    files = {file.name for file in FOLDER.iterdir() if file.suffix in (".py", ".sh")}
    assert files == set(SAYS)
    readme = (FOLDER / "README.md").read_text("utf-8")
    assert all(f"[{name}]({name})" in readme for name in files)


@pytest.mark.parametrize("name", SAYS)
def test_an_example(addresses, name: str) -> None:
    if name.endswith(".sh") and not shutil.which("curl"):
        pytest.skip("curl is not installed")
    runner = "sh" if name.endswith(".sh") else sys.executable
    done = subprocess.run(
        [runner, str(FOLDER / name), addresses[name in ENDPOINT]],
        capture_output=True,
        text=True,
        timeout=90,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(SAYS[name], done.stdout, re.S), done.stdout
