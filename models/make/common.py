"""What training, distillation and evaluation share: model shapes, batches, held-out loss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from corpus import DOMAINS
from numpy.typing import NDArray
from tokenizer import MAX_LENGTH, VOCABULARY
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

END_ID, SYSTEM_ID, USER_ID, ASSISTANT_ID = 0, 1, 2, 3
SYSTEM_WORDS = {
    "scripture": "Scripture.",
    "docs": "Python documentation.",
    "source": "Python source code.",
}
MIXTURE = (0.32, 0.34, 0.34)
SHAPES = {
    "target": {
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
    "drafter": {
        "hidden_size": 192,
        "intermediate_size": 448,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 1,
    },
}
Stream = NDArray[np.uint16]


def config_of(kind: str) -> LlamaConfig:
    """Give the configuration of the target or of the drafter."""
    return LlamaConfig(
        **SHAPES[kind],
        vocab_size=VOCABULARY,
        max_position_embeddings=MAX_LENGTH,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=END_ID,
        eos_token_id=END_ID,
        pad_token_id=END_ID,
        attn_implementation="sdpa",
    )


def new_model(kind: str, seed: int) -> LlamaForCausalLM:
    """Build a model with fresh weights."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(config_of(kind))


def load_streams(scratch: Path, side: str) -> dict[str, Stream]:
    """Read the encoded corpus of one side, by domain."""
    return {domain: np.load(scratch / f"{domain}-{side}.npy") for domain in DOMAINS}


def as_chat(
    row: NDArray[np.int64], system: list[int], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Turn a window into a chat: the user says its beginning, the assistant goes on."""
    cut = int(rng.integers(8, 64))
    head = [SYSTEM_ID, *system] if rng.random() < 0.5 else []
    chat = [*head, USER_ID, *row[:cut], ASSISTANT_ID, *row[cut:]]
    return np.array(chat[: len(row)], dtype=np.int64)


def corpus_batch(
    streams: dict[str, Stream],
    systems: dict[str, list[int]],
    rng: np.random.Generator,
    shape: tuple[int, int],
    chat_share: float,
    *,
    mixture: tuple[float, ...] = MIXTURE,
    drawn: list[str] | None = None,
) -> Tensor:
    """Draw windows (rows, tokens), domains by the mixture, a share of them as chats.

    The domain of each row is added to `drawn`.
    """
    rows, length = shape
    out = np.empty((rows, length), dtype=np.int64)
    for index in range(rows):
        domain = DOMAINS[int(rng.choice(len(DOMAINS), p=mixture))]
        if drawn is not None:
            drawn.append(domain)
        stream = streams[domain]
        start = int(rng.integers(0, len(stream) - length))
        row = stream[start : start + length].astype(np.int64)
        out[index] = as_chat(row, systems[domain], rng) if rng.random() < chat_share else row
    return torch.from_numpy(out)


def positions_for(rng: np.random.Generator, rows: int, length: int) -> Tensor:
    """Give position ids: half of the rows start at 0, the others anywhere in the context."""
    starts = rng.integers(0, MAX_LENGTH - length, rows) * rng.integers(0, 2, rows)
    return torch.from_numpy(starts[:, None] + np.arange(length)[None, :])


def schedule(step: int, steps: int, warmup: int, flat: float, floor: float) -> float:
    """Warm up, stay flat for a share of the run, then fall linearly to `floor`."""
    if step < warmup:
        return (step + 1) / warmup
    start = flat * steps
    if step < start:
        return 1.0
    return 1.0 - (1.0 - floor) * (step - start) / (steps - start)


def save(path: Path, model: torch.nn.Module, record: dict[str, Any], optimizers: Any) -> None:
    """Write a checkpoint in one stroke, and append its record to the log beside it."""
    state = {
        "model": model.state_dict(),
        "optimizers": optimizers.state_dict(),
        "step": record["step"],
        "seconds": record["seconds"],
    }
    unfinished = path.with_suffix(".tmp")
    torch.save(state, unfinished)
    unfinished.replace(path)
    with path.with_suffix(".jsonl").open("a") as log:
        log.write(json.dumps(record) + "\n")


def held_windows(stream: Stream, count: int, length: int) -> Tensor:
    """Cut `count` windows spread evenly over a held-out stream."""
    starts = np.linspace(0, len(stream) - length - 1, count).astype(int)
    rows = np.stack([stream[s : s + length] for s in starts]).astype(np.int64)
    return torch.from_numpy(rows)


@torch.no_grad()
def held_out_loss(
    model: LlamaForCausalLM, streams: dict[str, Stream], count: int = 16, length: int = 257
) -> dict[str, float]:
    """Measure the loss in nats a token on held-out windows, by domain, in float32."""
    model.eval()
    losses = {}
    for domain, stream in streams.items():
        total = 0.0
        for rows in torch.split(held_windows(stream, count, length), 8):
            logits = model(input_ids=rows[:, :-1], use_cache=False).logits
            flat = logits.reshape(-1, logits.shape[-1])
            total += float(functional.cross_entropy(flat, rows[:, 1:].reshape(-1), reduction="sum"))
        losses[domain] = total / (count * (length - 1))
    model.train()
    return losses
