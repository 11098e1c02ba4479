"""Train the target, or pre-train the drafter, from scratch on the corpus.

    python train.py target --scratch DIR --tokenizer FOLDER

One thread, bfloat16 autocast over float32 weights. A run that was stopped goes on from its last
checkpoint; the batches depend on the seed and the step alone.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from common import (
    SYSTEM_WORDS,
    corpus_batch,
    held_out_loss,
    load_streams,
    matrices_and_vectors,
    new_model,
    positions_for,
    schedule,
)
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Settings:
    """The settings of one run."""

    seed: int
    steps: int
    learning_rate: float
    short: tuple[int, int] = (8, 256)  # rows, tokens
    long: tuple[int, int] = (2, 1024)
    long_share: float = 0.15
    chat_share: float = 0.05
    warmup: int = 100
    flat: float = 0.6
    floor: float = 0.02
    weight_decay: float = 0.1
    clip: float = 1.0


RUNS = {
    "target": Settings(seed=1, steps=5000, learning_rate=3e-3),
    "drafter": Settings(seed=2, steps=1500, learning_rate=4e-3),
}


def main() -> None:
    """Run or resume a training."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=RUNS)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--no-compile", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    settings = RUNS[arguments.kind]
    scratch: Path = arguments.scratch
    tokenizer = Tokenizer.from_file(str(arguments.tokenizer / "tokenizer.json"))
    systems = {name: tokenizer.encode(words).ids for name, words in SYSTEM_WORDS.items()}
    train, held = load_streams(scratch, "train"), load_streams(scratch, "held")

    model = new_model(arguments.kind, settings.seed)
    optimizer = torch.optim.AdamW(
        matrices_and_vectors(model, settings.weight_decay),
        lr=settings.learning_rate,
        betas=(0.9, 0.95),
        fused=True,
    )
    checkpoint = scratch / f"{arguments.kind}.pt"
    first, seconds = 0, 0.0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first, seconds = state["step"], state["seconds"]

    def loss_of(ids: Tensor, positions: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(input_ids=ids[:, :-1], position_ids=positions, use_cache=False).logits
        flat = logits.float().reshape(-1, logits.shape[-1])
        return functional.cross_entropy(flat, ids[:, 1:].reshape(-1))

    run = loss_of if arguments.no_compile else torch.compile(loss_of, dynamic=False)
    started = time.monotonic() - seconds
    recent: list[float] = []
    for step in range(first, settings.steps):
        rng = np.random.default_rng([settings.seed, step])
        rows, length = settings.long if rng.random() < settings.long_share else settings.short
        ids = corpus_batch(train, systems, rng, rows, length + 1, settings.chat_share)
        scale = schedule(step, settings.steps, settings.warmup, settings.flat, settings.floor)
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * scale
        loss = run(ids, positions_for(rng, rows, length))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        recent.append(float(loss.detach()))
        done = step + 1
        if done % 250 == 0 or done == settings.steps:
            seconds = time.monotonic() - started
            record = {
                "step": done,
                "seconds": round(seconds, 1),
                "train_loss": round(sum(recent) / len(recent), 4),
                "held_out": {k: round(v, 4) for k, v in held_out_loss(model, held).items()},
            }
            recent.clear()
            with (scratch / f"{arguments.kind}.jsonl").open("a") as log:
                log.write(json.dumps(record) + "\n")
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "step": done,
                "seconds": seconds,
            }
            torch.save(state, checkpoint.with_suffix(".tmp"))
            checkpoint.with_suffix(".tmp").replace(checkpoint)


if __name__ == "__main__":
    main()
