"""Train the byte-level BPE tokenizer that both models share, and encode the corpus with it.

python tokenizer.py --scratch DIR --out FOLDER
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from corpus import DOMAINS, documents
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 4096
END, SYSTEM, USER, ASSISTANT = "<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>"
SPECIAL = (END, SYSTEM, USER, ASSISTANT)  # ids 0, 1, 2, 3
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}<|system|>"
    "{% elif message['role'] == 'user' %}<|user|>"
    "{% else %}<|assistant|>{% endif %}"
    "{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}<|endoftext|>{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
MAX_LENGTH = 2048


def train(scratch: Path) -> Tokenizer:
    """Train on the training documents of all domains."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = (text for name in DOMAINS for text in documents(scratch, name, held=False))
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def write(tokenizer: Tokenizer, out: Path) -> None:
    """Write the two files that transformers reads."""
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": MAX_LENGTH,
        "bos_token": END,
        "eos_token": END,
        "pad_token": END,
        "additional_special_tokens": [SYSTEM, USER, ASSISTANT],
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def encode(tokenizer: Tokenizer, scratch: Path) -> None:
    """Encode every document, each after an end-of-text token, one array a domain and side."""
    end = SPECIAL.index(END)
    for domain in DOMAINS:
        for side, held in (("train", False), ("held", True)):
            stream: list[int] = []
            characters = 0
            for text in documents(scratch, domain, held=held):
                stream += [end, *tokenizer.encode(text).ids]
                characters += len(text)
            np.save(scratch / f"{domain}-{side}.npy", np.array([*stream, end], dtype=np.uint16))
            print(
                f"{domain} {side}: {len(stream)} tokens, {characters / len(stream):.2f} chars each"
            )


def main() -> None:
    """Train, write, encode."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    tokenizer = train(arguments.scratch)
    write(tokenizer, arguments.out)
    encode(tokenizer, arguments.scratch)


if __name__ == "__main__":
    main()
