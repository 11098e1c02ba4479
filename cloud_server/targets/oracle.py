"""A Hugging Face causal LM, one row after the other, each slot with a cache of transformers' own.

Slow and simple: what the batched target is compared with, and what runs models that cannot be
batched.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from outrider.cloud_server.targets.hf_target import HfTarget, full_layers
from outrider.cloud_server.targets.rows import Feed
from outrider.protocol.errors import BackendError

if TYPE_CHECKING:
    from torch import Tensor


class OracleTarget(HfTarget):
    """One cache a slot, cropped by transformers. See :class:`HfTarget`."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._caches: list[Any] = [None] * self.info.slots

    def close(self) -> None:
        super().close()
        self._caches = [None] * len(self._caches)

    def lengths(self) -> list[int]:
        return [0 if c is None else int(c.get_seq_length()) for c in self._caches]

    def _spoil(self, slots: list[int]) -> None:
        for slot in slots:
            self._caches[slot] = None

    def _copy(self, source: int, slot: int, length: int) -> None:
        cache = self._caches[slot] = copy.deepcopy(self._caches[source])
        if cache.get_seq_length() > length:
            cache.crop(length - cache.get_seq_length())

    def _feed(self, part: Sequence[Feed]) -> list[Tensor]:
        return [self._feed_one(feed) for feed in part]

    def _feed_one(self, feed: Feed) -> Tensor:
        cache = self._caches[feed.slot]
        if cache is None or feed.past == 0:
            cache = self._caches[feed.slot] = self._new_cache()
        elif cache.get_seq_length() > feed.past:
            cache.crop(feed.past - cache.get_seq_length())  # the number to remove, negative
        logits = self._pass(cache, feed)
        if feed.pad:
            cache.crop(-feed.pad)
        length = int(cache.get_seq_length())
        if length != feed.length:
            raise BackendError(
                f"{self.info.name}: slot {feed.slot} holds {length} ids after a pass that should "
                f"leave {feed.length}, so its cache cannot be rewound"
            )
        return logits

    def _pass(self, cache: Any, feed: Feed) -> Tensor:
        """Evaluate the tokens on top of ``cache``; the logits that are wanted."""
        import torch

        arguments: dict[str, Any] = {self._cache_argument: cache, "use_cache": True}
        kept = len(feed.tokens) - feed.first
        if self._keeps_last:
            arguments["logits_to_keep"] = max(kept, 1)  # 0 would mean all
        if feed.pad:  # past what the model was made for, where nobody looks
            places = range(feed.past, feed.past + len(feed.tokens))
            last = self.info.n_ctx - 1
            arguments["position_ids"] = torch.tensor(
                [[min(place, last) for place in places]], device=self._device
            )
        tokens = torch.tensor([list(feed.tokens)], dtype=torch.int64, device=self._device)
        out: Tensor = self._model(input_ids=tokens, **arguments).logits
        end = out.shape[1] - feed.pad
        return out[0, end - feed.want : end]

    def _new_cache(self) -> Any:
        from transformers.cache_utils import DynamicCache

        cache = DynamicCache(config=self._model.config)
        cache.layers = full_layers(self._model, self._where)
        return cache
