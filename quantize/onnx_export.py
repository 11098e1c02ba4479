"""A checkpoint as an ONNX drafter: by onnxruntime-genai's builder where it can, else by torch.

The builder's graphs are the faster ones (grouped attention in place); both are run by plain ONNX
Runtime. Whichever made it, the result is loaded and compared with transformers before it counts.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from outrider.protocol.errors import BackendError, SettingError
from outrider.quantize.check import check_f32
from outrider.quantize.checkpoint import Checkpoint
from outrider.quantize.families import head_size
from outrider.quantize.folder import MAKING, writing
from outrider.runtime.lm.onnx import FACTS_FILE, MODEL_FILE, PROVIDERS, OnnxLM

PRECISIONS = {"f32": "fp32", "int8": "int8", "int4": "int4"}
"""Ours, and the builder's name for it."""

BUILDER_TIMEOUT = 3600.0


@dataclass(frozen=True, slots=True)
class Exported:
    """``by``: ``builder`` or ``torch``. ``why``: the reason if it is not the builder."""

    folder: Path
    precision: str
    by: str
    why: str
    bytes: int


def export_onnx(
    checkpoint: Checkpoint, out: Path, precision: str, *, provider: str = "cpu", by: str = "auto"
) -> Exported:
    """Write ``model.onnx`` (with its data beside it) and ``outrider_onnx.json`` into ``out``.

    Raises:
        SettingError: no such precision or provider.
        BackendError: neither way works for this checkpoint; says what each complained about.
    """
    check_wanted(precision, provider)
    why = "it was asked for"
    if by in ("auto", "builder"):
        try:
            return _finish(checkpoint, out, precision, by="builder", why="", provider=provider)
        except BackendError as error:
            if by == "builder":
                raise
            why = str(error)
    return _finish(checkpoint, out, precision, by="torch", why=why, provider=provider)


def check_wanted(precision: str, provider: str) -> None:
    """Refuse what no export makes, before anything is made.

    Raises:
        SettingError: no such precision or provider.
    """
    if precision not in PRECISIONS:
        raise SettingError(f"precision {precision!r} is not one of {', '.join(PRECISIONS)}")
    if provider not in PROVIDERS:
        raise SettingError(f"provider {provider!r} is not one of {', '.join(PROVIDERS)}")


def _finish(
    checkpoint: Checkpoint, out: Path, precision: str, *, by: str, why: str, provider: str
) -> Exported:
    """Make it in a folder of its own, try it, and only then put it where it was asked for."""
    out.mkdir(parents=True, exist_ok=True)
    with writing(out), tempfile.TemporaryDirectory(dir=out, prefix=MAKING) as made_in:
        made = Path(made_in)
        if by == "builder":
            _build(checkpoint.folder, made, precision, provider)
        else:
            from outrider.quantize.onnx_torch import export_with_torch

            export_with_torch(checkpoint, made / MODEL_FILE, precision)
        _write_facts(checkpoint, made, precision, provider)
        if precision == "f32":
            check_f32(checkpoint, made)
        else:
            OnnxLM.load(made, 64).feed([0])
        size = _put_in_place(made, out)
    return Exported(out, precision, by, why, size)


def _put_in_place(made: Path, out: Path) -> int:
    """Move a model's files; returns their bytes.

    Without its facts a model is not loaded: those of one that was there go first, and the new ones
    come last, so that no mixture of two is ever taken for one.
    """
    for old in (out / FACTS_FILE, *out.glob(f"{MODEL_FILE}*")):
        old.unlink(missing_ok=True)
    size = 0
    for file in sorted(made.iterdir(), key=lambda file: file.name == FACTS_FILE):
        if file.name.startswith((MODEL_FILE, FACTS_FILE)):
            size += file.stat().st_size
            file.replace(out / file.name)
    return size


def _build(source: Path, out: Path, precision: str, provider: str) -> None:
    """Run the builder in a process of its own: it prints, and holds the whole model."""
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-m", str(source)]
    command += ["-o", str(out), "-p", PRECISIONS[precision], "-e", provider]
    command += ["-c", str(out / "cache")]
    try:
        child = subprocess.run(
            command, capture_output=True, text=True, timeout=BUILDER_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise BackendError(f"the builder took longer than {BUILDER_TIMEOUT:.0f} s") from error
    if child.returncode != 0 or not (out / MODEL_FILE).is_file():
        lines = child.stderr.strip().splitlines() or ["no reason given"]
        raise BackendError(f"onnxruntime-genai's builder does not make it: {lines[-1]}")


def _write_facts(checkpoint: Checkpoint, out: Path, precision: str, provider: str) -> None:
    heads = checkpoint.number("num_attention_heads")
    facts = {
        "format": 1,
        "layers": checkpoint.number("num_hidden_layers"),
        "kv_heads": checkpoint.config.get("num_key_value_heads") or heads,
        "head_dim": head_size(checkpoint),
        "vocab_size": checkpoint.number("vocab_size"),
        "max_position_embeddings": checkpoint.number("max_position_embeddings"),
        "quantization": precision,
        "provider": provider,
    }
    (out / FACTS_FILE).write_text(json.dumps(facts, indent=2) + "\n", "utf-8")
