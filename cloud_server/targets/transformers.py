"""Any Hugging Face causal LM as a target, in torch: all rows in one pass.

``ragged`` holds the keys and values and computes attention, ``step`` lays a pass out, ``graphs``
records passes on a GPU. A model that cannot be run this way is run by the ``oracle``, and that is
said when it is loaded.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from outrider.cloud_server.targets import hf_load
from outrider.cloud_server.targets.hf_target import HfTarget, full_layers
from outrider.cloud_server.targets.oracle import OracleTarget
from outrider.cloud_server.targets.rows import Feed
from outrider.cloud_server.targets.step import Step, lay_out, lay_out_dense
from outrider.protocol.errors import BackendError

if TYPE_CHECKING:
    from torch import Tensor

    from outrider.cloud_server.targets.graphs import Graphs, Recorder
    from outrider.cloud_server.targets.ragged import RowIndex

_log = logging.getLogger(__name__)


LEAVES = 64
"""Ends of a tree: its mask costs the same for any number."""


class CannotBatchError(Exception):
    """Why a model's rows have to be evaluated one after the other."""


class TransformersTarget(HfTarget):
    """A causal LM whose slots share one memory and one pass. See :class:`HfTarget`."""

    def __init__(self, opened: hf_load.Opened, **settings: Any) -> None:
        """Wrap an opened model, whose attention is this target's from now on. Use :meth:`load`.

        Raises:
            CannotBatchError: the model does not allow that.
            BackendError: it has a kind of layer that cannot be rewound.
        """
        from outrider.cloud_server.targets.ragged import SlotMemory

        super().__init__(opened, **settings)
        layers = len(full_layers(self._model, self._where))
        self._lengths = [0] * self.info.slots
        if not self._width:  # in pieces of fixed width a tree would be judged node by node
            self.info = replace(self.info, leaves=LEAVES)
        self._span = self.info.n_ctx + self._width
        if "position_ids" not in inspect.signature(self._model.forward).parameters:
            raise CannotBatchError("it takes no position ids")
        if not layers:
            raise CannotBatchError("its config does not say how many layers it has")
        self._expected = self._alone()
        self._native = self._model.config._attn_implementation
        self._memory = SlotMemory(layers, self.info.slots, self._span)
        self._graphs: Graphs | None = None
        spread = len(set(getattr(self._model, "hf_device_map", {}).values())) > 1
        if self._device.type == "cuda" and not spread:
            from outrider.cloud_server.targets.graphs import CudaRecorder

            self.use_graphs(CudaRecorder(self._device))
        self._model.set_attn_implementation(self._memory.name)
        if self._model.config._attn_implementation != self._memory.name:
            self.let_go()
            raise CannotBatchError("its attention cannot be replaced")

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
        batched: bool = True,
        verify_width: int = 0,
        device_map: str | None = None,
        ranks: int = 1,
    ) -> HfTarget:
        """Load a folder or a hub id and check that its cache can be rewound.

        Args:
            dtype: float32, bfloat16 or float16.
            device: cpu, cuda or cuda:N.
            n_ctx: most ids a slot holds; None is what the model was made for.
            threads: CPU threads of torch, for the whole process; None leaves them as they are.
            name: what to call the model; None is the folder's name or the hub id.
            batched: False is the oracle, which evaluates rows one after the other.
            verify_width: judge drafts in passes of exactly that many positions a row, so that
                their number cannot change a result by rounding; 0 is as many as there are.
            device_map: spread the layers over all devices, as transformers has it: auto, balanced,
                balanced_low_0 or sequential. Needs accelerate.
            ranks: this process is one of so many that share every layer (``tensor_parallel``).

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
        opened = hf_load.open_model(
            model, hf_load.parse_dtype(dtype), place, n_ctx, device_map=device_map, ranks=ranks
        )
        settings: dict[str, Any] = {
            "dtype": dtype,
            "slots": slots,
            "verify_width": verify_width,
        }
        target: HfTarget | None = _batched(opened, settings) if batched else None
        if target is None:
            target = OracleTarget(opened, **settings)
            target.self_test()
        if ranks > 1:  # the other processes decide nothing, so they would not know what to keep
            target.info = replace(target.info, leaves=1)
        if name is not None:
            target.info = replace(target.info, name=name)
        return target

    def use_graphs(self, recorder: Recorder) -> None:
        """Lay short rows out in a padded block whose shapes come again, and record those passes."""
        from outrider.cloud_server.targets.graphs import Graphs

        self._graphs = Graphs(self._forward, recorder)

    def let_go(self) -> None:
        """Give the model its own attention back."""
        self._model.set_attn_implementation(self._native)
        self._memory.close()

    def close(self) -> None:
        if self._model is not None:
            self._memory.close()
        super().close()

    def lengths(self) -> list[int]:
        return list(self._lengths)

    @property
    def cache_bytes(self) -> int:
        """What keys and values take, all slots together."""
        return self._memory.nbytes

    def _copy(self, source: int, slot: int, length: int) -> None:
        self._memory.copy(source, slot, length)
        self._lengths[slot] = length

    def _prune(self, slot: int, start: int, nodes: list[int]) -> None:
        moved = [i for i, node in enumerate(nodes) if node != i]
        if moved:  # the others lie where they belong
            first = moved[0]
            self._memory.gather(slot, start + first, [start + node for node in nodes[first:]])
        self._lengths[slot] = start + len(nodes)

    def _spoil(self, slots: list[int]) -> None:
        for slot in slots:
            self._lengths[slot] = 0
        self._memory.wipe(slots)

    def _feed(self, part: Sequence[Feed]) -> list[Tensor]:
        if self._width:  # the last layer, too, is to see as many positions as ever
            full = [feed._replace(want=len(feed.tokens) - feed.first) for feed in part]
            return [logits[: feed.want] for logits, feed in zip(self._run(full), part, strict=True)]
        return self._run(part)

    def _run(self, part: Sequence[Feed]) -> list[Tensor]:
        import torch

        if self._graphs is None and self._device.type == "cpu":
            step = lay_out(part, self.info.n_ctx)
        else:
            step = lay_out_dense(part, self.info.n_ctx, self.info.slots, self._span)
        logits = self._pass(step)
        for feed in part:
            self._lengths[feed.slot] = feed.length
        return list(torch.split(logits, [feed.want for feed in part]))

    def _pass(self, step: Step) -> Tensor:
        """All rows at once; the logits that are wanted, row after row."""
        import torch

        from outrider.cloud_server.targets.ragged import RowIndex

        index = RowIndex(step, self._device)
        keep = torch.tensor(step.keep or [0], dtype=torch.int64, device=self._device)
        if self._graphs is not None and step.steady:
            return self._graphs(index)[keep][: len(step.keep)]
        if self._keeps_last:
            return self._forward(index, keep)[: len(step.keep)]
        return self._forward(index)[keep][: len(step.keep)]

    def _forward(self, index: RowIndex, keep: Tensor | None = None) -> Tensor:
        """Logits of the tokens to ``keep``, else of all: ``[tokens, width]``. Only tensor work."""
        self._memory.index = index
        lines = index.on(self._device)
        arguments: dict[str, Any] = {self._cache_argument: self._memory, "use_cache": True}
        if keep is not None:
            arguments["logits_to_keep"] = keep
        out: Tensor = self._model(
            input_ids=lines[None, 0], position_ids=lines[None, 1], **arguments
        ).logits[0]
        return out

    def _alone(self) -> Tensor:
        """What the model computes by itself, without a cache and with its own attention."""
        import torch

        tokens = torch.tensor([self._some_ids()], device=self._device)
        try:
            with torch.inference_mode():
                out: Tensor = self._model(input_ids=tokens, use_cache=False).logits
        except Exception as error:
            text = hf_load.one_line(error)
            raise BackendError(f"{self._where}: a first forward pass failed: {text}") from error
        return out[0].double()

    def check_alike(self) -> None:
        """Compare with the model's own attention.

        Raises:
            CannotBatchError: it does not run, or other logits come out.
        """
        try:
            ours = self._few(self._some_ids(), 0)
        except BackendError as error:
            if error.__cause__ is None:  # ours: a cache that does not fit into memory
                raise
            raise CannotBatchError(hf_load.one_line(error.__cause__)) from error
        if self._differ(self._expected, ours):
            raise CannotBatchError("it has an attention of its own, which gives other logits")


def _batched(opened: hf_load.Opened, settings: dict[str, Any]) -> TransformersTarget | None:
    """The model with all rows in one pass; None where that cannot be, which is said."""
    target = None
    try:
        target = TransformersTarget(opened, **settings)
        target.check_alike()
    except CannotBatchError as why:
        if target is not None:
            target.let_go()
        _log.warning("%s: rows are evaluated one after the other: %s", opened.where, why)
        return None
    target.self_test()
    return target
