"""Convert a random checkpoint of the 0.5B shape to F16 and say how much memory it took.

python -m outrider.benchmarks.quantize_peak FOLDER
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from pathlib import Path

from outrider.benchmarks.quantize import MODELS, peak_bytes


def make(folder: Path) -> None:
    """Random bfloat16 weights in the shape of Qwen2.5 0.5B, with the embedded pair's tokenizer."""
    import shutil

    from outrider.quantize.torch_model import torch, transformers

    config = transformers.Qwen2Config(
        vocab_size=151936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
    )
    torch.set_default_dtype(torch.bfloat16)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODELS / "target" / name, folder)


def main(folder: Path) -> None:
    """Make it in another process, so that its memory does not count; convert here."""
    child = multiprocessing.get_context("spawn").Process(target=make, args=(folder,))
    child.start()
    child.join()
    from outrider.quantize.checkpoint import read_checkpoint
    from outrider.quantize.gguf_file import write_gguf

    began = time.monotonic()
    out = folder / "f16.gguf"
    write_gguf(read_checkpoint(folder), out, "F16")
    size = out.stat().st_size
    found = {
        "convert_peak_bytes": peak_bytes(),
        "convert_file_bytes": size,
        "convert_peak_over_file": peak_bytes() / size,
        "convert_s": time.monotonic() - began,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
