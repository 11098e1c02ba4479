"""Distillation: its losses by enumeration, that it helps, and that it goes on where it stopped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from outrider.protocol.errors import BackendError, SettingError
from outrider.quantize import distil as module
from outrider.quantize.checkpoint import read_checkpoint
from outrider.quantize.distil import LOSSES, STATE_FILE, Settings, distil, divergence
from outrider.quantize.shrink import kept_layers, shrink

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "models" / "target"
STUDENT = ROOT / "models" / "drafter" / "before-distillation"
QUICK = Settings(minutes=0.05, length=48, rows=4, sample_rows=16, warmup=1)


def test_losses_are_what_they_are_called() -> None:
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(5), 3), rng.dirichlet(np.ones(5), 3)
    wanted = {
        "forward": (p * np.log(p / q)).sum(-1).mean(),
        "reverse": (q * np.log(q / p)).sum(-1).mean(),
        "tv": 0.5 * np.abs(p - q).sum(-1).mean(),
    }
    logits, target = (torch.tensor(np.log(x)) for x in (q, p))
    for kind, value in wanted.items():
        loss, overlap = divergence(logits, target, kind)
        assert float(loss) == pytest.approx(value, rel=1e-5)
        assert overlap == pytest.approx(np.minimum(p, q).sum(-1).mean(), rel=1e-5)
    mixed = [float(divergence(logits, target, "mixed", done)[0]) for done in (0.0, 1.0)]
    for found, share in zip(mixed, (0.2, 0.8), strict=True):
        assert found == pytest.approx(
            (1 - share) * wanted["forward"] + share * 3 * wanted["tv"], rel=1e-5
        )


@pytest.mark.parametrize("loss", LOSSES)
def test_a_step_goes_downhill(loss: str) -> None:
    target = torch.randn(4, 7, generator=torch.Generator().manual_seed(1))
    logits = torch.zeros(4, 7, requires_grad=True)
    before, _ = divergence(logits, target, loss, 0.5)
    before.backward()
    after, _ = divergence(logits - 0.05 * logits.grad, target, loss, 0.5)
    assert after < before


def test_it_learns_and_is_a_checkpoint_afterwards(tmp_path: Path) -> None:
    """A drafter whose weights were shaken finds its way back in seconds."""
    student = shaken(tmp_path / "student")
    settings = Settings(
        minutes=0.02, steps=24, length=48, rows=6, sample_rows=24, warmup=3, rate=1e-3
    )
    done = distil(student, TARGET, tmp_path / "out", settings)
    assert done.steps == 24
    assert done.end > done.start + 0.01
    assert read_checkpoint(tmp_path / "out").family == "llama"
    assert not (tmp_path / "out" / STATE_FILE).exists()


def shaken(out: Path) -> Path:
    from outrider.quantize.torch_model import load_model

    torch.manual_seed(0)
    model = load_model(STUDENT)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3 * parameter.std())
    model.save_pretrained(out)
    return out


def test_an_interrupted_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(_now: float, _whole: float, _steps: int, _overlap: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        distil(STUDENT, TARGET, tmp_path, QUICK, watch=stop)
    assert (tmp_path / STATE_FILE).exists()
    written: list[int] = []
    monkeypatch.setattr(module, "_write", lambda *_: written.append(1))  # not written again
    done = distil(STUDENT, TARGET, tmp_path, QUICK)
    assert done.resumed
    assert not written


def test_other_settings_or_a_broken_state_are_refused(tmp_path: Path) -> None:
    (tmp_path / STATE_FILE).write_bytes(b"no state")
    with pytest.raises(BackendError, match="remove it to begin anew"):
        distil(STUDENT, TARGET, tmp_path, QUICK)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (Settings(loss="mse"), "loss 'mse' is not one of forward"),
        (Settings(minutes=0), "minutes is 0"),
        (Settings(on_policy=1.5), "on_policy is 1.5"),
    ],
)
def test_settings_out_of_range(settings: Settings, words: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=words):
        distil(STUDENT, TARGET, tmp_path, settings)


def test_layers_that_stay() -> None:
    assert kept_layers(12, 4) == [0, 4, 7, 11]
    assert kept_layers(4, 1) == [0]
    with pytest.raises(SettingError, match="layers is 4; the model has 4"):
        kept_layers(4, 4)


def test_a_shrunken_target_is_a_drafter(tmp_path: Path) -> None:
    target = read_checkpoint(TARGET)
    kept = shrink(target, tmp_path / "small", 2)
    assert kept == [0, 3]
    small = read_checkpoint(tmp_path / "small")
    assert small.number("num_hidden_layers") == 2
    assert small.number("vocab_size") == target.number("vocab_size")
    assert (tmp_path / "small" / "tokenizer.json").exists()
    names = {name.split(".")[2] for name in small.names if ".layers." in name}
    assert names == {"0", "1"}
