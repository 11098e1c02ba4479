"""Distillation: its losses by enumeration, that it helps, and that it goes on where it stopped."""

from __future__ import annotations

import json
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
    def stop(_now: float, _whole: float, steps: int, _overlap: float) -> None:
        if steps:  # the text is written
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        distil(STUDENT, TARGET, tmp_path, QUICK, watch=stop)
    assert (tmp_path / STATE_FILE).exists()
    written: list[int] = []
    monkeypatch.setattr(module, "_write", lambda *_: written.append(1))  # not written again
    done = distil(STUDENT, TARGET, tmp_path, QUICK)
    assert done.resumed
    assert not written


def test_a_run_that_was_interrupted_ends_where_one_that_was_not_does(tmp_path: Path) -> None:
    """Weight by weight: the drawing of rows goes on too, and not from its beginning."""
    settings = Settings(minutes=1e-4, steps=4, length=32, rows=4, sample_rows=16, warmup=1)

    def stop(_now: float, _whole: float, step: int, _overlap: float) -> None:
        if step == 2:
            raise KeyboardInterrupt

    distil(STUDENT, TARGET, tmp_path / "straight", settings)
    with pytest.raises(KeyboardInterrupt):
        distil(STUDENT, TARGET, tmp_path / "broken", settings, watch=stop)
    assert distil(STUDENT, TARGET, tmp_path / "broken", settings).resumed
    files = [tmp_path / name / "model.safetensors" for name in ("straight", "broken")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert (tmp_path / "broken" / "tokenizer.json").is_file()


def test_text_that_was_written_before_an_interruption_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, calls = module._write, [0]

    def stops(*given: object) -> list[list[int]]:
        calls[0] += 1
        if calls[0] == 3:
            raise KeyboardInterrupt
        return write(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_write", stops)
    settings = Settings(minutes=1000, length=16, rows=4, sample_rows=16, warmup=1)
    with pytest.raises(KeyboardInterrupt):
        distil(STUDENT, TARGET, tmp_path, settings)
    state = torch.load(tmp_path / STATE_FILE, weights_only=True)
    assert (len(state["held"]), len(state["written"])) == (8, 24)


def test_a_run_of_other_models_or_texts_is_not_gone_on_with(tmp_path: Path) -> None:
    def stop(_now: float, _whole: float, _step: int, _overlap: float) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        distil(STUDENT, TARGET, out, QUICK, watch=stop)
    with pytest.raises(SettingError, match="another drafter, target or text"):
        distil(shaken(tmp_path / "other"), TARGET, out, QUICK)
    with pytest.raises(SettingError, match="another drafter, target or text"):
        distil(STUDENT, TARGET, out, QUICK, blocks=[[1] * 48])


def test_weights_that_are_missing_are_not_made_up(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    from outrider.quantize.torch_model import load_model

    (tmp_path / "config.json").write_bytes((STUDENT / "config.json").read_bytes())
    weights = load_file(STUDENT / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(BackendError, match=r"lacks the weights model\.layers\.1\.mlp\.up_proj"):
        load_model(tmp_path)


def padded(out: Path, rows: int) -> Path:
    """The student with so many rows that no id uses."""
    from outrider.quantize.torch_model import load_model

    model = load_model(STUDENT)
    model.resize_token_embeddings(4096 + rows, mean_resizing=False)
    model.save_pretrained(out)
    return out


def test_siblings_that_are_padded_otherwise(tmp_path: Path) -> None:
    """Qwen2.5's 0.5B has 151,936 rows and its 7B 152,064, of one tokenizer."""
    done = distil(padded(tmp_path / "more", 64), TARGET, tmp_path / "out", QUICK)
    assert done.steps > 0
    assert 0.5 < done.start < 0.75  # as without the padding
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["vocab_size"] == 4160  # the drafter's own: llama.cpp and the edge know padding
    with pytest.raises(BackendError, match="the target has 4096 ids and the drafter 4000"):
        distil(padded(tmp_path / "less", -96), TARGET, tmp_path / "no", QUICK)


def test_ids_beyond_the_target(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="the id 4096 and the models 4096 ids"):
        distil(STUDENT, TARGET, tmp_path, QUICK, blocks=[[4096]])


def test_a_checkpoint_is_not_written_over(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="holds a model already"):
        distil(STUDENT, TARGET, STUDENT, QUICK)


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
        (Settings(minutes=float("inf")), "minutes is inf"),
        (Settings(minutes=float("nan")), "minutes is nan"),
        (Settings(seed=-1), "seed is -1"),
        (Settings(device="tpu"), "device 'tpu' is neither cpu nor cuda"),
        (Settings(device="cuda:99"), "device 'cuda:99' cannot be used here"),
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
