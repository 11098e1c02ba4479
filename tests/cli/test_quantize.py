"""``outrider quantize`` as typed: what it prints, its JSON, its complaints."""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outrider.cli import exits

pytestmark = pytest.mark.llama
ROOT = Path(__file__).parents[2]
Invoke = Callable[..., Any]


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    out = tmp_path / "drafter"
    out.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(ROOT / "models" / "drafter" / name, out)
    return out


def test_a_pack_and_its_report(drafter: Path, tmp_path: Path, invoke: Invoke) -> None:
    out = tmp_path / "pack"
    made = invoke("quantize", str(drafter), "--type", "q8_0", "--out", str(out), "--json")
    assert made.status == exits.DONE
    assert [part["kind"] for part in json.loads(made.out)["parts"]] == ["Q8_0"]
    text = tmp_path / "words.txt"
    shutil.copy(ROOT / "docs" / "glossary.md", text)
    command = ["quantize", "report", str(out), "--target", str(ROOT / "models" / "target")]
    command += ["--text", str(text), "--blocks", "1", "--device", "pi5"]
    found = invoke(*command, "--json", "--plot", str(tmp_path / "plot.png"))
    assert found.status == exits.DONE
    facts = json.loads(found.out)
    assert facts["variants"][0]["domains"]["words"]["positions"] == 128
    assert "estimate" in facts["recommended"]["why"]
    for variant in facts["variants"]:
        expected = variant["expected_tokens_per_second"]
        assert set(expected) == {"pi4", "pi5", "jetson-orin-nano", "jetson-agx", "laptop"}
        assert all(set(rates) == {"lan", "wifi", "5g", "lte"} for rates in expected.values())
    chosen = facts["recommended"]
    by_name = {variant["name"]: variant for variant in facts["variants"]}
    of_device = by_name[chosen["variant"]]["expected_tokens_per_second"][chosen["device"]]
    assert of_device == chosen["rates"]
    assert (tmp_path / "plot.png").stat().st_size > 5000
    shown = invoke(*command)
    assert "drafter-q8_0" in shown.out
    assert "for pi5: drafter-q8_0" in shown.out
    inspected = invoke("inspect", str(out))
    assert "pack" in inspected.out


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["nowhere-to-be-found/", "--out", "x"], exits.FAILED, "no such file or folder"),
        (["FOLDER", "--type", "Q9", "--out", "x"], exits.USAGE, "'Q9' is not known"),
        (["FOLDER", "--imatrix", "absent.txt", "--out", "x"], exits.USAGE, "cannot read absent"),
        (["FOLDER", "--out", "/proc/x"], exits.USAGE, "--out /proc/x cannot be written"),
        (["FOLDER", "--out", "FOLDER/config.json"], exits.USAGE, "cannot be written"),
        (["shrink", "FOLDER", "--layers", "9", "--out", "x"], exits.USAGE, "the model has 2"),
        (
            ["distil", "FOLDER", "--target", "FOLDER", "--loss", "mse", "--out", "x"],
            exits.USAGE,
            "loss 'mse'",
        ),
    ],
)
def test_mistakes(
    arguments: list[str],
    status: int,
    words: str,
    *,
    drafter: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    invoke: Invoke,
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [word.replace("FOLDER", str(drafter)) for word in arguments]
    result = invoke("quantize", *given)
    assert result.status == status
    assert words in result.err
    assert "Traceback" not in result.err


def test_a_distillation_that_is_interrupted_says_how_to_go_on(
    drafter: Path, tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("outrider.quantize.distil")

    def interrupted(_student: Path, _teacher: Path, out: Path, *_: Any, **__: Any) -> None:
        (out / module.STATE_FILE).touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "distil", interrupted)
    out = tmp_path / "better"
    out.mkdir()
    command = ["quantize", "distil", str(drafter), "--target", str(ROOT / "models" / "target")]
    found = invoke(*command, "--out", str(out))
    assert found.status == exits.INTERRUPTED
    assert f"what was learned is in {out}: the same command goes on" in found.err
