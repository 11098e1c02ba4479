"""A draft pack: a folder with a drafter, the target's tokenizer and template, and a manifest.

Making one is a list of parts. Each part that is whole is written into the manifest at once, so that
a run that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from outrider.protocol.errors import BackendError, SettingError
from outrider.quantize.check import check_f32, check_runs
from outrider.quantize.checkpoint import Checkpoint
from outrider.quantize.families import family_of
from outrider.quantize.folder import TOKENIZER_FILES, saving
from outrider.quantize.gguf_file import PLAIN, write_gguf
from outrider.quantize.gguf_quantize import Importance, describe_types, quantize_gguf
from outrider.quantize.gguf_vocab import Vocab
from outrider.runtime.hub.gguf import read_header
from outrider.runtime.hub.need import read_json
from outrider.runtime.lm.manifest import MANIFEST_FILE, Manifest, Part, read_manifest
from outrider.runtime.lm.onnx import FACTS_FILE, MODEL_FILE
from outrider.runtime.text.fingerprint import describe
from outrider.runtime.text.hf_tokenizer import HfTokenizer
from outrider.runtime.text.tokenizer import load_tokenizer

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Order:
    """What is wanted: GGUF types, ONNX precisions (one at most: a pack has one ``model.onnx``)."""

    gguf: Sequence[str] = ()
    onnx: str = ""
    provider: str = "cpu"
    importance: Importance | None = field(default=None, repr=False)
    threads: int = 1


def make_pack(
    checkpoint: Checkpoint,
    out: Path,
    order: Order,
    *,
    target: Path | None = None,
    say: Say = lambda _line: None,
    progress: Callable[[str, int, int], None] = lambda _what, _done, _all: None,
) -> Manifest:
    """Make the parts that are not there yet. ``target``: whose tokenizer the pack carries.

    Raises:
        SettingError: nothing was asked for, or the folder holds a pack of another checkpoint.
        BackendError: a part cannot be made; those before it stay.
    """
    if not order.gguf and not order.onnx:
        raise SettingError("name at least one GGUF type or an ONNX precision")
    if order.gguf:
        family_of(checkpoint)
    if order.onnx:
        from outrider.quantize.onnx_export import check_wanted

        check_wanted(order.onnx, order.provider)
    tokenizer_from = target or checkpoint.folder
    out.mkdir(parents=True, exist_ok=True)
    if not (tokenizer_from / "tokenizer.json").is_file():
        raise BackendError(
            f"{tokenizer_from} has no tokenizer.json; get it from where the model came from"
        )
    manifest = _begin(checkpoint, out, tokenizer_from)
    _copy_tokenizer(checkpoint, tokenizer_from, out)
    vocab: Vocab | None = None
    try:
        for kind in order.gguf:
            file = out / f"{checkpoint.name}-{kind.lower()}.gguf"
            if _whole(out, manifest, file.name, order):
                say(f"{file.name} is there already")
                continue
            say(f"making {file.name}")
            vocab = _make_gguf(checkpoint, file, kind, order, vocab=vocab, progress=progress)
            with _kept_if_right(file):
                if kind == "F32":
                    check_f32(checkpoint, file)
                check_runs(file)
            _record(out, manifest, _gguf_part(file, kind, order.importance is not None))
    finally:
        (out / _PLAIN_FILE).unlink(missing_ok=True)
    if order.onnx and not _whole(out, manifest, MODEL_FILE, order):
        say(f"making {MODEL_FILE} ({order.onnx})")
        _record(out, manifest, _make_onnx(checkpoint, out, order, say))
    return manifest


_PLAIN_FILE = ".plain.gguf"
_WEIGHED = "weighed by an importance matrix"


def repack(source: Path, out: Path, order: Order, *, say: Say = lambda _line: None) -> Manifest:
    """A pack from a GGUF file: other quantizations of the same weights, tokenizer inside.

    A file that is quantized already loses twice; the manifest says so.

    Raises:
        SettingError: an ONNX file, an importance matrix or an unquantized type was asked for, which
        need a checkpoint; or the folder holds a pack of another file.
        BackendError: the file is none that llama.cpp quantizes, or there is no room on the disk.
    """
    if order.onnx or order.importance is not None or set(order.gguf) & set(PLAIN):
        raise SettingError(
            f"{source.name} is a GGUF file: ONNX, F32, F16, BF16 and an importance matrix need the "
            "checkpoint it was made from"
        )
    header = read_header(source)
    manifest = read_manifest(out) or Manifest(
        name=source.stem,
        source=source.name,
        source_sha256=sha256_of(source),
        licence=str(header.facts.get("general.license") or "") or None,
        architecture=header.architecture,
        sizes={"parameters": header.parameters},
        fingerprint=describe(load_tokenizer(source)).fingerprint().ordinary.hex(),
    )
    if manifest.source_sha256 != sha256_of(source):
        raise SettingError(f"{out} holds a pack of {manifest.source}; choose another folder")
    out.mkdir(parents=True, exist_ok=True)
    write_manifest(out, manifest)
    for kind in order.gguf:
        file = out / f"{source.stem}-{kind.lower()}.gguf"
        if _whole(out, manifest, file.name, order):
            say(f"{file.name} is there already")
            continue
        say(f"making {file.name}")
        quantize_gguf(source, file, kind, threads=order.threads, again=True)
        with _kept_if_right(file):
            check_runs(file)
        part = _gguf_part(file, kind, False)
        if header.quantization not in PLAIN:
            part.notes.append(f"quantized a second time, from {header.quantization}")
        _record(out, manifest, part)
    return manifest


def _make_gguf(
    checkpoint: Checkpoint,
    file: Path,
    kind: str,
    order: Order,
    *,
    vocab: Vocab | None,
    progress: Callable[[str, int, int], None],
) -> Vocab | None:
    """Quantized types are made from an unquantized file, which is kept until all are done."""

    def watch(done: int, total: int) -> None:
        progress(file.name, done, total)

    if kind in PLAIN:
        return write_gguf(checkpoint, file, kind, vocab=vocab, progress=watch)
    plain = file.parent / _PLAIN_FILE
    if not plain.exists():
        vocab = write_gguf(checkpoint, plain, _plain_kind(checkpoint), vocab=vocab, progress=watch)
    quantize_gguf(plain, file, kind, importance=order.importance, threads=order.threads)
    return vocab


def _plain_kind(checkpoint: Checkpoint) -> str:
    """BF16 weights lose nothing as BF16; of other weights F32 loses nothing."""
    stored = str(checkpoint.config.get("dtype") or checkpoint.config.get("torch_dtype") or "")
    return {"bfloat16": "BF16", "float16": "F16"}.get(stored, "F32")


def _gguf_part(file: Path, kind: str, weighed: bool) -> Part:
    found = describe_types(file, kind)
    notes = [found.note] if found.note else []
    if weighed and kind not in PLAIN:
        notes.append(_WEIGHED)
    return Part(file.name, "gguf", kind, found.bytes, sha256_of(file), notes)


def _make_onnx(checkpoint: Checkpoint, out: Path, order: Order, say: Say) -> Part:
    from outrider.quantize.onnx_export import export_onnx

    made = export_onnx(checkpoint, out, order.onnx, provider=order.provider)
    notes = [f"made by {'the genai builder' if made.by == 'builder' else 'torch'}"]
    if made.why:
        say(f"{MODEL_FILE} was exported by torch: {made.why}")
    return Part(MODEL_FILE, "onnx", order.onnx, made.bytes, _onnx_hash(out), notes)


def _onnx_hash(out: Path) -> str:
    """Of the graph and, where its weights lie beside it, of these too."""
    digest = hashlib.sha256()
    for file in sorted(out.glob(f"{MODEL_FILE}*")):
        digest.update(sha256_of(file).encode())
    return digest.hexdigest()


def _begin(checkpoint: Checkpoint, out: Path, tokenizer_from: Path) -> Manifest:
    """The manifest that is there, if it is of the same checkpoint, else a new one.

    It is written before any part: what lies unfinished in the folder is then known to be of this
    checkpoint.
    """
    source = checkpoint.fingerprint()
    fingerprint = describe(load_tokenizer(tokenizer_from)).fingerprint().ordinary.hex()
    found = read_manifest(out)
    if found is not None:
        if found.source_sha256 != source:
            raise SettingError(
                f"{out} holds a pack of {found.source}, which is another checkpoint; choose "
                "another folder"
            )
        if found.fingerprint != fingerprint:
            raise SettingError(
                f"{out} holds a pack with the tokenizer of another target than {tokenizer_from}; "
                "choose another folder"
            )
        return found
    (out / _PLAIN_FILE).unlink(missing_ok=True)
    sizes = {
        key: checkpoint.config.get(key)
        for key in ("hidden_size", "num_hidden_layers", "vocab_size", "max_position_embeddings")
    }
    made = Manifest(
        name=checkpoint.name,
        source=checkpoint.name,
        source_sha256=source,
        licence=checkpoint.licence,
        architecture=checkpoint.family,
        sizes={key: int(value) for key, value in sizes.items() if isinstance(value, int)},
        fingerprint=fingerprint,
    )
    write_manifest(out, made)
    return made


def _copy_tokenizer(checkpoint: Checkpoint, source: Path, out: Path) -> None:
    """The target's own files. A drafter of other ids is refused.

    Raises:
        BackendError: the target's tokenizer has other tokens than the drafter's, named.
    """
    if source != checkpoint.folder and (checkpoint.folder / "tokenizer.json").is_file():
        own, other = HfTokenizer(checkpoint.folder), HfTokenizer(source)
        for token, (a, b) in enumerate(zip(own.entries, other.entries, strict=False)):
            if a != b:
                raise BackendError(
                    f"the drafter's id {token} is {a!r} and the target's is {b!r}: they do not "
                    "share a tokenizer"
                )
    for name in TOKENIZER_FILES:
        if (source / name).is_file() and (source / name).resolve() != (out / name).resolve():
            with saving(out / name, (source / name).stat().st_size) as part:
                shutil.copyfile(source / name, part)


def _whole(out: Path, manifest: Manifest, name: str, order: Order) -> bool:
    """Whether a part was finished before, as it is ordered now, and is still what it was."""
    part = next((part for part in manifest.parts if part.name == name), None)
    if part is None or not (out / name).is_file():
        return False
    if part.backend == "onnx":
        provider = read_json(out / FACTS_FILE).get("provider", "cpu")
        asked = (part.kind, provider) == (order.onnx, order.provider)
        return asked and part.sha256 == _onnx_hash(out)
    weighed = order.importance is not None and part.kind not in PLAIN
    return weighed == (_WEIGHED in part.notes) and part.sha256 == sha256_of(out / name)


@contextmanager
def _kept_if_right(file: Path) -> Iterator[None]:
    """A file that does not pass its check does not stay."""
    try:
        yield
    except BackendError:
        file.unlink(missing_ok=True)
        raise


def _record(out: Path, manifest: Manifest, part: Part) -> None:
    manifest.parts = [p for p in manifest.parts if p.name != part.name] + [part]
    if not manifest.preferred and part.backend == "gguf":
        manifest.preferred = part.name
    write_manifest(out, manifest)


def write_manifest(out: Path, manifest: Manifest) -> None:
    """Replace the manifest of a pack in one step."""
    with saving(out / MANIFEST_FILE, 0) as part:
        part.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")


def sha256_of(file: Path) -> str:
    """The hash of a file's contents."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
