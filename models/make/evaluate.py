"""Measure the pair: held-out loss, acceptance, variety. Writes part of measured.json.

    python evaluate.py --models .. --scratch DIR --out ../measured.json

Acceptance is teacher-forced: both models read the same text, and at every position the overlap
sum(min(p, q)) is the chance that a draft sampled at T = 1 is accepted by the ratio rule, and
greedy agreement says how often both have the same likeliest token.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import Stream, held_windows, load_streams
from numpy.typing import NDArray
from sample import continue_rows
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional
from transformers import LlamaForCausalLM

PROMPT, SAMPLED = 24, 256
PROMPT_ANSWER = 96
LOSS_WINDOWS = 96
ACCEPTANCE_ROWS = 32
LONG_LENGTH, LONG_WINDOWS = 1536, 8
LONG_BUCKETS = ((0, 256), (256, 512), (512, 1024), (1024, 1536))
SEED = 11
ByDomain = dict[str, float]


def load(folder: Path) -> LlamaForCausalLM:
    """Read a shipped folder in float32."""
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@torch.no_grad()
def token_losses(model: LlamaForCausalLM, rows: Tensor) -> Tensor:
    """Give the loss of every token but the first of each row."""
    losses = []
    for part in torch.split(rows, 8):
        logits = model(input_ids=part[:, :-1], use_cache=False).logits
        losses.append(
            functional.cross_entropy(logits.transpose(1, 2), part[:, 1:], reduction="none")
        )
    return torch.cat(losses)


def losses(model: LlamaForCausalLM, streams: dict[str, Stream]) -> ByDomain:
    """Measure held-out loss in nats a token on windows of 256."""
    return {
        domain: round(float(token_losses(model, held_windows(stream, LOSS_WINDOWS, 257)).mean()), 4)
        for domain, stream in streams.items()
    }


def long_losses(model: LlamaForCausalLM, streams: dict[str, Stream]) -> dict[str, ByDomain]:
    """Measure held-out loss by position in long windows: does it hold beyond 256 tokens?"""
    out: dict[str, ByDomain] = {}
    for domain, stream in streams.items():
        means = token_losses(model, held_windows(stream, LONG_WINDOWS, LONG_LENGTH + 1)).mean(0)
        out[domain] = {f"{a}-{b}": round(float(means[a:b].mean()), 4) for a, b in LONG_BUCKETS}
    return out


def continuations(target: LlamaForCausalLM, stream: Stream, temperature: float) -> Tensor:
    """Let the target continue held-out prompts."""
    prompts = held_windows(stream, ACCEPTANCE_ROWS, PROMPT)
    generator = torch.Generator().manual_seed(SEED)
    temperatures = torch.full((ACCEPTANCE_ROWS,), temperature)
    return continue_rows(target, prompts, PROMPT + SAMPLED, temperatures, generator)


@torch.no_grad()
def acceptance(
    target: LlamaForCausalLM, drafter: LlamaForCausalLM, rows: Tensor, prompt: int = PROMPT
) -> dict[str, float]:
    """Compare the two models on the positions after the prompt."""
    overlap, agree, count = 0.0, 0, 0
    for part in torch.split(rows, 8):
        p = target(input_ids=part).logits[:, prompt - 1 : -1].softmax(dim=-1)
        q = drafter(input_ids=part).logits[:, prompt - 1 : -1].softmax(dim=-1)
        overlap += float(torch.minimum(p, q).sum())
        agree += int((p.argmax(-1) == q.argmax(-1)).sum())
        count += p.shape[0] * p.shape[1]
    return {"overlap": round(overlap / count, 4), "greedy_agreement": round(agree / count, 4)}


def distinct_4_grams(rows: NDArray[np.int64]) -> float:
    """Give the share of distinct 4-grams within a text, averaged over the texts."""
    shares = []
    for row in rows:
        grams = [tuple(row[i : i + 4]) for i in range(len(row) - 3)]
        shares.append(len(set(grams)) / len(grams))
    return round(float(np.mean(shares)), 4)


def prompt_acceptance(
    target: LlamaForCausalLM, drafter: LlamaForCausalLM, models: Path
) -> dict[str, list[dict[str, float]]]:
    """Measure each default prompt: overlap on eight T = 1 answers, agreement on the greedy one."""
    tokenizer = Tokenizer.from_file(str(models / "target/tokenizer.json"))
    prompts: dict[str, list[str]] = json.loads((models / "prompts.json").read_text())
    out: dict[str, list[dict[str, float]]] = {}
    for domain, texts in prompts.items():
        out[domain] = []
        for text in texts:
            ids = torch.tensor([tokenizer.encode(text).ids])
            length = ids.shape[1] + PROMPT_ANSWER
            figures = []
            for rows, temperature in ((8, 1.0), (1, 0.0)):
                generator = torch.Generator().manual_seed(SEED)
                temperatures = torch.full((rows,), temperature)
                answers = continue_rows(
                    target, ids.expand(rows, -1), length, temperatures, generator
                )
                figures.append(acceptance(target, drafter, answers, ids.shape[1]))
            out[domain].append(
                {
                    "tokens": ids.shape[1],
                    "overlap_t1": figures[0]["overlap"],
                    "greedy_agreement_t1": figures[0]["greedy_agreement"],
                    "greedy_agreement_greedy": figures[1]["greedy_agreement"],
                }
            )
    return out


def measure(models: Path, scratch: Path) -> dict[str, Any]:
    """Run all measurements on the shipped float16 weights, computed in float32."""
    streams = load_streams(scratch, "held")
    target = load(models / "target")
    drafters = {
        "before_distillation": load(models / "drafter/before-distillation"),
        "after_distillation": load(models / "drafter"),
    }
    texts = {
        "samples_t1": {d: continuations(target, s, 1.0) for d, s in streams.items()},
        "greedy_continuations": {d: continuations(target, s, 0.0) for d, s in streams.items()},
        "held_out_text": {
            d: held_windows(s, ACCEPTANCE_ROWS, PROMPT + SAMPLED) for d, s in streams.items()
        },
    }
    result: dict[str, Any] = {
        "parameters": {
            "target": target.num_parameters(),
            "drafter": drafters["after_distillation"].num_parameters(),
        },
        "held_out_loss_nats": {
            "target": losses(target, streams),
            **{f"drafter_{name}": losses(model, streams) for name, model in drafters.items()},
        },
        "held_out_loss_by_position": {
            "target": long_losses(target, streams),
            "drafter": long_losses(drafters["after_distillation"], streams),
        },
        "distinct_4_grams": {
            kind: {d: distinct_4_grams(rows.numpy()[:, PROMPT:]) for d, rows in by_domain.items()}
            for kind, by_domain in texts.items()
        },
    }
    result["acceptance"] = {
        kind: {
            name: {d: acceptance(target, model, rows) for d, rows in by_domain.items()}
            for name, model in drafters.items()
        }
        for kind, by_domain in texts.items()
    }
    result["prompts"] = prompt_acceptance(target, drafters["after_distillation"], models)
    before = result["held_out_loss_nats"]["drafter_before_distillation"]
    result["target_lead_nats"] = {
        d: round(before[d] - loss, 4) for d, loss in result["held_out_loss_nats"]["target"].items()
    }
    return result


def merge(path: Path, figures: dict[str, Any]) -> None:
    """Put the figures into the file, beside those that are there."""
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | figures, indent=2) + "\n")


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    figures = measure(arguments.models, arguments.scratch)
    merge(arguments.out, {"pair": figures})
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
