"""torch's own ONNX export of any causal LM whose cache is keys and values, with explicit caches.

Inputs: ``input_ids`` and ``position_ids`` [1, n], ``attention_bias`` [1, 1, n, past + n] (added to
the scores), ``past_key_values.{i}.key`` and ``.value`` [1, kv_heads, past, head_dim]. Outputs:
``logits`` [1, n, vocab], ``present.{i}.key`` and ``.value``. The past may be empty.
"""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
import warnings
from pathlib import Path
from typing import Any

from outrider.protocol.errors import BackendError
from outrider.quantize.checkpoint import Checkpoint
from outrider.quantize.families import head_size
from outrider.quantize.torch_model import load_model, torch, transformers
from outrider.runtime.extras import hint

_BLOCKED = -1e9
_MIXED = ("gemma2", "gemma3", "gemma3_text")
"""Families whose layers differ in the window that they see."""


class Explicit(torch.nn.Module):
    """A model with its cache as arguments and results."""

    def __init__(self, model: Any, checkpoint: Checkpoint) -> None:
        super().__init__()
        self.model = model
        config = checkpoint.config
        self.window = config.get("sliding_window") if config.get("use_sliding_window", True) else 0
        self.mixed = checkpoint.family in _MIXED

    def forward(self, input_ids: Any, position_ids: Any, attention_bias: Any, past: Any) -> Any:
        """Logits, and the keys and values with the new ones appended."""
        pairs = list(zip(past[::2], past[1::2], strict=True))
        cache = transformers.DynamicCache(pairs)
        out = self.model(
            input_ids=input_ids,
            position_ids=position_ids,
            attention_mask=self._masks(attention_bias, position_ids),
            past_key_values=cache,
            use_cache=True,
        )
        present = [part for layer in cache.layers for part in (layer.keys, layer.values)]
        return (out.logits, *present)

    def _masks(self, bias: Any, position_ids: Any) -> Any:
        """One mask, or by kind of layer; the window counts positions of one sequence."""
        if not self.window:
            return bias
        keys = torch.arange(bias.shape[3])[None, None, None, :]
        outside = keys <= position_ids[:, None, :, None] - self.window
        near = bias.masked_fill(outside, _BLOCKED)
        return {"full_attention": bias, "sliding_attention": near} if self.mixed else near


def export_with_torch(checkpoint: Checkpoint, out: Path, precision: str) -> None:
    """Write one ONNX file.

    Raises:
        BackendError: torch cannot export this model, or its result cannot be quantized.
    """
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        plain = out if precision == "f32" else Path(folder) / "plain.onnx"
        with _silence():
            try:
                _export(checkpoint, plain)
            except ModuleNotFoundError as error:  # torch needs onnx and onnxscript only here
                raise BackendError(f"{error.name} is not installed: {hint('quantize')}") from error
            except Exception as error:  # anything that a model's own code may raise when traced
                line = str(error).strip().partition("\n")[0]
                raise BackendError(
                    f"torch cannot export {checkpoint.folder} ({checkpoint.family}): {line}"
                ) from error
            try:
                if precision == "int8":
                    _to_int8(plain, out)
                elif precision == "int4":
                    _to_int4(plain, out)
            except ImportError as error:
                raise BackendError(f"{error.name} is not installed: {hint('quantize')}") from error
            except Exception as error:  # ONNX Runtime has errors of many kinds
                line = str(error).strip().partition("\n")[0]
                raise BackendError(f"{plain.name} cannot be made {precision}: {line}") from error


def _export(checkpoint: Checkpoint, out: Path) -> None:
    model = load_model(checkpoint.folder)
    model.config._attn_implementation = "eager"
    heads = checkpoint.config.get("num_key_value_heads") or checkpoint.number("num_attention_heads")
    layers = range(checkpoint.number("num_hidden_layers"))
    names = [f"{i}.{part}" for i in layers for part in ("key", "value")]
    past = [torch.zeros(1, heads, 5, head_size(checkpoint)) for _ in names]
    ids = torch.ones(1, 3, dtype=torch.int64)
    positions = torch.arange(5, 8)[None]
    length, before = torch.export.Dim("n"), torch.export.Dim("past")
    total = torch.export.Dim("total")
    program = torch.onnx.export(
        Explicit(model, checkpoint).eval(),
        (ids, positions, torch.zeros(1, 1, 3, 8), past),
        dynamo=True,
        optimize=True,
        input_names=[
            "input_ids",
            "position_ids",
            "attention_bias",
            *(f"past_key_values.{name}" for name in names),
        ],
        output_names=["logits", *(f"present.{name}" for name in names)],
        dynamic_shapes=(
            {1: length},
            {1: length},
            {2: length, 3: total},
            [{2: before}] * len(names),
        ),
    )
    assert program is not None
    size = sum(p.numel() * 4 for p in model.parameters())
    program.save(str(out), external_data=size > 1 << 30)


def _to_int8(plain: Path, out: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(
        plain,
        out,
        op_types_to_quantize=["MatMul"],
        per_channel=True,
        weight_type=QuantType.QInt8,
        extra_options={"MatMulConstBOnly": True},
    )


def _to_int4(plain: Path, out: Path) -> None:
    import onnx
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(onnx.load(plain), block_size=32, is_symmetric=True)
    quantizer.process()
    onnx.save(quantizer.model.model, str(out))


@contextlib.contextmanager
def _silence() -> Any:
    """The exporters print and warn about what is no concern of the user."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
