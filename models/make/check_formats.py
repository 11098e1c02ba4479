"""Check that every shipped format is the same model and the same tokenizer, and time them.

    python check_formats.py --models .. --scratch DIR --out ../measured.json

Needs llama-cpp-python for the GGUF part. One thread everywhere.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import torch
from common import held_windows, load_streams
from evaluate import load, merge
from export_gguf import export
from export_onnx import Runner, export_float
from numpy.typing import NDArray
from transformers import AutoTokenizer, LlamaForCausalLM

CHECK_ROWS, CHECK_LENGTH = 8, 256
SPEED_PROMPT, SPEED_STEPS = 32, 256
ODD_STRINGS = (
    "",
    " ",
    "   leading and trailing   ",
    "tabs\t\tand\r\nline ends\n\n\n",
    "nul \x00 byte",
    "caf\u00e9 na\u00efve \u00dcbung \u4f60\u597d \u041f\u0440\u0438\u0432\u0435\u0442",
    "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467 e\u0301 \u200b\ufeff",
    "x = {'a': [1, 2.5e-3], \"b\": lambda y: y ** 2}  # comment",
    "if a:\n        return b\n\n\n    def c(self):\n\t    pass",
    "isn't it's we'll I've 'quoted' 1234567890 12,345.67",
    "======\nTitle\n======\n\n.. note::\n\n   Text.",
)
Rows = NDArray[np.float32]


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def silent(_level: int, _text: bytes, _data: ctypes.c_void_p) -> None:
    """Drop llama.cpp's log."""


def open_gguf(path: Path, *, all_rows: bool = True) -> llama_cpp.Llama:
    """Open a GGUF file with the settings that allow comparison: no flash attention, f32 cache."""
    return llama_cpp.Llama(
        str(path),
        n_ctx=1024,
        n_batch=512,
        n_threads=1,
        n_threads_batch=1,
        logits_all=all_rows,
        flash_attn=False,
        type_k=llama_cpp.GGML_TYPE_F32,
        type_v=llama_cpp.GGML_TYPE_F32,
        verbose=False,
    )


def gguf_rows(model: llama_cpp.Llama, ids: NDArray[np.int64]) -> Rows:
    """Give the logits of a text from llama.cpp."""
    model.reset()
    model.eval(ids.tolist())
    return np.array(model.scores[: len(ids)], dtype=np.float32)


def hf_rows(model: LlamaForCausalLM, ids: NDArray[np.int64]) -> Rows:
    """Give the logits of a text from transformers."""
    with torch.no_grad():
        return np.asarray(model(input_ids=torch.from_numpy(ids)[None]).logits[0].numpy())


def softmax(rows: Rows) -> Rows:
    """Turn logits into probabilities."""
    powers = np.exp(rows - rows.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def compare(
    reference: Callable[[NDArray[np.int64]], Rows],
    other: Callable[[NDArray[np.int64]], Rows],
    texts: list[NDArray[np.int64]],
) -> dict[str, float]:
    """Compare two runtimes on the same texts."""
    worst, agree, overlap, count = 0.0, 0, 0.0, 0
    for ids in texts:
        a, b = reference(ids), other(ids)
        worst = max(worst, float(np.abs(a - b).max()))
        agree += int((a.argmax(-1) == b.argmax(-1)).sum())
        overlap += float(np.minimum(softmax(a), softmax(b)).sum())
        count += len(ids)
    return {
        "positions": count,
        "largest_difference": float(f"{worst:.2e}"),
        "argmax_agreement": round(agree / count, 4),
        "overlap": round(overlap / count, 4),
    }


def token_checks(folder: Path, gguf_file: Path, corpus: list[str]) -> dict[str, int]:
    """Compare token ids, text to ids, between the tokenizer file and llama.cpp."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = open_gguf(gguf_file, all_rows=False)
    strings = [*ODD_STRINGS, *corpus]
    chat = [{"role": "system", "content": "S"}, {"role": "user", "content": "Hello"}]
    strings.append(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))
    same_ids = same_text = 0
    for text in strings:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        same_ids += ids == model.tokenize(text.encode(), add_bos=False, special=True)
        plain = tokenizer.decode(ids, skip_special_tokens=False)
        same_text += plain == text
    return {"strings": len(strings), "same_ids": same_ids, "decoded_exactly": same_text}


def speeds(models: Path, drafter: LlamaForCausalLM) -> dict[str, float]:
    """Measure single steps a second with a growing cache, one thread."""
    out: dict[str, float] = {}
    prompt = np.arange(10, 10 + SPEED_PROMPT)
    runner = Runner(models / "drafter/model.onnx", drafter.config)
    runner.feed(prompt)
    started = time.perf_counter()
    for step in range(SPEED_STEPS):
        runner.feed(np.array([10 + step]))
    out["drafter_onnx_int8"] = SPEED_STEPS / (time.perf_counter() - started)
    for name, path in (
        ("drafter_gguf_q8_0", "drafter/drafter-q8_0.gguf"),
        ("target_gguf_f16", "target/target-f16.gguf"),
    ):
        model = open_gguf(models / path, all_rows=False)
        model.eval(prompt.tolist())
        started = time.perf_counter()
        for step in range(SPEED_STEPS):
            model.eval([10 + step])
        out[name] = SPEED_STEPS / (time.perf_counter() - started)
    target = load(models / "target")
    for name, hf_model in (("target_transformers", target), ("drafter_transformers", drafter)):
        with torch.no_grad():
            cache = hf_model(input_ids=torch.from_numpy(prompt)[None]).past_key_values
            started = time.perf_counter()
            for step in range(SPEED_STEPS // 2):
                hf_model(input_ids=torch.tensor([[10 + step]]), past_key_values=cache)
        out[name] = SPEED_STEPS / 2 / (time.perf_counter() - started)
    return {name: round(value, 1) for name, value in out.items()}


def measure(models: Path, scratch: Path) -> dict[str, Any]:
    """Run every check."""
    texts = [
        row.numpy()
        for stream in load_streams(scratch, "held").values()
        for row in held_windows(stream, CHECK_ROWS, CHECK_LENGTH)
    ]
    tokenizer = AutoTokenizer.from_pretrained(models / "target")
    corpus = [text for ids in texts for text in (tokenizer.decode(ids[:64]), tokenizer.decode(ids))]
    target, drafter = load(models / "target"), load(models / "drafter")
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        plain_onnx = Path(folder) / "float.onnx"
        export_float(drafter, plain_onnx)
        files = {
            "target_gguf_f16": (target, models / "target/target-f16.gguf"),
            "target_gguf_f32": (target, Path(folder) / "target-f32.gguf"),
            "drafter_gguf_f32": (drafter, Path(folder) / "drafter-f32.gguf"),
            "drafter_gguf_q8_0": (drafter, models / "drafter/drafter-q8_0.gguf"),
        }
        for kind in ("target", "drafter"):
            export(models / kind, Path(folder) / f"{kind}-f32.gguf", "f32", models / "target")
        for name, (model, path) in files.items():
            opened = open_gguf(path)
            result[name] = compare(
                lambda ids, model=model: hf_rows(model, ids),  # type: ignore[misc]
                lambda ids, opened=opened: gguf_rows(opened, ids),  # type: ignore[misc]
                texts,
            )
        for name, path in (
            ("drafter_onnx_f32", plain_onnx),
            ("drafter_onnx_int8", models / "drafter/model.onnx"),
        ):
            result[name] = compare(
                lambda ids: hf_rows(drafter, ids),
                lambda ids, path=path: Runner(path, drafter.config).feed(ids),  # type: ignore[misc]
                texts,
            )
    result["token_ids"] = {
        "target_gguf": token_checks(models / "target", models / "target/target-f16.gguf", corpus),
        "drafter_gguf": token_checks(
            models / "drafter", models / "drafter/drafter-q8_0.gguf", corpus
        ),
    }
    result["tokens_per_second_one_thread"] = speeds(models, drafter)
    return result


def main() -> None:
    """Check and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
    figures = measure(arguments.models, arguments.scratch)
    merge(arguments.out, {"formats": figures})
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
