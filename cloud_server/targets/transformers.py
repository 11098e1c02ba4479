"""Any Hugging Face causal LM as a target, in torch.

Every slot has a cache of its own, so that each session rolls back by itself; rows are evaluated one
after the other. Decisions for all rows are made together on the device.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from outrider.cloud_server.targets import hf_load
from outrider.cloud_server.targets.base import Decided, Row, Target, TargetInfo
from outrider.cloud_server.targets.rows import check_rows, positions, split
from outrider.protocol.decoding.rules import choose, judge
from outrider.protocol.errors import BackendError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

SMALL = 8192
"""Vocabularies up to this are decided by numpy when on the CPU: a few rows are not worth the
hundred-odd torch calls that a sampled batch takes, 1 ms each time."""

# How far two evaluations of the same text may be apart, as root mean square over the spread of the
# logits. Rounding stays well below; a cache that did not rewind, or a model that looks ahead, is
# far above.
_AGREE = {"float32": 1e-3, "bfloat16": 0.1, "float16": 0.1}


class TransformersTarget(Target):
    """A causal LM with one cache a slot. See :class:`outrider.cloud_server.targets.base.Target`."""

    def __init__(
        self, opened: hf_load.Opened, *, dtype: str, device: torch.device, slots: int
    ) -> None:
        """Wrap an opened model. Use :meth:`load`, which also checks that it can be rewound."""
        self._model = opened.model
        self._where = opened.where
        self._device = device
        self._caches: list[Any] = [None] * slots
        accepted = inspect.signature(opened.model.forward).parameters
        # transformers 5 renamed the argument on the way.
        self._cache_argument = "cache" if "cache" in accepted else "past_key_values"
        self._keeps_last = "logits_to_keep" in accepted
        self._fed_width = int(opened.model.get_input_embeddings().num_embeddings)
        width = int(opened.model.config.get_text_config(decoder=True).vocab_size)
        usable = width if opened.vocabulary is None else min(width, opened.vocabulary)
        self.info = TargetInfo(
            name=opened.name,
            usable=usable,
            n_ctx=opened.n_ctx,
            slots=slots,
            eos=opened.eos,
            dtype=dtype,
            device=str(device),
        )

    @classmethod
    def load(
        cls,
        model: str,
        *,
        dtype: str = "float32",
        device: str = "cpu",
        n_ctx: int | None = None,
        slots: int = 8,
        threads: int | None = None,
        name: str | None = None,
    ) -> TransformersTarget:
        """Load a folder or a hub id and check that its cache can be rewound.

        Args:
            dtype: float32, bfloat16 or float16.
            device: cpu, cuda or cuda:N.
            n_ctx: most ids a slot holds; None is what the model was made for.
            threads: CPU threads of torch, for the whole process; None leaves them as they are.
            name: what to call the model; None is the folder's name or the hub id.

        Raises:
            BackendError: in one line, what is wrong and what to do.
        """
        hf_load.require()
        import torch

        if slots < 1:
            raise BackendError(f"{slots} slots were asked for; at least 1 is needed")
        if threads is not None:
            if threads < 1:
                raise BackendError(f"{threads} threads were asked for; at least 1 is needed")
            torch.set_num_threads(threads)
        place = hf_load.parse_device(device)
        opened = hf_load.open_model(model, hf_load.parse_dtype(dtype), place, n_ctx)
        target = cls(opened, dtype=dtype, device=place, slots=slots)
        if name is not None:
            target.info = replace(target.info, name=name)
        target._self_test()
        return target

    def forward(self, rows: Sequence[Row]) -> list[Decided]:
        import torch

        from outrider.cloud_server.targets.torch_decide import Position, decide

        logits = torch.cat(self._logits(rows)) if rows else torch.empty(0, self.info.usable)
        wanted = [
            Position(row.sampling, ids, row.prompt_len) for row in rows for ids in positions(row)
        ]
        usable = self.info.usable
        if self._device.type == "cpu" and usable <= SMALL:
            arrays = zip(logits.float().numpy(), wanted, strict=True)
            choices = [choose(z, *position, usable) for z, position in arrays]
        else:
            choices = decide(logits, wanted, usable)
        return split(choices, [row.want for row in rows])

    def score(self, row: Row, candidates: Sequence[int]) -> list[tuple[float, float]]:
        logits = self._logits([row])[0].float().cpu().numpy()
        usable = self.info.usable
        return [
            judge(z, row.sampling, ids, row.prompt_len, usable, candidate=candidate)
            for z, ids, candidate in zip(logits, positions(row), candidates, strict=True)
        ]

    def close(self) -> None:
        self._caches = [None] * len(self._caches)
        self._model = None

    def lengths(self) -> list[int]:
        """How many ids each slot has cached."""
        return [0 if c is None else int(c.get_seq_length()) for c in self._caches]

    def _logits(self, rows: Sequence[Row]) -> list[Tensor]:
        """Feed every row to its slot; logits ``[want, width]`` of each, on the device."""
        if self._model is None:
            raise BackendError(f"{self.info.name} has been closed")
        check_rows(rows, self.lengths(), self.info, self._fed_width)
        try:
            return [self._feed(row) for row in rows]
        except Exception as error:
            for row in rows:  # half-fed caches are of no use to anybody
                self._caches[row.slot] = None
            if isinstance(error, BackendError):
                raise
            text = hf_load.one_line(error)
            raise BackendError(f"{self.info.name}: the forward pass failed: {text}") from error

    def _feed(self, row: Row) -> Tensor:
        cache = self._caches[row.slot]
        if cache is None or row.cut == 0:
            cache = self._caches[row.slot] = self._new_cache()
        elif cache.get_seq_length() > row.cut:
            cache.crop(row.cut - cache.get_seq_length())  # the number to remove, negative
        logits = self._pass(cache, row.ids[row.cut :], row.want)
        length = int(cache.get_seq_length())
        if length != len(row.ids):
            raise BackendError(
                f"{self.info.name}: slot {row.slot} holds {length} ids after a pass that should "
                f"leave {len(row.ids)}"
            )
        return logits

    def _pass(self, cache: Any, ids: Sequence[int], want: int) -> Tensor:
        """Evaluate ``ids`` on top of ``cache``; the logits of the last ``want``."""
        import torch

        arguments: dict[str, Any] = {self._cache_argument: cache, "use_cache": True}
        if self._keeps_last:
            arguments["logits_to_keep"] = max(want, 1)  # 0 would mean all
        tokens = torch.tensor([list(ids)], dtype=torch.int64, device=self._device)
        with torch.inference_mode():
            out: Tensor = self._model(input_ids=tokens, **arguments).logits
        return out[0, out.shape[1] - want :]

    def _new_cache(self) -> Any:
        """An empty cache that keeps every position, so that it can be cut anywhere.

        A sliding-window layer forgets what a rollback past its window would need. A full layer
        under the same window mask computes the same and only holds more.

        Raises:
            BackendError: a kind of layer that cannot be rewound.
        """
        from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

        cache = DynamicCache(config=self._model.config)
        cache.layers = [
            DynamicLayer() if type(layer) is DynamicSlidingWindowLayer else layer
            for layer in cache.layers
        ]
        for i, layer in enumerate(cache.layers):
            if not getattr(layer, "is_croppable", type(layer) is DynamicLayer):
                raise BackendError(
                    f"{self._where}: layer {i} keeps a {type(layer).__name__}, which cannot be "
                    "rewound when a draft is rejected; use a model with plain attention"
                )
        return cache

    def _self_test(self) -> None:
        """Check on a few ids that the model is causal and that its cache can be rewound.

        Raises:
            BackendError: it is not or cannot, or its logits are not finite numbers.
        """
        ids = [(7 * i + 1) % self._fed_width for i in range(min(7, self.info.n_ctx))]
        half = len(ids) // 2
        try:
            cache = self._new_cache()
            whole = self._pass(cache, ids, len(ids)).double()
            self._check_cache(cache, len(ids))
            cache.crop(half - len(ids))
            again = self._pass(cache, ids[half:], len(ids) - half).double()
            self._check_cache(cache, len(ids))
            cache = self._new_cache()
            single = [self._pass(cache, [token], 1)[0].double() for token in ids[:half]]
        except BackendError:
            raise
        except Exception as error:
            text = hf_load.one_line(error)
            raise BackendError(f"{self._where}: a first forward pass failed: {text}") from error
        self._check_width(whole)
        if not bool(whole.isfinite().all()):
            raise BackendError(
                f"{self._where} gives logits that are not finite numbers in {self.info.dtype}; "
                "try bfloat16 or float32, or copy the weights again"
            )
        allowed = _AGREE[self.info.dtype] * float(whole.std())
        if any(_distance(a, b) > allowed for a, b in zip(whole, single, strict=False)):
            raise BackendError(
                f"{self._where} computes other logits one id at a time than in one pass; "
                "it is not a causal language model, or its cache does not work"
            )
        if _distance(whole[half:], again) > allowed:
            raise BackendError(
                f"{self._where}: its cache cannot be rewound: feeding, cutting and feeding again "
                "gives other logits; use a model with plain attention"
            )

    def _check_cache(self, cache: Any, length: int) -> None:
        held = int(cache.get_seq_length())
        if held != length:
            raise BackendError(
                f"{self._where}: its cache holds {held} ids where {length} were fed, so it cannot "
                "be rewound; use a model with plain attention"
            )

    def _check_width(self, logits: Tensor) -> None:
        """Hidden padding is fine, but no usable id may lie outside the logits."""
        if logits.shape[1] < self.info.usable:
            raise BackendError(
                f"{self._where}: logits of {logits.shape[1]} columns for {self.info.usable} tokens"
            )


def _distance(a: Tensor, b: Tensor) -> float:
    """Root mean square of the difference."""
    return float((a - b).square().mean().sqrt())
