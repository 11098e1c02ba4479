"""The endpoint's benchmark at its smallest: real processes, and figures that could be wrong."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from outrider.benchmarks import endpoint as bench
from outrider.protocol.errors import BackendError


def test_times_are_taken_from_the_stream() -> None:
    found = bench._timed(10.0, [10.5, 10.75, 12.0], 7, "text")
    assert (found.first, found.each, found.text) == (0.5, 0.25, "text")
    with pytest.raises(BackendError, match="one piece"):
        bench._timed(10.0, [10.5], 7, "text")


def test_processor_time_is_that_of_the_process() -> None:
    before, until = bench._processor_seconds(os.getpid()), time.process_time() + 0.3
    while time.process_time() < until:
        pass
    assert 0.2 < bench._processor_seconds(os.getpid()) - before < 0.6


@pytest.mark.slow
def test_the_whole_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("llama_cpp")
    monkeypatch.setattr(bench, "REAL", "no/such-model")
    said: list[str] = []
    found = asyncio.run(bench.measure(said.append, quick=True))
    assert found["same_text"]
    assert found["ready_pack"] == "embedded"
    assert found["answers"] == 5
    assert found["throughput_ratio"] > 0.2
    assert found["run_ms_per_token"] > 3
    assert 0 < found["ready_processor_s"] <= found["ready_s"] + 5
