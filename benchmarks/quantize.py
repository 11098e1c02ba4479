"""``outrider bench quantize``: every form of one drafter side by side, and what distilling gains.

Everything is measured on the embedded pair, one thread a model. Speeds are medians of one-id steps,
the two programs taking turns.
"""

from __future__ import annotations

import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from outrider.protocol.errors import BackendError
from outrider.quantize.checkpoint import read_checkpoint
from outrider.quantize.gguf_quantize import TYPES
from outrider.quantize.onnx_export import export_onnx
from outrider.quantize.pack import Order, make_pack
from outrider.quantize.report import measure, speed
from outrider.quantize.report_inputs import blocks_of, files_of, open_target
from outrider.runtime.text.tokenizer import load_tokenizer

MODELS = Path(__file__).resolve().parents[1] / "models"
TURNS = 7
QUICK_MINUTES = 4.0
WHOLE_MINUTES = 30.0

Say = Callable[[str], None]


def quantize(say: Say, *, quick: bool, minutes: float = 0.0, big: bool = True) -> dict[str, Any]:
    """The JSON object of the command. ``minutes`` of distillation; 0: 4 quick, else 30."""
    minutes = minutes or (QUICK_MINUTES if quick else WHOLE_MINUTES)
    with tempfile.TemporaryDirectory(prefix="outrider-quantize-") as folder:
        base = Path(folder)
        drafter = _bare(MODELS / "drafter", base / "drafter")
        say("making every variant of the embedded drafter")
        pack = base / "pack"
        make_pack(read_checkpoint(drafter), pack, Order(TYPES))
        speeds = _speeds(drafter, pack, base, say)
        say("comparing the variants with the target")
        variants = _variants(pack, base, quick)
        result: dict[str, Any] = {**speeds, "variants": variants}
        if big:
            say("converting a random model of the 0.5B shape at F16")
            result |= _peak(base)
        say(f"distilling for {minutes:g} minutes")
        result |= _distilled(base / "distilled", minutes, say)
    return result


def _bare(source: Path, out: Path) -> Path:
    """The checkpoint alone."""
    out.mkdir()
    for file in source.iterdir():
        if file.suffix in (".json", ".safetensors") and not file.name.startswith("outrider"):
            shutil.copy(file, out)
    return out


def _speeds(drafter: Path, pack: Path, base: Path, say: Say) -> dict[str, Any]:
    """ONNX over llama.cpp at one thread: F32 against F32, int8 against Q8_0."""
    checkpoint = read_checkpoint(drafter)
    ratios: dict[str, list[float]] = {"builder": [], "torch": []}
    rows = []
    for by, held in ratios.items():
        for precision, kind in (("f32", "f32"), ("int8", "q8_0")):
            say(f"ONNX {precision} by {by} against llama.cpp {kind}")
            try:
                made = export_onnx(checkpoint, base / f"{by}-{precision}", precision, by=by)
            except BackendError as error:
                say(f"not made: {error}")
                continue
            ours, theirs = _turns(made.folder / "model.onnx", pack / f"drafter-{kind}.gguf")
            held.append(ours / theirs)
            rows.append(
                {
                    "export": by,
                    "onnx": precision,
                    "llama_cpp": kind,
                    "onnx_tokens_per_second": ours,
                    "llama_cpp_tokens_per_second": theirs,
                    "ratio": ours / theirs,
                }
            )
    return {
        "onnx_over_llama_cpp": min(ratios["builder"], default=None),
        "onnx_over_llama_cpp_own_export": min(ratios["torch"], default=None),
        "speed_rows": rows,
    }


def _turns(a: Path, b: Path) -> tuple[float, float]:
    """Medians over turns, one after the other, so that both see the same machine."""
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(TURNS):
        for held, file in zip(found, (a, b), strict=True):
            held.append(speed(file, 1, steps=120))
    return statistics.median(found[0]), statistics.median(found[1])


def _variants(pack: Path, base: Path, quick: bool) -> list[dict[str, Any]]:
    """Agreement with the target, on text that the target writes in its three domains."""
    texts = _target_texts(base / "texts")
    found = blocks_of(MODELS / "target", texts, 2 if quick else 8)
    target = open_target(MODELS / "target")
    variants = measure(files_of([pack]), target, found.blocks, size=found.size)
    notes = {part["name"]: part["notes"] for part in _parts(pack)}
    return [
        {**variant.facts(), "notes": notes.get(f"{variant.name}.gguf", [])} for variant in variants
    ]


def _parts(pack: Path) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = json.loads((pack / "outrider_pack.json").read_text())["parts"]
    return parts


def _target_texts(out: Path) -> list[Path]:
    """The target's own text at temperature 1, from the demo's prompts."""
    from outrider.quantize.distil import write_texts

    out.mkdir()
    tokenizer = load_tokenizer(MODELS / "target")
    files = []
    for domain, prompts in _prompts().items():
        openings = [tokenizer.encode(prompt) for prompt in prompts]
        shortest = min(len(ids) for ids in openings)
        rows = write_texts(MODELS / "target", [ids[:shortest] for ids in openings], 288, seed=1)
        file = out / f"{domain}.txt"
        file.write_text("\n".join(tokenizer.decode(row) for row in rows), "utf-8")
        files.append(file)
    return files


def _prompts() -> dict[str, list[str]]:
    raw = json.loads((MODELS / "prompts.json").read_text("utf-8"))
    return {domain: [str(one) for one in found] for domain, found in raw.items()}


def _distilled(out: Path, minutes: float, say: Say) -> dict[str, Any]:
    """From the embedded drafter as it was before distillation."""
    from outrider.quantize.distil import Settings, distil  # torch

    tokenizer = load_tokenizer(MODELS / "target")
    prompts = [tokenizer.encode(one) for found in _prompts().values() for one in found]
    began = time.monotonic()
    told = [began]

    def watch(now: float, whole: float, steps: int, overlap: float) -> None:
        if time.monotonic() - told[0] > 60:
            told[0] = time.monotonic()
            say(f"{now:.0f} of {whole:.0f} s, {steps} steps, overlap {overlap:.3f}")

    done = distil(
        MODELS / "drafter" / "before-distillation",
        MODELS / "target",
        out,
        Settings(minutes=minutes, threads=2),
        prompts=prompts,
        watch=watch,
    )
    return {
        "distil_start": done.start,
        "distil_end": done.end,
        "distil_gain": done.end - done.start,
        "distil_minutes": (time.monotonic() - began) / 60,
        "distil_steps": done.steps,
        "distil_tokens": done.tokens,
    }


def _peak(base: Path) -> dict[str, Any]:
    """Peak memory of converting a model of the 0.5B shape, in a process of its own."""
    child = subprocess.run(
        [sys.executable, "-m", "outrider.benchmarks.quantize_peak", str(base / "half")],
        capture_output=True,
        text=True,
        check=False,
    )
    if child.returncode != 0:
        raise BackendError(f"the conversion failed: {child.stderr.strip().splitlines()[-1]}")
    found: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return found


def peak_bytes() -> int:
    """The most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
