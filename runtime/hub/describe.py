"""What a model file or folder is, from its headers alone: nothing is loaded or run."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from outrider.protocol.errors import BackendError, OutriderError
from outrider.runtime.hub.gguf import GgufHeader, read_header
from outrider.runtime.hub.need import Need, estimate, estimate_gguf, read_json
from outrider.runtime.lm.factory import choose
from outrider.runtime.lm.manifest import read_manifest

Facts = dict[str, Any]
"""What is known, by name, ready for JSON. ``kind`` says what it is about."""

_MOST_HEADER = 100 << 20


def describe(path: str | Path, n_ctx: int = 0) -> Facts:
    """Describe a GGUF file, an ONNX file or a folder; ``n_ctx`` is for the memory estimate.

    Raises:
        BackendError: it is no model, or a broken one; says which.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise BackendError(f"no such file or folder: {path}")
    if path.is_dir():
        return _folder(path, n_ctx)
    if path.suffix == ".onnx":
        return _onnx(path, n_ctx)
    if path.suffix == ".safetensors":
        raise BackendError(f"{path} is a part of a model folder; give the folder: {path.parent}")
    return _gguf(read_header(path), n_ctx)


def _gguf(header: GgufHeader, n_ctx: int) -> Facts:
    facts = header.facts
    ends = {
        str(facts[key])
        for key in (f"tokenizer.ggml.{role}_token_id" for role in ("eos", "eot", "eom"))
        if key in facts
    }
    return {
        "kind": "gguf",
        "path": str(header.path),
        "bytes": header.path.stat().st_size,
        "architecture": header.architecture,
        "name": facts.get("general.name"),
        "size_label": facts.get("general.size_label"),
        "family": facts.get("general.basename"),
        "license": facts.get("general.license"),
        "quantization": header.quantization,
        "parameters": header.parameters,
        "layers": header.number("block_count"),
        "context": header.number("context_length"),
        "vocabulary": header.lengths.get("tokenizer.ggml.tokens", 0),
        "tokenizer": facts.get("tokenizer.ggml.model"),
        "pre_tokenizer": facts.get("tokenizer.ggml.pre"),
        "template": "tokenizer.chat_template" in facts,
        "end_tokens": sorted(map(int, ends)),
        "memory": memory_facts(estimate_gguf(header, n_ctx)),
        "warnings": list(_gguf_warnings(header)),
    }


def memory_facts(need: Need) -> Facts:
    """An estimate for JSON, in bytes."""
    return {
        "n_ctx": need.n_ctx,
        "weights": need.weights,
        "cache": need.cache,
        "buffers": need.buffers,
        "base": need.base,
        "total": need.total,
    }


def _gguf_warnings(header: GgufHeader) -> Iterator[str]:
    facts, arch = header.facts, header.architecture
    if not header.tensors:
        yield "the file holds a vocabulary and no weights"
    if any(key.startswith((f"{arch}.ssm.", f"{arch}.wkv.")) for key in facts):
        yield "keeps a recurrent state, which cannot be rewound: it can neither draft nor verify"
    if facts.get(f"{arch}.attention.causal") is False:
        yield "is an encoder, not a model that predicts the next token"
    if not header.lengths.get("tokenizer.ggml.tokens"):
        yield "has no vocabulary"
        return
    yield from pre_tokenizer_warnings(header)
    if "tokenizer.ggml.eos_token_id" not in facts:
        yield "names no end token: answers end by length or stop strings only"
    if "tokenizer.chat_template" not in facts:
        yield "has no chat template: plain prompts only"


def pre_tokenizer_warnings(header: GgufHeader) -> Iterator[str]:
    """A BPE vocabulary without the tag of how texts are cut first is read wrongly, in silence."""
    if header.facts.get("tokenizer.ggml.model") != "gpt2":
        return
    tag = header.facts.get("tokenizer.ggml.pre")
    if tag in (None, "", "default"):
        state = "names the pre-tokenizer 'default'" if tag else "does not name its pre-tokenizer"
        yield (
            f"{state}: texts may be cut into other tokens than the model was trained on; convert "
            "the model again with a current converter"
        )


def _onnx(file: Path, n_ctx: int) -> Facts:
    if file.stat().st_size < 16:
        raise BackendError(f"{file} is not an ONNX model: it has {file.stat().st_size} bytes")
    with file.open("rb") as stream:
        if stream.read(1) != b"\x08":  # every ONNX file starts with its version, field 1
            raise BackendError(f"{file} is not an ONNX model")
    facts = read_json(file.parent / "outrider_onnx.json")
    warnings = [] if facts else ["outrider_onnx.json is missing beside it: it cannot be loaded"]
    return {
        "kind": "onnx",
        "path": str(file),
        "bytes": file.stat().st_size,
        "layers": facts.get("layers"),
        "context": facts.get("max_position_embeddings"),
        "vocabulary": facts.get("vocab_size"),
        "memory": memory_facts(estimate(file, n_ctx)),
        "warnings": warnings,
    }


def _folder(folder: Path, n_ctx: int) -> Facts:
    """A folder: every model in it, its tokenizer, and which model would be loaded."""
    ggufs = sorted(folder.glob("*.gguf"))
    onnx = folder / "model.onnx"
    weights = sorted(folder.glob("*.safetensors"))
    models = [_gguf(read_header(file), n_ctx) for file in ggufs]
    if onnx.exists():
        models.append(_onnx(onnx, n_ctx))
    if weights or (folder / "config.json").exists():
        models.append(_hugging_face(folder, weights))
    if not models:
        names = sorted(item.name for item in folder.iterdir())
        there = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        raise BackendError(
            f"{folder} is no model: it has no .gguf, no model.onnx and no config.json with "
            f".safetensors (it holds {there or 'nothing'})"
        )
    warnings: list[str] = []
    return {
        "kind": "folder",
        "path": str(folder),
        "models": models,
        "tokenizer": _tokenizer(folder, warnings),
        "drafts_with": _drafts_with(folder),
        "pack": _pack(folder),
        "warnings": warnings,
    }


def _pack(folder: Path) -> Facts | None:
    """The manifest of a draft pack."""
    manifest = read_manifest(folder)
    if manifest is None:
        return None
    facts: Facts = msgspec.to_builtins(manifest)
    return facts


def _drafts_with(folder: Path) -> str | None:
    try:
        return choose(folder)[2]
    except OutriderError:
        return None


def _tokenizer(folder: Path, warnings: list[str]) -> Facts | None:
    """The Hugging Face tokenizer of a folder; a GGUF file has its own inside."""
    if not (folder / "tokenizer.json").exists():
        if not any(folder.glob("*.gguf")):
            warnings.append("has no tokenizer.json")
        return None
    from outrider.runtime.text.hf_tokenizer import HfTokenizer

    tokenizer = HfTokenizer(folder)
    warnings += tokenizer.warnings
    if not tokenizer.eos:
        warnings.append("names no end token: answers end by length or stop strings only")
    if tokenizer.template is None:
        warnings.append("has no chat template: plain prompts only")
    return {
        "vocabulary": tokenizer.size,
        "specials": len(tokenizer.specials),
        "template": tokenizer.template is not None,
        "end_tokens": sorted(tokenizer.eos),
    }


def _hugging_face(folder: Path, weights: list[Path]) -> Facts:
    config = read_json(folder / "config.json")
    if not config:
        raise BackendError(f"{folder} has .safetensors but no config.json")
    text = config.get("text_config")
    inner = text if isinstance(text, dict) else config
    index = read_json(folder / "model.safetensors.index.json").get("weight_map")
    named = set(index.values()) if isinstance(index, dict) else set()
    missing = sorted(named - {file.name for file in weights})
    warnings = [f"weights missing: {', '.join(missing)}"] if missing else []
    if not weights:
        warnings.append("has no .safetensors: there are no weights to load")
    counts = [_safetensors(file) for file in weights]
    return {
        "kind": "hugging face",
        "path": str(folder),
        "bytes": sum(file.stat().st_size for file in weights),
        "architecture": config.get("model_type"),
        "parameters": sum(count for count, _ in counts),
        "dtype": ", ".join(sorted({kind for _, kinds in counts for kind in kinds})) or None,
        "layers": inner.get("num_hidden_layers"),
        "context": inner.get("max_position_embeddings"),
        "vocabulary": inner.get("vocab_size"),
        "warnings": warnings,
    }


def _safetensors(file: Path) -> tuple[int, set[str]]:
    """(values, their types) by the header.

    Raises:
        BackendError: the file is cut short or no safetensors file.
    """
    tensors = check_safetensors(file).values()
    values = sum(math.prod(entry["shape"]) for entry in tensors)
    return values, {str(entry["dtype"]) for entry in tensors}


def check_safetensors(file: Path) -> dict[str, Facts]:
    """The header of a safetensors file, tensor by tensor: ``shape``, ``dtype``, ``data_offsets``.

    Raises:
        BackendError: the file is cut short or no safetensors file.
    """
    size = file.stat().st_size
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > min(size, _MOST_HEADER):
                raise ValueError(length)
            header: dict[str, Facts] = json.loads(stream.read(length))
        tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
        end = max((entry["data_offsets"][1] for entry in tensors.values()), default=0)
        for entry in tensors.values():
            math.prod(entry["shape"])
            str(entry["dtype"])
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BackendError(f"{file} is broken or cut short: its header cannot be read") from error
    if 8 + length + end > size:
        raise BackendError(
            f"{file} is cut short: {size} bytes of {8 + length + end}; get the file again"
        )
    return tensors
