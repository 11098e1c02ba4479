"""The draft model: files, memory, a few steps in a child, the tokenizer on the probe corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outrider.runtime.doctor import child, models
from outrider.runtime.doctor.check import Check
from outrider.runtime.doctor.models import check_model, check_tokens
from outrider.runtime.hub.need import estimate
from outrider.runtime.lm import memory
from outrider.runtime.lm.memory import MIB

MODELS = Path(__file__).parents[3] / "models"
DRAFTER = MODELS / "drafter"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """No child process: every model runs at 5 ms a token. Gives what was asked for."""
    asked: list[tuple[str, ...]] = []

    def run(_code: str, *arguments: str, **_: Any) -> child.Outcome:
        asked.append(arguments)
        return child.Outcome(facts={"load_seconds": 0.1, "step_seconds": 0.005})

    monkeypatch.setattr(child, "run", run)
    return asked


def by_name(path: Path, n_ctx: int = 256) -> dict[str, Check]:
    return {check.name: check for check in check_model(path, n_ctx)}


def test_the_embedded_drafter_is_well() -> None:
    found = list(check_model(DRAFTER, 256))
    assert [check.state for check in found if check.state != "ok"] == []
    runs = next(check for check in found if check.name == "draft model runs")
    assert runs.facts["step_seconds"] > 0


def test_no_model(tmp_path: Path, quick: Any) -> None:
    found = by_name(tmp_path / "none.gguf")
    assert found["draft model"].state == "problem"
    assert "no such file" in found["draft model"].says


def test_a_file_cut_short(tmp_path: Path, quick: Any) -> None:
    whole = (DRAFTER / "drafter-q8_0.gguf").read_bytes()
    (tmp_path / "m.gguf").write_bytes(whole[:-100])
    assert "cut short" in by_name(tmp_path / "m.gguf")["draft model"].says


def test_one_that_does_not_fit_is_not_loaded(monkeypatch: pytest.MonkeyPatch, quick: Any) -> None:
    monkeypatch.setattr(memory, "available", lambda: 50 * MIB)
    found = by_name(DRAFTER)
    fits = found["draft model's memory"]
    assert fits.state == "problem"
    assert "50 MiB are available" in fits.says
    assert fits.do
    assert quick == []
    assert "draft model runs" not in found


def test_one_that_barely_fits_is_warned_about(monkeypatch: pytest.MonkeyPatch, quick: Any) -> None:
    need = estimate(DRAFTER, 256).total
    monkeypatch.setattr(memory, "available", lambda: need + MIB)
    assert by_name(DRAFTER)["draft model's memory"].state == "warning"


def test_one_that_crashes_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    crashed = child.Outcome(failure="it was ended by SIGILL", killed_by="SIGILL")
    monkeypatch.setattr(child, "run", lambda *_: crashed)
    found = by_name(DRAFTER)["draft model runs"]
    assert (found.state, found.facts) == ("problem", {"killed_by": "SIGILL"})
    failed = child.Outcome(failure="outrider.protocol.errors.BackendError: it is broken")
    monkeypatch.setattr(child, "run", lambda *_: failed)
    assert by_name(DRAFTER)["draft model runs"].says == "it is broken"


def test_a_slow_one(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = child.Outcome(facts={"load_seconds": 1.0, "step_seconds": 0.9})
    monkeypatch.setattr(child, "run", lambda *_: slow)
    assert by_name(DRAFTER)["draft model runs"].state == "warning"


@pytest.mark.llama
def test_the_two_tokenizers_of_a_pack_agree() -> None:
    pytest.importorskip("llama_cpp")
    found = {check.name: check for check in check_tokens(DRAFTER)}
    assert found["tokenizers agree"].state == "ok"


class Wrong:
    """A tokenizer that loses accents, or is one that cuts differently."""

    def __init__(self, *, loses: bool = False, warnings: tuple[str, ...] = ()) -> None:
        self.loses = loses
        self.warnings = list(warnings)

    def encode(self, text: str) -> list[int]:
        return [ord(c) for c in text]

    def decode(self, ids: list[int]) -> str:
        text = "".join(map(chr, ids))
        return text.replace("ü", "u") if self.loses else text


class Cutting(Wrong):
    def encode(self, text: str) -> list[int]:
        return super().encode(text.replace("345", "543"))

    def decode(self, ids: list[int]) -> str:
        return super().decode(ids).replace("543", "345")


def test_lost_text_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "_tokenizers", lambda _path: {"m": Wrong(loses=True)})
    (found,) = check_tokens(DRAFTER)
    assert found.state == "problem"
    assert found.facts["lost"] == ["accents"] or "accents" in found.says


def test_tokenizers_that_differ_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = {"a": Wrong(), "b": Cutting()}
    monkeypatch.setattr(models, "_tokenizers", lambda _path: pair)
    found = list(check_tokens(DRAFTER))[-1]
    assert found.state == "problem"
    assert "a and b cut digits into different tokens (first: digits, token 5" in found.says


def test_warnings_of_the_tokenizer_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = {"m": Wrong(warnings=("names pre-tokenizer 'default'",))}
    monkeypatch.setattr(models, "_tokenizers", lambda _path: odd)
    assert next(check_tokens(DRAFTER)).says == "names pre-tokenizer 'default'"


def test_which_library_is_needed(tmp_path: Path) -> None:
    assert models.needed_module(DRAFTER / "model.onnx") == "onnxruntime"
    assert models.needed_module(DRAFTER / "drafter-q8_0.gguf") == "llama_cpp"
    assert models.needed_module(tmp_path) is None
