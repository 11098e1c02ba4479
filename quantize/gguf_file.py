"""A checkpoint written as a GGUF file in F32, F16 or BF16, one tensor in memory at a time."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.protocol.errors import BackendError
from outrider.quantize.checkpoint import Checkpoint
from outrider.quantize.families import as_it_is, extra_tensors, family_of, lay_out, write_header
from outrider.quantize.folder import saving
from outrider.quantize.gguf_vocab import Vocab, read_vocab
from outrider.runtime.extras import hint

PLAIN = {"F32": 4, "F16": 2, "BF16": 2}
"""Types written without llama.cpp, and the bytes of a value."""

Progress = Callable[[int, int], None]
"""Called with (done, all)."""


def quiet(_done: int, _all: int) -> None:
    """Progress that nobody watches."""


def write_gguf(
    checkpoint: Checkpoint,
    out: Path,
    kind: str = "F16",
    *,
    name: str = "",
    vocab: Vocab | None = None,
    progress: Progress = quiet,
) -> Vocab:
    """Convert a checkpoint; matrices become ``kind``, vectors stay float32 as llama.cpp keeps them.

    Returns the vocabulary, proved against the original, so that a second file need not prove it
    again.

    Raises:
        BackendError: an architecture, a setting or a tokenizer that llama.cpp does not have, a
        tensor that does not belong, or no room on the disk. Nothing is left of the file then.
    """
    family = family_of(checkpoint)
    _gguf()  # everything below needs it: say so before any work
    vocab = vocab or read_vocab(checkpoint.folder, checkpoint.number("vocab_size"))
    names = gguf_names(checkpoint, family.arch)
    shapes = {name: shape for name, shape in checkpoint.shapes() if name in names}
    size = sum(_bytes(shape, kind) for shape in shapes.values())
    with saving(out, size) as part, _sound(checkpoint):
        writer = _gguf().GGUFWriter(str(part), family.arch)
        writer.add_name(_safe_name(name or checkpoint.name, vocab))
        if checkpoint.licence:
            writer.add_license(checkpoint.licence)
        writer.add_file_type(getattr(_gguf().LlamaFileType, _file_type(kind)))
        write_header(writer, checkpoint)
        vocab.write(writer)
        extra = list(extra_tensors(checkpoint))
        for tensor, values in extra:
            _announce(writer, tensor, values.shape, "F32")
        for original, shape in shapes.items():
            _announce(writer, names[original], shape, kind if len(shape) > 1 else "F32")
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for _, values in extra:
            writer.write_tensor_data(values)
        done = 0
        for original, tensor in checkpoint.tensors():
            if original not in names:
                continue
            kept = kind if tensor.dim() > 1 else "F32"
            if as_it_is(original, family):
                values = _stored(tensor, kept)
            else:
                turned = lay_out(original, tensor.float().numpy(), family, checkpoint)
                values = _stored(_tensor(turned), kept)
            writer.write_tensor_data(values)
            done += _bytes(tuple(tensor.shape), kind)
            progress(done, size)
        writer.close()
    return vocab


@contextmanager
def _sound(checkpoint: Checkpoint) -> Iterator[None]:
    """What does not fit together in a configuration and its tensors is the checkpoint's fault."""
    try:
        yield
    except (KeyError, TypeError, ValueError, ArithmeticError, struct.error) as error:
        raise BackendError(
            f"{checkpoint.folder}/config.json lacks a setting, has one of a wrong kind or does not "
            f"fit the weights: {type(error).__name__}: {error}"
        ) from error


def gguf_names(checkpoint: Checkpoint, arch: str) -> dict[str, str]:
    """Name in the checkpoint -> name in the file, of every tensor that is written.

    Raises:
        BackendError: a tensor that the architecture does not have.
    """
    gguf = _gguf()
    number = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == arch)
    table = gguf.get_tensor_name_map(number, checkpoint.number("num_hidden_layers"))
    tied = bool(checkpoint.config.get("tie_word_embeddings"))
    names: dict[str, str] = {}
    for name in checkpoint.names:
        if name.startswith(("vision_tower.", "multi_modal_projector.")) or "rotary_emb" in name:
            continue
        if name.endswith("lm_head.weight") and tied:
            continue
        bare = name.replace("language_model.", "")
        bare = bare if bare.startswith(("model.", "lm_head")) else f"model.{bare}"
        found = table.get_name(bare, try_suffixes=(".weight", ".bias"))
        if found is None:
            raise BackendError(
                f"{checkpoint.folder}: {name} has no place in a {arch} model; this checkpoint is "
                "not a plain one of its family"
            )
        names[name] = found
    return names


def _safe_name(name: str, vocab: Vocab) -> str:
    """llama.cpp takes what is called Phi-3 to have its special tokens, or does not load it."""
    asked = any(word in name.lower() for word in ("phi-3", "phi3"))
    there = {b"<unk>", b"<s>", b"<|endoftext|>"} <= set(vocab.tokens)
    return "drafter" if asked and not there else name


def _announce(writer: Any, name: str, shape: tuple[int, ...], kind: str) -> None:
    count = int(np.prod(shape)) * PLAIN[kind]
    dtype = np.dtype(np.float32) if kind == "F32" else np.dtype(np.float16)
    raw = getattr(_gguf().GGMLQuantizationType, kind) if kind == "BF16" else None
    writer.add_tensor_info(name, shape, dtype, count, raw_dtype=raw)


def _tensor(values: NDArray[np.float32]) -> Any:
    import torch

    return torch.from_numpy(values)


def _stored(tensor: Any, kind: str) -> NDArray[Any]:
    """A torch tensor as the bytes of its type, without a float32 copy where none is needed."""
    import torch

    if kind == "F16":
        if tensor.numel() and float(tensor.abs().max()) > torch.finfo(torch.float16).max:
            raise BackendError("a weight is beyond the range of F16; convert to BF16 instead")
        return np.asarray(tensor.to(torch.float16).numpy())
    if kind == "BF16":
        return np.asarray(tensor.to(torch.bfloat16).view(torch.float16).numpy())
    return np.asarray(tensor.float().numpy())


def _bytes(shape: tuple[int, ...], kind: str) -> int:
    return int(np.prod(shape)) * (PLAIN[kind] if len(shape) > 1 else 4)


def _file_type(kind: str) -> str:
    return "ALL_F32" if kind == "F32" else f"MOSTLY_{kind}"


def _gguf() -> Any:
    try:
        import gguf
    except ImportError as error:
        raise BackendError(f"the gguf package is not installed: {hint('quantize')}") from error
    return gguf
