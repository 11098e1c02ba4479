"""``cloud serve`` before it serves: signals while a model loads, memory, names that are none."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

LOADING = """
import time
from outrider.cli.serving import ends_at_once
with ends_at_once():
    print("loading", flush=True)
    time.sleep(30)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_a_model_loads_ends_the_process(number: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LOADING],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "loading\n"
        child.send_signal(number)
        _, err = child.communicate(timeout=20)
    assert child.returncode == 128 + number
    assert err == "\nstopped while loading\n"
