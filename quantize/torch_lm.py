"""A checkpoint behind the same verbs as the backends, to be measured against: simple, not fast."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from outrider.quantize.torch_model import load_model, torch
from outrider.runtime.lm.base import ListedLM, Rows, check_feed


class TorchLM(ListedLM):
    """Evaluates the whole text at every feed."""

    def __init__(self, folder: Path) -> None:
        """Load a checkpoint.

        Raises:
            BackendError: transformers cannot load it.
        """
        self._model = load_model(folder)
        config = self._model.config
        super().__init__(folder.name, config.vocab_size, config.max_position_embeddings)

    def feed(self, ids: Sequence[int], rows: int = 1) -> Rows:
        check_feed(self, ids, rows, len(self._ids))
        self._ids.extend(map(int, ids))
        with torch.inference_mode():
            logits = self._model(input_ids=torch.tensor([self._ids]), use_cache=False).logits[0]
        found: Rows = logits[len(self._ids) - rows :].float().numpy().astype(np.float32)
        return found

    def fork(self) -> TorchLM:
        raise NotImplementedError("a model to be measured against is not forked")
