"""Native code that takes long does not swallow a Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from outrider.runtime.lm.llama_library import apart


def test_an_interrupt_stops_what_runs_apart() -> None:
    stopped, begun = threading.Event(), threading.Event()

    def load() -> str:
        begun.set()
        os.kill(os.getpid(), signal.SIGINT)  # to the process: the main thread gets it
        return "aborted" if stopped.wait(20) else "went on"

    with pytest.raises(KeyboardInterrupt):
        apart(load, stopped.set)
    assert begun.is_set()
    assert stopped.is_set()


def test_what_runs_apart_gives_its_value_or_error() -> None:
    assert apart(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        apart(lambda: 1 // 0)
