"""Embeddings read from GGUF files, beside those of the checkpoint they were made from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from outrider.runtime.lm.embeddings import TokenEmbeddings

MODELS = Path(__file__).parents[3] / "models"


@pytest.mark.parametrize(
    ("file", "checkpoint"),
    [("drafter/drafter-q8_0.gguf", "drafter"), ("target/target-f16.gguf", "target")],
)
def test_rows_are_those_of_the_checkpoint(file: str, checkpoint: str) -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    weights = numpy.load_file(MODELS / checkpoint / "model.safetensors")
    table = weights["model.embed_tokens.weight"].astype(np.float32)
    found = TokenEmbeddings.open(MODELS / file)
    assert found is not None
    for token in (0, 5, 900, 4095):
        assert np.abs(found.row(token) - table[token]).max() < 0.02 * np.abs(table[token]).max()


def test_similarity() -> None:
    found = TokenEmbeddings.open(MODELS / "drafter/drafter-q8_0.gguf")
    assert found is not None
    assert found.similarity(7, 7) == pytest.approx(1.0)
    assert found.similarity(7, 900) == pytest.approx(found.similarity(900, 7))
    assert -1 <= found.similarity(7, 900) < 0.9
    assert found.similarity(7, 10**6) == 0.0
