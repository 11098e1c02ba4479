"""The benchmarks' verifier: which backend, and what is said when it does not start."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from outrider.benchmarks import embedded, paced_cloud


@pytest.mark.parametrize(
    ("installed", "backend"),
    [
        ({"torch", "transformers", "llama_cpp"}, "transformers"),
        ({"llama_cpp"}, "llama"),
        ({"llama_cpp", "torch"}, "llama"),
        (set(), "transformers"),
    ],
)
def test_the_target_runs_on_what_is_installed(
    installed: set[str], backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name in installed or None)
    assert embedded.default_backend() == backend


def test_a_verifier_that_does_not_start_says_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["paced_cloud", "--model", "nowhere/x.gguf"])
    with pytest.raises(SystemExit) as ended:
        paced_cloud.main()
    line = str(ended.value.code)
    assert line.startswith("error: ")
    assert embedded._said(f"warning: noise\n{line}\n") == line.removeprefix("error: ")
    assert embedded._said("Traceback\nBoom") == "Traceback\nBoom"
