"""Train the target, or pre-train the drafter, from scratch on the corpus.

    python train.py target-first --scratch DIR --tokenizer FOLDER
    python train.py target --scratch DIR --tokenizer FOLDER
    python train.py drafter --scratch DIR --tokenizer FOLDER

One thread, bfloat16 autocast over float32 weights. A run that was stopped goes on from its last
checkpoint; the batches depend on the seed and the step alone.
"""

from __future__ import annotations

import argparse
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
    new_model,
    positions_for,
    save,
    schedule,
)
from muon import Optimizers
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Settings:
    """The settings of one run."""

    seed: int
    steps: int
    adam_rate: float
    muon_rate: float = 0.0  # 0: AdamW for everything
    start: str = ""  # the run whose weights this one begins with; none: fresh weights
    stop: int = 0  # break off after this step
    short: tuple[int, int] = (8, 256)  # rows, tokens
    long: tuple[int, int] = (2, 1024)
    long_share: float = 0.15
    chat_share: float = 0.05
    warmup: int = 100
    flat: float = 0.5
    floor: float = 0.02
    weight_decay: float = 0.1
    clip: float = 1.0


EVERY = 200  # steps between checkpoints
RUNS = {
    # The decay was broken off: Muon, tried on the drafter meanwhile, was so much better.
    "target-first": Settings(seed=1, steps=3400, stop=3000, flat=0.62, adam_rate=3e-3),
    "target": Settings(
        seed=5,
        steps=800,
        start="target-first",
        warmup=40,
        flat=0.25,
        adam_rate=2e-3,
        muon_rate=1.5e-2,
    ),
    "drafter": Settings(seed=2, steps=1200, flat=0.625, adam_rate=4e-3, muon_rate=2e-2),
}


def main() -> None:
    """Run or resume a training."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", choices=RUNS)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--no-compile", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    settings = RUNS[arguments.run]
    scratch: Path = arguments.scratch
    tokenizer = Tokenizer.from_file(str(arguments.tokenizer / "tokenizer.json"))
    systems = {name: tokenizer.encode(words).ids for name, words in SYSTEM_WORDS.items()}
    train, held = load_streams(scratch, "train"), load_streams(scratch, "held")

    model = new_model(arguments.run.split("-", maxsplit=1)[0], settings.seed)
    optimizers = Optimizers.of(model, settings.muon_rate, settings.adam_rate, settings.weight_decay)
    checkpoint = scratch / f"{arguments.run}.pt"
    first, seconds = 0, 0.0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizers.load_state_dict(state["optimizers"])
        first, seconds = state["step"], state["seconds"]
    elif settings.start:
        state = torch.load(scratch / f"{settings.start}.pt", weights_only=True)
        model.load_state_dict(state["model"])

    def loss_of(ids: Tensor, positions: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(input_ids=ids[:, :-1], position_ids=positions, use_cache=False).logits
        flat = logits.float().reshape(-1, logits.shape[-1])
        return functional.cross_entropy(flat, ids[:, 1:].reshape(-1))

    run = loss_of if arguments.no_compile else torch.compile(loss_of, dynamic=False)
    started = time.monotonic() - seconds
    recent: list[float] = []
    for step in range(first, settings.stop or settings.steps):
        rng = np.random.default_rng([settings.seed, step])
        rows, length = settings.long if rng.random() < settings.long_share else settings.short
        ids = corpus_batch(train, systems, rng, (rows, length + 1), settings.chat_share)
        scale = schedule(step, settings.steps, settings.warmup, settings.flat, settings.floor)
        loss = run(ids, positions_for(rng, rows, length))
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        optimizers.step(scale)
        recent.append(float(loss.detach()))
        done = step + 1
        if done % EVERY == 0 or done == settings.steps:
            seconds = time.monotonic() - started
            record = {
                "step": done,
                "seconds": round(seconds, 1),
                "train_loss": round(sum(recent) / len(recent), 4),
                "held_out": {k: round(v, 4) for k, v in held_out_loss(model, held).items()},
            }
            recent.clear()
            save(checkpoint, model, record, optimizers)


if __name__ == "__main__":
    main()
