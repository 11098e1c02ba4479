"""Write a training checkpoint as a transformers folder, its weights rounded to float16.

Every other format is made from these rounded weights, so that all of them are the same model.

    python export_hf.py target CHECKPOINT OUT
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from common import END_ID, SHAPES, new_model
from transformers import GenerationConfig


def export(kind: str, checkpoint: Path, out: Path) -> None:
    """Write config.json, generation_config.json and model.safetensors."""
    model = new_model(kind, seed=0)
    model.load_state_dict(torch.load(checkpoint, weights_only=True)["model"])
    model.generation_config = GenerationConfig(
        bos_token_id=END_ID, eos_token_id=END_ID, pad_token_id=END_ID
    )
    model.half().save_pretrained(out)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=SHAPES)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    export(arguments.kind, arguments.checkpoint, arguments.out)


if __name__ == "__main__":
    main()
