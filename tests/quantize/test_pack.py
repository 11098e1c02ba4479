"""Packs: made, resumed, used by the program, compared, and refused where they make no sense."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from outrider.protocol.errors import BackendError, SettingError
from outrider.quantize import pack as module
from outrider.quantize.checkpoint import read_checkpoint
from outrider.quantize.devices import DEVICES, Device, expected_rate
from outrider.quantize.pack import Order, make_pack
from outrider.quantize.report import BLOCK, Variant, labels, measure, recommend
from outrider.quantize.report_inputs import blocks_of, files_of, open_target, record
from outrider.quantize.text import read_texts
from outrider.runtime.hub.describe import describe
from outrider.runtime.lm.factory import choose
from outrider.runtime.lm.manifest import read_manifest
from outrider.runtime.text.tokenizer import load_tokenizer

pytestmark = pytest.mark.llama
ROOT = Path(__file__).parents[2]
TARGET = ROOT / "models" / "target"


def test_a_pack_holds_all_that_a_drafter_needs(drafter: Path, tmp_path: Path) -> None:
    out = tmp_path / "pack"
    manifest = make_pack(read_checkpoint(drafter), out, Order(["Q8_0", "F32"]), target=TARGET)
    assert [part.kind for part in manifest.parts] == ["Q8_0", "F32"]
    assert choose(out, "llama")[0] == out / manifest.parts[0].name  # the first one is preferred
    tokenizer = load_tokenizer(out)
    assert tokenizer.template == load_tokenizer(TARGET).template
    assert describe(out)["pack"]["fingerprint"] == manifest.fingerprint
    assert not list(out.glob(".*")) + list(out.glob("*.part"))


def test_an_interrupted_pack_goes_on(
    drafter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, out = read_checkpoint(drafter), tmp_path / "pack"
    original = module.quantize_gguf

    def stops(source: Path, file: Path, kind: str, **more: object) -> object:
        if kind == "Q4_0":
            raise KeyboardInterrupt
        return original(source, file, kind, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "quantize_gguf", stops)
    with pytest.raises(KeyboardInterrupt):
        make_pack(checkpoint, out, Order(["Q8_0", "Q4_0"]))
    assert not list(out.glob(".plain*"))
    monkeypatch.setattr(module, "quantize_gguf", original)
    said: list[str] = []
    made = make_pack(checkpoint, out, Order(["Q8_0", "Q4_0"]), say=said.append)
    assert said == ["drafter-q8_0.gguf is there already", "making drafter-q4_0.gguf"]
    assert [part.kind for part in made.parts] == ["Q8_0", "Q4_0"]


def test_a_part_that_was_changed_is_made_again(drafter: Path, tmp_path: Path) -> None:
    checkpoint, out = read_checkpoint(drafter), tmp_path / "pack"
    make_pack(checkpoint, out, Order(["F16"]))
    (file,) = out.glob("*.gguf")
    file.write_bytes(file.read_bytes()[:-1])
    said: list[str] = []
    make_pack(checkpoint, out, Order(["F16"]), say=said.append)
    assert said == [f"making {file.name}"]


def test_what_a_killed_run_of_another_checkpoint_left_is_not_used(
    drafter: Path, tmp_path: Path
) -> None:
    out = tmp_path / "pack"
    out.mkdir()
    (out / ".plain.gguf").write_bytes(b"of another")
    make_pack(read_checkpoint(drafter), out, Order(["Q8_0"]))
    assert choose(out, "llama")[0].stat().st_size > 1 << 20


def test_the_manifest_comes_before_the_parts(
    drafter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[..., None]
) -> None:
    """So that a run that was killed at its first part is not gone on with for another model."""

    def stops(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "quantize_gguf", stops)
        with pytest.raises(KeyboardInterrupt):
            make_pack(read_checkpoint(drafter), tmp_path / "pack", Order(["Q8_0"]))
    change(drafter, max_position_embeddings=64)
    with pytest.raises(SettingError, match="another checkpoint"):
        make_pack(read_checkpoint(drafter), tmp_path / "pack", Order(["Q8_0"]))


def test_a_matrix_that_is_asked_for_later_is_not_passed_over(drafter: Path, tmp_path: Path) -> None:
    checkpoint, out = read_checkpoint(drafter), tmp_path / "pack"
    make_pack(checkpoint, out, Order(["Q4_0"]))
    said: list[str] = []
    weighed = Order(["Q4_0"], importance={"output.weight": np.ones(256, np.float32)})
    made = make_pack(checkpoint, out, weighed, say=said.append)
    assert said == ["making drafter-q4_0.gguf"]
    assert "weighed by an importance matrix" in made.parts[0].notes


def test_the_hub_s_folders_are_called_like_their_repository(drafter: Path, tmp_path: Path) -> None:
    folder = tmp_path / "models--org--Small-1B" / "snapshots" / "0123abc"
    folder.parent.mkdir(parents=True)
    drafter.rename(folder)
    assert read_checkpoint(folder).name == "Small-1B"


def test_variants_of_one_name_are_told_apart(tmp_path: Path) -> None:
    names = ("a/d-q8.gguf", "b/d-q8.gguf", "b/d-q4.gguf", "x/p/model.onnx", "y/p/model.onnx")
    files = [tmp_path / name for name in names]
    assert labels(files) == [*names[:2], "d-q4", *names[3:]]


class TestBadInput:
    def test_weights_that_changed_anywhere_are_another_checkpoint(
        self, drafter: Path, tmp_path: Path
    ) -> None:
        make_pack(read_checkpoint(drafter), tmp_path / "pack", Order(["F16"]))
        weights = drafter / "model.safetensors"
        raw = bytearray(weights.read_bytes())
        raw[-2] ^= 1
        weights.write_bytes(raw)
        with pytest.raises(SettingError, match="another checkpoint"):
            make_pack(read_checkpoint(drafter), tmp_path / "pack", Order(["F16"]))

    @pytest.mark.parametrize(
        ("tensor", "words"),
        [("nan", "logits that are not finite"), ("gone", r"blk\.1\.ffn_up\.weight. not found")],
    )
    def test_weights_that_cannot_be_right(
        self, tensor: str, words: str, *, drafter: Path, tmp_path: Path
    ) -> None:
        from safetensors.torch import load_file, save_file

        weights = load_file(drafter / "model.safetensors")
        name = "model.layers.1.mlp.up_proj.weight"
        weights[name] = weights[name] * float("nan")
        if tensor == "gone":
            del weights[name]
        save_file(weights, drafter / "model.safetensors", {"format": "pt"})
        out = tmp_path / "pack"
        with pytest.raises(BackendError, match=words):
            make_pack(read_checkpoint(drafter), out, Order(["F16"]))
        assert not list(out.glob("*.gguf"))

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"model_type": "mamba"}, "is a mamba; families that are converted"),
            ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; llama.cpp computes"),
            ({"num_attention_heads": 0}, "num_attention_heads is 0"),
            ({"num_key_value_heads": 3}, "does not fit the weights"),
            ({"rms_norm_eps": "small"}, "has one of a wrong kind"),
            ({"rope_parameters": {"rope_type": "llama3"}}, "lacks a setting"),
            ({"intermediate_size": None}, "does not say intermediate_size"),
        ],
    )
    def test_a_configuration_that_cannot_be_right(
        self,
        settings: dict[str, object],
        words: str,
        *,
        drafter: Path,
        tmp_path: Path,
        change: Callable[..., None],
    ) -> None:
        change(drafter, **settings)
        with pytest.raises(BackendError, match=words):
            make_pack(read_checkpoint(drafter), tmp_path / "pack", Order(["F16"]))

    def test_a_drafter_of_a_smaller_vocabulary(self, tmp_path: Path) -> None:
        target = open_target(TARGET)
        target.row_width = 5000
        with pytest.raises(BackendError, match="has 4096 ids and the target 5000"):
            measure(
                [ROOT / "models" / "drafter" / "drafter-q8_0.gguf"],
                target,
                {"x": [[1] * BLOCK]},
                size=6000,
            )

    def test_a_pack_of_another_checkpoint(
        self, drafter: Path, tmp_path: Path, change: Callable[..., None]
    ) -> None:
        make_pack(read_checkpoint(drafter), tmp_path / "pack", Order(["F16"]))
        change(drafter, max_position_embeddings=64)
        with pytest.raises(SettingError, match="a pack of drafter, which is another checkpoint"):
            make_pack(read_checkpoint(drafter), tmp_path / "pack", Order(["F16"]))

    def test_nothing_asked_for(self, drafter: Path, tmp_path: Path) -> None:
        with pytest.raises(SettingError, match="at least one GGUF type"):
            make_pack(read_checkpoint(drafter), tmp_path / "pack", Order())

    def test_a_target_of_another_vocabulary(self, drafter: Path, tmp_path: Path) -> None:
        other = tmp_path / "other"
        other.mkdir()
        raw = json.loads((TARGET / "tokenizer.json").read_text())
        vocab = raw["model"]["vocab"]
        names = sorted(vocab, key=vocab.__getitem__)
        vocab[names[900]], vocab[names[901]] = 901, 900
        (other / "tokenizer.json").write_text(json.dumps(raw))
        with pytest.raises(BackendError, match="the drafter's id 900 is .* do not share"):
            make_pack(read_checkpoint(drafter), tmp_path / "p", Order(["F16"]), target=other)

    def test_a_broken_manifest(self, drafter: Path, tmp_path: Path) -> None:
        make_pack(read_checkpoint(drafter), tmp_path / "pack", Order(["F16"]))
        (tmp_path / "pack" / "outrider_pack.json").write_text("{")
        with pytest.raises(BackendError, match="cannot read"):
            choose(tmp_path / "pack")


def test_a_report_measures_ranks_and_is_kept(drafter: Path, tmp_path: Path) -> None:
    out = tmp_path / "pack"
    make_pack(read_checkpoint(drafter), out, Order(["F32", "Q4_0"]))
    text = tmp_path / "prose.txt"
    text.write_text((ROOT / "docs" / "glossary.md").read_text())
    found = blocks_of(TARGET, [text], 2)
    target = open_target(TARGET)
    variants = measure(files_of([out]), target, found.blocks, size=found.size)
    by_kind = {variant.name.rpartition("-")[2]: variant for variant in variants}
    whole, packed = by_kind["f32"], by_kind["q4_0"]
    assert whole.fits["prose"].positions == 2 * BLOCK
    assert 0.3 < packed.overlap < whole.overlap < 1.0
    slow = _slow_overlap(drafter, found.blocks["prose"][0])
    one = measure(files_of([out]), target, {"x": found.blocks["prose"][:1]}, size=found.size)
    assert one[0].overlap == pytest.approx(slow, abs=1e-4)
    record([out], variants)
    manifest = read_manifest(out)
    assert manifest is not None
    assert manifest.parts[0].measured["overlap"] == pytest.approx(whole.overlap)


def _slow_overlap(drafter: Path, ids: list[int]) -> float:
    """The reference: transformers on both sides, position by position."""
    p, q = (open_target(path).feed(ids, len(ids)).astype(np.float64) for path in (TARGET, drafter))
    total = 0.0
    for a, b in zip(p, q, strict=True):
        x, y = np.exp(a - a.max()), np.exp(b - b.max())
        total += np.minimum(x / x.sum(), y / y.sum()).sum()
    return total / len(ids)


def test_texts_of_every_kind(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "one"}\n\n{"prompt": "two"}\n{"messages": [{"content": "three"}]}\n')
    assert read_texts(file) == ["one", "two", "three"]
    file.write_text('{"other": 1}\n')
    with pytest.raises(SettingError, match="line 1 has neither text nor prompt nor messages"):
        read_texts(file)
    with pytest.raises(SettingError, match=r"has no \.txt"):
        read_texts(_empty(tmp_path))
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingError, match="cannot read"):
        read_texts(file)


def _empty(base: Path) -> Path:
    folder = base / "empty"
    folder.mkdir()
    return folder


class TestChoice:
    def variants(self) -> list[Variant]:
        from outrider.quantize.report import Fit

        made = []
        for name, size, greedy in (
            ("big", 4 << 30, 0.9),
            ("mid", 400 << 20, 0.88),
            ("bad", 1, 0.1),
        ):
            variant = Variant(name, size, size + (90 << 20))
            variant.fits = {"x": Fit(greedy, greedy, 0.1, 10)}
            made.append(variant)
        return made

    def test_the_fastest_that_fits(self) -> None:
        choice = recommend(self.variants(), DEVICES["jetson-orin-nano"])
        assert choice.variant == "mid"
        assert "estimate" in choice.why
        assert "1 variants do not fit" in choice.why

    def test_where_no_drafter_pays_it_is_said(self) -> None:
        choice = recommend(self.variants()[:2], DEVICES["pi4"])
        assert "no faster than plain cloud streaming" in choice.why

    def test_none_fits(self) -> None:
        with pytest.raises(BackendError, match="no variant fits a toy: the smallest, bad"):
            recommend(self.variants(), Device("toy", 1 << 20, 1e9))

    def test_rates_are_bounded_by_not_drafting(self) -> None:
        assert expected_rate(0.0, 1.0, 1.0) == pytest.approx(1 / 0.030)
        assert expected_rate(0.8, 0.001, 0.0) > 2.5 / 0.030


class TestFromGguf:
    SOURCE = ROOT / "models" / "drafter" / "drafter-q8_0.gguf"

    def test_other_types_of_the_same_weights(self, tmp_path: Path) -> None:
        made = module.repack(self.SOURCE, tmp_path, Order(["Q4_0", "Q8_0"]))
        assert [part.kind for part in made.parts] == ["Q4_0", "Q8_0"]
        assert "quantized a second time, from Q8_0" in made.parts[0].notes
        assert made.parts[0].bytes < made.parts[1].bytes
        assert choose(tmp_path, "llama")[0].name == "drafter-q8_0-q4_0.gguf"
        assert load_tokenizer(tmp_path).entries == load_tokenizer(TARGET).entries
        said: list[str] = []
        module.repack(self.SOURCE, tmp_path, Order(["Q4_0"]), say=said.append)
        assert said == ["drafter-q8_0-q4_0.gguf is there already"]

    def test_what_needs_the_checkpoint_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(SettingError, match="need the checkpoint it was made from"):
            module.repack(self.SOURCE, tmp_path, Order(["F16"]))
        with pytest.raises(SettingError, match="need the checkpoint it was made from"):
            module.repack(self.SOURCE, tmp_path, Order(["Q4_0"], "int8"))
