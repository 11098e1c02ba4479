"""Teach a drafter the target's distributions: the pre-trained one, or specialists made of it.

    python distil.py distilled --target FOLDER --scratch DIR
    python distil.py scripture --target FOLDER --scratch DIR    # or docs, or source

A specialist begins as the distilled drafter and sees the text of its domain alone. The loss mixes
the forward Kullback-Leibler divergence with the total variation distance, whose complement is the
acceptance rate. First the text is the corpus, then mostly what sample.py has drawn from the target;
a shard that is not there yet is waited for, so that a batch depends on the seed and the step alone.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import torch
from common import (
    MIXTURE,
    SYSTEM_WORDS,
    Stream,
    corpus_batch,
    held_windows,
    load_streams,
    new_model,
    positions_for,
    save,
    schedule,
)
from corpus import DOMAINS
from muon import Optimizers
from numpy.typing import NDArray
from sample import shard_path, shard_prompts
from tokenizers import Tokenizer
from torch import Tensor
from transformers import LlamaForCausalLM


@dataclass(frozen=True)
class Settings:
    """The settings of one run."""

    seed: int = 4
    start: str = "drafter"  # the run whose weights this one begins with
    domain: str = ""  # the only one that it sees; none: all
    steps: int = 2600
    adam_rate: float = 4e-3
    muon_rate: float = 2e-2
    rows: int = 8
    length: int = 256
    long: tuple[int, int] = (2, 1024)
    corpus_steps: int = 400  # corpus text alone
    corpus_share: float = 0.2  # its share afterwards
    long_share: float = 0.4  # of the corpus batches after the first steps
    chat_share: float = 0.05
    shards: int = 12
    shard_every: int = 200  # one more shard is in use after each so many steps
    tv_share: tuple[float, float] = (0.3, 0.8)  # at the first step and after `tv_steps`
    tv_steps: int = 3600
    tv_scale: float = 3.0
    warmup: int = 50
    flat: float = 0.5
    floor: float = 0.02
    weight_decay: float = 0.1
    clip: float = 1.0


def specialist(domain: str, steps: int, flat: float) -> Settings:
    """Half of the text is the corpus: there are fewer samples of one domain."""
    return Settings(
        seed=6,
        start="distilled",
        domain=domain,
        steps=steps,
        adam_rate=2e-3,
        muon_rate=1e-2,
        corpus_steps=0,
        corpus_share=0.5,
        long_share=0.2,
        shard_every=0,
        tv_share=(0.6, 0.9),
        tv_steps=1500,
        flat=flat,
    )


RUNS = {
    "distilled": Settings(),
    "scripture": specialist("scripture", 900, 0.67),
    "docs": specialist("docs", 900, 0.67),
    "source": specialist("source", 500, 0.8),
}


def divergences(student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    """Give the mean forward KL divergence and the mean total variation distance."""
    log_p = teacher.float().log_softmax(dim=-1)
    log_q = student.float().log_softmax(dim=-1)
    p = log_p.exp()
    kl = (p * (log_p - log_q)).sum(dim=-1).mean()
    tv = 0.5 * (p - log_q.exp()).abs().sum(dim=-1).mean()
    return kl, tv


class Batches:
    """Choose the text of each step."""

    def __init__(self, settings: Settings, scratch: Path, systems: dict[str, list[int]]) -> None:
        self.settings, self.scratch, self.systems = settings, scratch, systems
        self.streams = load_streams(scratch, "train")
        self.mixture = tuple(
            float(name == settings.domain) if settings.domain else share
            for name, share in zip(DOMAINS, MIXTURE, strict=True)
        )
        self.shards: list[NDArray[np.uint16]] = []

    def samples(self, rng: np.random.Generator, step: int) -> Tensor:
        """Draw rows of the target's own text, from the shards in use at this step."""
        settings = self.settings
        used = settings.shards
        if settings.shard_every:
            used = min(used, max(2, 2 + (step - settings.corpus_steps) // settings.shard_every))
        while len(self.shards) < used:
            path = shard_path(self.scratch, len(self.shards))
            while not path.exists():
                time.sleep(2)
            shard = np.load(path)
            if settings.domain:
                _, domains = shard_prompts(self.streams, self.systems, len(self.shards))
                shard = shard[[domain == settings.domain for domain in domains]]
            self.shards.append(shard)
        # Newer shards have been seen less often.
        low = max(0, used - 8) if rng.random() < 0.5 else 0
        shard = self.shards[int(rng.integers(low, used))]
        rows = shard[rng.integers(0, len(shard), settings.rows)]
        return torch.from_numpy(rows[:, : settings.length].astype(np.int64))

    def draw(self, step: int) -> tuple[Tensor, Tensor]:
        """Give ids and positions."""
        settings = self.settings
        rng = np.random.default_rng([settings.seed, step])
        if step >= settings.corpus_steps and rng.random() >= settings.corpus_share:
            ids = self.samples(rng, step)
        else:
            wide = rng.random() < settings.long_share
            shape = settings.long if wide else (settings.rows, settings.length)
            ids = corpus_batch(
                self.streams, self.systems, rng, shape, settings.chat_share, mixture=self.mixture
            )
        return ids, positions_for(rng, *ids.shape)


@torch.no_grad()
def held_out_overlap(
    student: LlamaForCausalLM, teacher: LlamaForCausalLM, streams: dict[str, Stream]
) -> dict[str, float]:
    """Measure sum(min(p, q)) on held-out corpus text, by domain."""
    overlaps = {}
    for domain, stream in streams.items():
        rows = held_windows(stream, 8, 257)
        _, tv = divergences(student(input_ids=rows).logits, teacher(input_ids=rows).logits)
        overlaps[domain] = round(1.0 - float(tv), 4)
    return overlaps


def system_ids(target: Path) -> dict[str, list[int]]:
    """Encode what a chat's system message says, by domain."""
    tokenizer = Tokenizer.from_file(str(target / "tokenizer.json"))
    return {name: tokenizer.encode(words).ids for name, words in SYSTEM_WORDS.items()}


def main() -> None:
    """Run or resume the distillation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", choices=RUNS)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--no-compile", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    settings, scratch = RUNS[arguments.run], arguments.scratch
    systems = system_ids(arguments.target)
    held = load_streams(scratch, "held")
    batches = Batches(settings, scratch, systems)

    teacher = LlamaForCausalLM.from_pretrained(arguments.target, dtype=torch.float32).eval()
    student = new_model("drafter", settings.seed)
    optimizers = Optimizers.of(
        student, settings.muon_rate, settings.adam_rate, settings.weight_decay
    )
    checkpoint = scratch / f"{arguments.run}.pt"
    first, seconds = 0, 0.0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        optimizers.load_state_dict(state["optimizers"])
        first, seconds = state["step"], state["seconds"]
    else:
        state = torch.load(scratch / f"{settings.start}.pt", weights_only=True)
    student.load_state_dict(state["model"])

    def teach(ids: Tensor, positions: Tensor) -> Tensor:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            out = teacher(input_ids=ids, position_ids=positions, use_cache=False)
            return cast(Tensor, out.logits)

    def learn(ids: Tensor, positions: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            logits = student(input_ids=ids, position_ids=positions, use_cache=False).logits
        return divergences(logits, wanted)

    wrap = (lambda f: f) if arguments.no_compile else partial(torch.compile, dynamic=False)
    teaching, learning = wrap(teach), wrap(learn)
    started = time.monotonic() - seconds
    recent: list[tuple[float, float]] = []
    for step in range(first, settings.steps):
        ids, positions = batches.draw(step)
        scale = schedule(step, settings.steps, settings.warmup, settings.flat, settings.floor)
        kl, tv = learning(ids, positions, teaching(ids, positions))
        low, high = settings.tv_share
        share = low + (high - low) * step / settings.tv_steps
        ((1.0 - share) * kl + share * settings.tv_scale * tv).backward()
        torch.nn.utils.clip_grad_norm_(student.parameters(), settings.clip)
        optimizers.step(scale)
        recent.append((float(kl.detach()), float(tv.detach())))
        done = step + 1
        if done % 200 == 0 or done == settings.steps:
            seconds = time.monotonic() - started
            mean_kl, mean_tv = np.mean(recent, axis=0)
            record = {
                "step": done,
                "seconds": round(seconds, 1),
                "kl": round(float(mean_kl), 4),
                "overlap": round(1.0 - float(mean_tv), 4),
                "held_out_overlap": held_out_overlap(student, teacher, held),
            }
            recent.clear()
            save(checkpoint, student, record, optimizers)


if __name__ == "__main__":
    main()
