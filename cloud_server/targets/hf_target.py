"""What the two targets on transformers share: facts, decisions, and a check after loading.

Decisions for all rows are made together, on the device.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from outrider.cloud_server.targets import hf_load
from outrider.cloud_server.targets.base import Decided, Row, Target, TargetInfo
from outrider.cloud_server.targets.rows import (
    Feed,
    check_rows,
    constrained,
    decide_rows,
    feeds,
    positions,
)
from outrider.protocol.decoding.processors import F32
from outrider.protocol.decoding.rules import judge
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.errors import BackendError

if TYPE_CHECKING:
    from torch import Tensor

SMALL = 8192
"""Vocabularies up to this are decided by numpy when on the CPU: a few rows are not worth the
hundred-odd torch calls that a sampled batch takes, 1 ms each time."""

# How far two evaluations of the same text may be apart, as root mean square over the spread of the
# logits. Rounding stays well below; a cache that did not rewind, or a model that looks ahead, is
# far above.
_AGREE = {"float32": 1e-3, "bfloat16": 0.1, "float16": 0.1}


class HfTarget(Target):
    """A causal LM of transformers. Subclasses say how rows are fed."""

    def __init__(
        self,
        opened: hf_load.Opened,
        *,
        dtype: str,
        slots: int,
        verify_width: int = 0,
    ) -> None:
        self._model = opened.model
        self._where = opened.where
        self._device = opened.device
        self._width = verify_width
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
            dtype=f"{dtype}, {opened.quantized}" if opened.quantized else dtype,
            device=str(opened.device),
        )

    @abstractmethod
    def lengths(self) -> list[int]:
        """How many ids each slot has cached."""

    @abstractmethod
    def _feed(self, part: Sequence[Feed]) -> list[Tensor]:
        """Feed each of distinct slots; logits ``[want, width]`` of each, on the device."""

    @abstractmethod
    def _copy(self, source: int, slot: int, length: int) -> None:
        """Let ``slot`` hold the first ``length`` ids of ``source`` and nothing else."""

    @abstractmethod
    def _spoil(self, slots: list[int]) -> None:
        """What these slots hold is unknown: they are empty from now on."""

    def forward(self, rows: Sequence[Row]) -> list[Decided]:
        from outrider.cloud_server.targets.torch_rows import decide_on_device

        logits, usable = self._logits(rows), self.info.usable
        if usable <= SMALL and all(z.device.type == "cpu" for z in logits):
            result = decide_rows(rows, [list(z.float().numpy()) for z in logits], usable)
        else:
            result = decide_on_device(rows, logits, usable)
        for row, decided in zip(rows, result, strict=True):
            if row.parents:
                self._prune(row.slot, len(row.text), row.passed(decided))
        return result

    def _prune(self, slot: int, start: int, nodes: list[int]) -> None:
        """Of a tree whose first node lies at position ``start`` keep these nodes, one a position.

        Only of targets that take trees.
        """
        raise NotImplementedError

    def logits(self, rows: Sequence[Row]) -> list[F32]:
        return [z.float().cpu().numpy() for z in self._logits(rows)]

    def evaluate(self, rows: Sequence[Row]) -> None:
        """Feed rows and decide nothing: what a process that only helps does."""
        self._logits(rows)

    def score(self, row: Row, candidates: Sequence[int]) -> list[tuple[float, float]]:
        usable = self.info.usable
        logits = constrained(row, list(self._logits([row])[0].float().cpu().numpy()), usable)
        return [
            judge(z, row.sampling, ids, row.prompt_len, usable, candidate=candidate)
            for z, ids, candidate in zip(logits, positions(row), candidates, strict=True)
        ]

    def close(self) -> None:
        self._model = None

    def _logits(self, rows: Sequence[Row]) -> list[Tensor]:
        """Feed every row to its slot; logits ``[want, width]`` of each, on the device."""
        import torch

        if self._model is None:
            raise BackendError(f"{self.info.name} has been closed")
        check_rows(rows, self.lengths(), self.info, self._fed_width)
        found: dict[int, list[Tensor]] = {row.slot: [] for row in rows}
        try:
            with torch.inference_mode():
                for row in rows:
                    if row.source is not None:
                        self._copy(row.source, row.slot, row.cut)
                for part in feeds(rows, self._width):
                    for feed, logits in zip(part, self._feed(part), strict=True):
                        found[feed.slot].append(logits)
                return [_joined(found[row.slot]) for row in rows]
        except Exception as error:
            self._spoil([row.slot for row in rows])  # half-fed caches are of no use to anybody
            if isinstance(error, BackendError):
                raise
            text = hf_load.one_line(error)
            raise BackendError(f"{self.info.name}: the forward pass failed: {text}") from error

    def self_test(self) -> None:
        """Check on a few ids that the model is causal and that its cache can be rewound.

        Raises:
            BackendError: it is not or cannot, or its logits are not finite numbers.
        """
        ids = self._some_ids()
        half = len(ids) // 2
        whole = self._few(ids, 0)
        self._check_cache(len(ids))
        again = self._few(ids, half)
        self._check_cache(len(ids))
        single = [self._few(ids[: i + 1], i)[0] for i in range(half)]
        self._check_width(whole)
        if not bool(whole.isfinite().all()):
            raise BackendError(
                f"{self._where} gives logits that are not finite numbers in {self.info.dtype}; "
                "try bfloat16 or float32, or copy the weights again"
            )
        if self._differ(whole[:half], single):
            raise BackendError(
                f"{self._where} computes other logits one id at a time than in one pass; "
                "it is not a causal language model, or its cache does not work"
            )
        if self._differ(whole[half:], again):
            raise BackendError(
                f"{self._where}: its cache cannot be rewound: feeding, cutting and feeding again "
                "gives other logits; use a model with plain attention"
            )

    def _some_ids(self) -> list[int]:
        return [(7 * i + 1) % self._fed_width for i in range(min(7, self.info.n_ctx))]

    def _few(self, ids: list[int], cut: int) -> Tensor:
        """Logits in float64 after each of ``ids[cut:]``, in slot 0."""
        row = Row(0, cut, ids, len(ids) - cut, Sampling(), 1)
        return self._logits([row])[0].double()

    def _differ(self, a: Tensor, b: Tensor | list[Tensor]) -> bool:
        """By more than rounding."""
        allowed = _AGREE.get(self.info.dtype, _AGREE["float16"]) * float(a.std())
        return any(_distance(x, y) > allowed for x, y in zip(a, b, strict=True))

    def _check_cache(self, length: int) -> None:
        held = self.lengths()[0]
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


def full_layers(model: Any, where: str) -> list[Any]:
    """The layers of an empty cache that keeps every position, so that it can be cut anywhere.

    A sliding-window layer forgets what a rollback past its window would need. A full layer
    under the same window mask computes the same and only holds more.

    Raises:
        BackendError: a kind of layer that cannot be rewound.
    """
    from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

    layers = [
        DynamicLayer() if type(layer) is DynamicSlidingWindowLayer else layer
        for layer in DynamicCache(config=model.config).layers
    ]
    for i, layer in enumerate(layers):
        if not getattr(layer, "is_croppable", type(layer) is DynamicLayer):
            raise BackendError(
                f"{where}: layer {i} keeps a {type(layer).__name__}, which cannot be "
                "rewound when a draft is rejected; use a model with plain attention"
            )
    return layers


def _joined(parts: list[Tensor]) -> Tensor:
    import torch

    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _distance(a: Tensor, b: Tensor) -> float:
    """Root mean square of the difference."""
    return float((a - b).square().mean().sqrt())
