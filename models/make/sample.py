"""Sample text from the target in shards: what the drafter learns from after the corpus.

    python sample.py --target FOLDER --scratch DIR --shards 12

Each shard is 512 rows of 257 tokens. A row begins with a short piece of a training document and
goes on with the target's own tokens: three rows in four at T = 1, the others at 0.7 or greedy.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from common import SYSTEM_WORDS, Stream, corpus_batch, load_streams
from tokenizers import Tokenizer
from torch import Tensor
from transformers import DynamicCache, LlamaForCausalLM

SEED = 3
ROWS, LENGTH = 512, 257
BATCH = 128
PROMPTS = (8, 16, 24, 32)
CHAT_SHARE = 0.05
TEMPERATURES, SHARES = (1.0, 0.7, 0.0), (0.75, 0.15, 0.10)


@torch.no_grad()
def continue_rows(
    model: LlamaForCausalLM,
    prompts: Tensor,
    length: int,
    temperatures: Tensor,
    generator: torch.Generator,
) -> Tensor:
    """Extend all rows to `length` tokens; temperature 0 means greedy. End tokens do not stop."""
    cache = DynamicCache(config=model.config)
    out = prompts
    fresh = prompts
    warm = temperatures.clamp(min=1e-6)[:, None]
    greedy = temperatures == 0
    while out.shape[1] < length:
        logits = model(input_ids=fresh, past_key_values=cache, logits_to_keep=1).logits[:, -1]
        noise = torch.empty_like(logits).exponential_(generator=generator)
        drawn = (logits / warm - noise.log()).argmax(dim=-1)
        fresh = torch.where(greedy, logits.argmax(dim=-1), drawn)[:, None]
        out = torch.cat([out, fresh], dim=1)
    return out


def shard_path(scratch: Path, index: int) -> Path:
    """Name one shard."""
    return scratch / f"samples-{index:03d}.npy"


def shard_prompts(
    streams: dict[str, Stream], systems: dict[str, list[int]], index: int
) -> tuple[list[tuple[Tensor, Tensor]], list[str]]:
    """Give prompts and temperatures of a shard in batches, and the domain of each row."""
    rng = np.random.default_rng([SEED, index])
    batches, domains = [], list[str]()
    for _ in range(ROWS // BATCH):
        length = int(rng.choice(PROMPTS))
        # A chat needs room for its cut, so windows are drawn longer and then cut.
        windows = corpus_batch(streams, systems, rng, (BATCH, 96), CHAT_SHARE, drawn=domains)
        temperatures = torch.from_numpy(rng.choice(TEMPERATURES, BATCH, p=SHARES))
        batches.append((windows[:, :length], temperatures.to(torch.float32)))
    return batches, domains


def make_shard(
    model: LlamaForCausalLM,
    streams: dict[str, Stream],
    systems: dict[str, list[int]],
    index: int,
) -> Tensor:
    """Draw one shard; it depends on its number and the seed alone."""
    generator = torch.Generator().manual_seed(SEED * 100_003 + index)
    batches, _ = shard_prompts(streams, systems, index)
    return torch.cat([continue_rows(model, ids, LENGTH, t, generator) for ids, t in batches])


def main() -> None:
    """Write the shards that are missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--shards", type=int, default=12)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = LlamaForCausalLM.from_pretrained(arguments.target, dtype=torch.float32).eval()
    tokenizer = Tokenizer.from_file(str(arguments.target / "tokenizer.json"))
    systems = {name: tokenizer.encode(words).ids for name, words in SYSTEM_WORDS.items()}
    streams = load_streams(arguments.scratch, "train")
    for index in range(arguments.shards):
        path = shard_path(arguments.scratch, index)
        if path.exists():
            continue
        started = time.monotonic()
        rows = make_shard(model, streams, systems, index).numpy().astype(np.uint16)
        unfinished = path.with_suffix(".tmp.npy")
        np.save(unfinished, rows)
        unfinished.rename(path)
        print(f"shard {index}: {rows.size / (time.monotonic() - started):.0f} tokens/s", flush=True)


if __name__ == "__main__":
    main()
