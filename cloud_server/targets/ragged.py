"""Keys and values of many sequences in fixed memory, and attention over rows of different lengths.

A model of transformers is given this cache and told to use this attention. Its layers then see one
line of tokens of all rows (``step``); each token's keys and values are written in place, into its
own slot at its own position, and each row attends to a *view* of its slot. Nothing is copied,
nothing is cut: a rollback is a smaller number.

What a token may see is asked of the model itself: transformers hands over the mask as a function of
two positions (causal, with a window, in chunks), which is evaluated at the rows' positions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.masking_utils import causal_mask_function

from outrider.cloud_server.targets.step import Block, Step
from outrider.protocol.errors import BackendError

_numbers = itertools.count()


class RowIndex:
    """A step's lists as tensors, on each device that a layer runs on."""

    def __init__(self, step: Step, device: torch.device) -> None:
        self.blocks = step.blocks
        self._held = {
            device: torch.tensor(
                [step.tokens, step.positions, step.slots, step.places],
                dtype=torch.int64,
                device=device,
            )
        }

    def copy(self) -> RowIndex:
        """The same in memory of its own, to be filled again and again."""
        other = object.__new__(RowIndex)
        other.blocks = self.blocks
        other._held = {device: lines.clone() for device, lines in self._held.items()}
        return other

    def fill(self, other: RowIndex) -> None:
        """Take over another one of the same shape, in place."""
        for device, lines in self._held.items():
            lines.copy_(other.on(device))

    def on(self, device: torch.device) -> Tensor:
        """``[4, tokens]``: ids, positions, slots, places."""
        if device not in self._held:
            self._held[device] = next(iter(self._held.values())).to(device)
        return self._held[device]


class SlotLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers has no types
    """Keys and values of one layer, ``[slots + 1, heads, span, size]``; the last is scratch."""

    is_compileable = False
    is_croppable = True
    is_sliding = False

    def __init__(self, owner: SlotMemory) -> None:
        super().__init__()
        self._owner = owner

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """The shapes are the layer's own: with tensor parallelism only this rank's heads."""
        self.keys = self._owner.room(key_states)
        self.values = self._owner.room(value_states)
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *_args: Any, **_kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write ``[1, heads, tokens, size]`` in place; what is returned is not looked at."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        _, _, slots, places = self._owner.index.on(key_states.device)
        self.keys[slots, :, places] = key_states[0].transpose(0, 1)
        self.values[slots, :, places] = value_states[0].transpose(0, 1)
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """For the model's bookkeeping only: the mask is evaluated row by row."""
        return query_length, 0

    def get_seq_length(self) -> int:
        """Rows have lengths of their own; the target keeps them."""
        return 0

    def get_max_length(self) -> int:
        return self._owner.span


class SlotMemory(Cache):  # type: ignore[misc]
    """The cache and the attention of one target. ``index`` is the pass under way."""

    index: RowIndex
    layers: list[SlotLayer]

    def __init__(self, layers: int, slots: int, span: int) -> None:
        """Room for ``slots`` sequences of at most ``span`` ids, taken at the first pass."""
        self.slots, self.span = slots, span
        super().__init__(layers=[SlotLayer(self) for _ in range(layers)])
        self.name = f"outrider-{next(_numbers)}"
        AttentionInterface.register(self.name, self.attend)
        AttentionMaskInterface.register(self.name, _mask)

    def close(self) -> None:
        """Free the memory and the name."""
        self.layers = []
        AttentionInterface._global_mapping.pop(self.name, None)
        AttentionMaskInterface._global_mapping.pop(self.name, None)

    @property
    def nbytes(self) -> int:
        """What keys and values take, all slots together and the scratch one."""
        return sum(
            tensor.nbytes
            for layer in self.layers
            for tensor in (layer.keys, layer.values)
            if tensor is not None
        )

    def room(self, like: Tensor) -> Tensor:
        """Zeros, since what is masked still meets a weight of zero, and 0 times NaN is NaN.

        On a CPU the pages are the system's own zeros, taken when they are first written.
        """
        shape = (self.slots + 1, like.shape[1], self.span, like.shape[3])
        size = int(np.prod(shape)) * like.element_size()
        try:
            if like.device.type != "cpu":
                return torch.zeros(shape, dtype=like.dtype, device=like.device)
            return torch.from_numpy(np.zeros(size, np.uint8)).view(like.dtype).view(shape)
        except (MemoryError, torch.OutOfMemoryError):
            total = 2 * size * len(self.layers) / 2**30
            raise BackendError(
                f"the cache of {self.slots} sessions of {self.span} ids takes {total:.1f} GiB, "
                f"which {like.device} does not have; serve fewer at once or give a smaller context"
            ) from None

    def copy(self, source: int, slot: int, length: int) -> None:
        """The first ``length`` positions of one slot into another."""
        for layer in self.layers:
            for tensor in (layer.keys, layer.values):
                if tensor is not None:
                    tensor[slot, :, :length] = tensor[source, :, :length]

    @torch.inference_mode()
    def gather(self, slot: int, start: int, places: list[int]) -> None:
        """Let the slot's positions from ``start`` on hold what lies at ``places``, which ascend."""
        wanted = torch.tensor(places)
        for layer in self.layers:
            for tensor in (layer.keys, layer.values):
                if tensor is not None:
                    tensor[slot, :, start : start + len(places)] = tensor[
                        slot, :, wanted.to(tensor.device)
                    ]

    @torch.inference_mode()
    def wipe(self, slots: list[int]) -> None:
        """After a failure: leave no NaN behind for whoever comes next."""
        for layer in self.layers:
            if layer.is_initialized:
                layer.keys[slots] = 0
                layer.values[slots] = 0

    def attend(
        self,
        module: Any,
        query: Tensor,
        _key: Tensor,
        _value: Tensor,
        attention_mask: Any,
        *,
        scaling: float | None = None,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        position_bias: Any = None,
        **_kwargs: Any,
    ) -> tuple[Tensor, None]:
        """Called by the model's layers with the signature of transformers' attention functions.

        Args:
            query: ``[1, heads, tokens, size]``.
            attention_mask: what :func:`_mask` made.
            softcap: squash scores to this size (Gemma 2).
            s_aux: a learned weight a head that takes part in the softmax and is nobody's (gpt-oss).

        Returns:
            ``[1, tokens, heads, size]`` and no weights.

        Raises:
            NotImplementedError: the layer wants something that this attention does not know.
        """
        if position_bias is not None or not isinstance(attention_mask, Visible):
            raise NotImplementedError("its attention has a bias or a mask of its own")
        layer = self.layers[module.layer_idx]
        if not layer.is_initialized:
            raise NotImplementedError("its layers share keys and values")
        heads = layer.keys.shape[1]
        grouped = query.shape[1] // heads
        out = query.new_empty(query.shape[2], query.shape[1], layer.values.shape[3])
        index = self.index.on(query.device)
        for block in self.index.blocks:
            first, bias = attention_mask.bias(block, index, grouped, query.dtype)
            slots, places = _range(block.slot, block.count), slice(first, block.length)
            tokens = _range(block.start, block.count * block.width)
            # Heads that share keys stand behind each other: as more queries, not as copied keys.
            q = query[0, :, tokens].view(heads, grouped, block.count, block.width, -1)
            q = q.permute(2, 0, 1, 3, 4).reshape(block.count, heads, grouped * block.width, -1)
            keys, values = layer.keys[slots, :, places], layer.values[slots, :, places]
            if softcap is None and s_aux is None:
                part = scaled_dot_product_attention(q, keys, values, attn_mask=bias, scale=scaling)
            else:
                part = _plain(
                    q, keys, values, bias=bias, scaling=scaling, softcap=softcap, sinks=s_aux
                )
            part = part.view(block.count, heads, grouped, block.width, -1).permute(0, 3, 1, 2, 4)
            out[tokens] = part.reshape(block.count * block.width, query.shape[1], -1)
        return out[None], None


def _range(start: int, count: int) -> slice:
    return slice(start, start + count)


def _plain(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    bias: Tensor | None,
    scaling: float | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attention written out, for what the fused kernels cannot do; the softmax in float32."""
    count, heads, rows, size = q.shape
    scores = q @ keys.transpose(2, 3) * (size**-0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if bias is not None:
        scores = scores + bias
    if sinks is not None:
        grouped = sinks.numel() // heads
        column = sinks.view(1, heads, grouped, 1).expand(count, -1, -1, rows // grouped)
        scores = torch.cat([scores, column.reshape(count, heads, rows, 1).to(scores.dtype)], dim=3)
    weights = torch.softmax(scores, dim=3, dtype=torch.float32).to(q.dtype)
    return weights[..., : keys.shape[2]] @ values


class Visible:
    """What tokens may see in layers of one kind, during one pass."""

    def __init__(self, function: Callable[..., Any]) -> None:
        """``function(batch, head, query position, key position)`` as transformers has it."""
        self._function = function
        self._made: dict[tuple[Block, int, torch.device], tuple[int, Tensor | None]] = {}

    def bias(
        self, block: Block, index: Tensor, grouped: int, dtype: torch.dtype
    ) -> tuple[int, Tensor | None]:
        """From which position on anything is seen, and what to add to the scores from there.

        Args:
            index: ``[4, tokens]`` of all blocks, see :meth:`RowIndex.on`.
            grouped: query heads a key head.

        Returns:
            The bias is ``[slots, 1, grouped * width, length - first]``, None for zeros.
        """
        key = (block, grouped, index.device)
        if key not in self._made:
            self._made[key] = self._make(block, index, grouped, dtype)
        return self._made[key]

    def _make(
        self, block: Block, index: Tensor, grouped: int, dtype: torch.dtype
    ) -> tuple[int, Tensor | None]:
        places = index[3]
        causal = self._function is causal_mask_function
        exact = block.count == 1 and places.device.type == "cpu"
        if causal and exact and block.width == 1:
            return 0, None
        tokens = _range(block.start, block.count * block.width)
        rows = places[tokens].view(block.count, -1, 1)
        columns = torch.arange(block.length, device=places.device)
        if block.tree:  # what a node may see is a matter of where it stands in the text,
            rows = index[1][tokens].view(1, -1, 1)
            columns[-len(block.tree) :] = index[1][tokens][-len(block.tree) :]
        seen = self._function(0, 0, rows, columns)
        if block.tree:  # and of the nodes only those above it, and itself
            seen = seen.clone()
            seen[:, :, -len(block.tree) :] &= _above(block, seen.device)
        first = 0
        if exact and not causal:  # behind a window the view begins later
            first = int(seen[0].any(0).to(torch.uint8).argmax())
            seen = seen[:, :, first:]
        bias = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
        bias.masked_fill_(~seen, -torch.inf)
        return first, bias.repeat(1, grouped, 1)[:, None]


def _above(block: Block, device: torch.device) -> Tensor:
    """Which nodes of a tree each token of its block has on its path: bool ``[width, nodes]``."""
    nodes = len(block.tree)
    found = np.zeros((block.width, nodes), bool)
    tree = found[block.width - nodes :]
    for node, parent in enumerate(block.tree):
        if parent >= 0:
            tree[node] = tree[parent]
        tree[node, node] = True
    return torch.from_numpy(found).to(device)


def _mask(*, mask_function: Callable[..., Any], attention_mask: Any = None, **_: Any) -> Visible:
    """What transformers calls to make a mask: keeps the question for later."""
    if attention_mask is not None:
        raise NotImplementedError("it makes a padding mask of its own")
    return Visible(mask_function)
