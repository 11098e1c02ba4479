"""llama.cpp as a causal LM: one context, several sequences, one ragged decode for all of them.

Only the low-level C calls are used: the high-level Python class keeps a float32 row for every
token fed, which a small board cannot afford. Logits are asked for where they are wanted and copied
out at once, because llama.cpp's buffer is reused by the next decode.
"""

from __future__ import annotations

import ctypes
import itertools
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from outrider.protocol.decoding.trees import depths, leaves, path
from outrider.protocol.errors import BackendError, SettingError
from outrider.runtime.lm.base import CausalLM, Rows, check_cut, check_feed
from outrider.runtime.lm.llama_batch import Batch, Flat, Item, Tree
from outrider.runtime.lm.llama_context import KV, cache_bytes, check_rewindable, new_context
from outrider.runtime.lm.llama_library import (
    Weights,
    end_tokens,
    forget_complaints,
    library,
    open_weights,
    reason,
    usable_size,
)
from outrider.runtime.lm.memory import check_fits

NO_PARENTS: Mapping[int, Sequence[int]] = {}


class LlamaModel:
    """Weights and one context with ``n_seq`` separate sequences of at most ``n_ctx`` ids each.

    Not thread-safe: one thread owns it. ``row_width`` is the width of a logits row, ``usable`` the
    number of real tokens (the rest is padding), ``eos`` every id that ends generation. ``n_ctx`` is
    what is really available: what was asked, at most what the model was trained for.
    """

    def __init__(
        self, weights: Weights, context: Any, batch: Batch, n_ctx: int, n_seq: int
    ) -> None:
        api = library()
        self.forks = batch.ends - 1
        self.name = weights.path.stem
        self.n_ctx = n_ctx
        self.n_seq = n_seq
        self.row_width = int(api.llama_vocab_n_tokens(weights.vocab))
        self.usable = usable_size(weights)
        self.eos = end_tokens(weights)
        self._weights = weights
        self._batch = batch
        self._context = context
        self._memory = api.llama_get_memory(context)
        self._ids: list[list[int]] = [[] for _ in range(n_seq)]
        self._taken = [False] * n_seq
        self._trees: dict[int, Tree] = {}
        # Freed when closed, collected or at exit, whichever is first; the weights after it.
        self._free = weakref.finalize(self, _free, weights, context)

    @classmethod
    def load(
        cls,
        path: str | Path,
        n_ctx: int = 0,
        n_seq: int = 1,
        *,
        threads: int = 1,
        kv: str = "f32",
        n_batch: int = 512,
        gpu_layers: int = 0,
        forks: int = 0,
    ) -> LlamaModel:
        """Load a GGUF file and make the context. ``n_ctx`` 0 is what the model was trained for.

        ``forks``: how many branches beside the main ones the trees of one pass may have. All
        sequences then share one buffer, so that a fork copies nothing; but each looks at all of it.

        Raises:
            SettingError: a number out of range or an unknown ``kv``.
            BackendError: the file does not load, the model's cache cannot be rewound, or there is
            not enough memory for the context.
        """
        for setting, value, least in (
            ("n_ctx", n_ctx, 0),
            ("n_seq", n_seq, 1),
            ("threads", threads, 1),
            ("n_batch", n_batch, 1),
            ("forks", forks, 0),
        ):
            if value < least:
                raise SettingError(f"{setting} is {value}; it must be at least {least}")
        if kv not in KV:
            raise SettingError(f"kv is {kv!r}; it must be one of {', '.join(KV)}")
        weights = open_weights(path, gpu_layers=gpu_layers)
        try:
            check_rewindable(weights)
            trained = int(library().llama_model_n_ctx_train(weights.handle))
            n_ctx = min(n_ctx or trained, trained)
            if gpu_layers == 0:  # else it is the accelerator's memory, which llama.cpp checks
                cache = cache_bytes(weights, n_ctx * n_seq, kv)
                what = f"a {kv} cache of {n_seq} x {n_ctx} ids"
                check_fits(str(path), Path(path).stat().st_size, cache, what)
            context = new_context(
                weights, n_ctx, n_seq, threads=threads, kv=kv, n_batch=n_batch, forks=forks
            )
        except BaseException:
            weights.free()
            raise
        return cls(weights, context, Batch(n_batch, 1 + forks), n_ctx, n_seq)

    def forward(
        self, items: Sequence[Item], parents: Mapping[int, Sequence[int]] = NO_PARENTS
    ) -> list[Rows]:
        """Feed several sequences in one ragged pass (one decode per ``n_batch`` tokens).

        ``parents``: by sequence, of the items that end on a tree of nodes; after the pass
        :meth:`settle` each of them before anything else.

        Returns, for each item, float32 ``[rows, row_width]`` of its last ``rows`` positions; the
        arrays are the caller's to keep.

        Raises:
            BackendError: an item does not fit or the decode failed. No sequence has changed then.
        """
        self._check(items)
        trees = self._fork(parents)
        flat = Flat.of(items, [len(ids) for ids in self._ids], trees)
        out = np.empty((int(flat.wanted.sum()), self.row_width), np.float32)
        try:
            self._decode(flat, out, items)
        except BackendError:
            self._drop(trees)
            raise
        for seq, ids, _ in items:
            self._ids[seq].extend(map(int, ids))
        self._trees.update(trees)
        starts = np.cumsum([0, *(rows for _, _, rows in items)])
        return [out[a:b] for a, b in itertools.pairwise(starts)]

    def _fork(self, parents: Mapping[int, Sequence[int]]) -> dict[int, Tree]:
        """A sequence for each end of each tree, the first being the item's own."""
        free = iter(range(self.n_seq, self.n_seq + self.forks))
        trees: dict[int, Tree] = {}
        for seq, above in parents.items():
            ends = leaves(above)
            own = [seq, *itertools.islice(free, len(ends) - 1)]
            if len(own) < len(ends):
                self._drop(trees)
                raise BackendError(f"{self.name}: trees with more than {self.forks} branches")
            members: list[list[int]] = [[] for _ in above]
            for end, member in zip(ends, own, strict=True):
                for node in path(above, end):
                    members[node].append(member)
            for fork in own[1:]:
                library().llama_memory_seq_cp(self._memory, seq, fork, -1, -1)
            trees[seq] = Tree(above, depths(above), members, own)
        return trees

    def _drop(self, trees: Mapping[int, Tree]) -> None:
        """Forget the forks."""
        for tree in trees.values():
            for fork in tree.all[1:]:
                library().llama_memory_seq_rm(self._memory, fork, -1, -1)

    def settle(self, seq: int, nodes: Sequence[int]) -> None:
        """Of the tree that the sequence was last fed keep the path ``nodes`` from the top down.

        Nothing is copied: cells of the path are handed over, the others are given back.
        """
        tree = self._trees.pop(seq)
        api, start = library(), len(self._ids[seq]) - len(tree.parents)
        holder = tree.members[nodes[-1]][0] if nodes else seq
        if holder == seq:
            api.llama_memory_seq_rm(self._memory, seq, start + len(nodes), -1)
        else:
            api.llama_memory_seq_rm(self._memory, seq, start, -1)
            api.llama_memory_seq_cp(self._memory, holder, seq, start, start + len(nodes))
        self._drop({seq: tree})
        tokens = self._ids[seq][start:]
        self._ids[seq][start:] = [tokens[node] for node in nodes]

    def _check(self, items: Sequence[Item]) -> None:
        """Refuse what llama.cpp would refuse with a number, or worse, accept."""
        self._check_open()
        seen: set[int] = set()
        for seq, ids, rows in items:
            past = self.length(seq)
            if seq in seen:
                raise BackendError(f"sequence {seq} appears twice in one pass")
            seen.add(seq)
            check_feed(self, ids, rows, past)

    def _decode(self, flat: Flat, out: Rows, items: Sequence[Item]) -> None:
        """Run the flat tokens through llama.cpp chunk by chunk; wanted rows land in ``out``."""
        api = library()
        lines = forget_complaints()
        done = 0
        for start in range(0, len(flat.token), self._batch.capacity):
            chunk = flat.part(start, start + self._batch.capacity)
            batch = self._batch.fill(chunk)
            code = api.llama_decode(self._context, batch)
            if code != 0:
                # Some of the tokens may be in the cache already: back to where all this began.
                for seq, _, _ in items:
                    api.llama_memory_seq_rm(self._memory, seq, len(self._ids[seq]), -1)
                raise BackendError(_decode_failure(self.name, code, items) + reason(lines))
            n = int(chunk.wanted.sum())
            if n:
                source = api.llama_get_logits(self._context)
                ctypes.memmove(out[done:].ctypes.data, source, n * self.row_width * 4)
                done += n

    def cut(self, seq: int, length: int) -> None:
        """Keep the first ``length`` ids of a sequence."""
        self._check_open()
        check_cut(length, self.length(seq))
        if length == len(self._ids[seq]):
            return
        # The library's positions are the indices of the list of ids: nothing else to keep in step.
        if not library().llama_memory_seq_rm(self._memory, seq, length, -1):
            raise BackendError(f"{self.name}: llama.cpp cannot rewind its cache to {length} ids")
        del self._ids[seq][length:]

    def copy(self, src: int, dst: int) -> None:
        """Make sequence ``dst`` equal to ``src``. Copies the whole buffer of a sequence."""
        self._check_open()
        self.length(src)
        if src == dst:
            raise BackendError(f"{self.name}: sequence {src} cannot be copied onto itself")
        self.cut(dst, 0)
        library().llama_memory_seq_cp(self._memory, src, dst, -1, -1)
        self._ids[dst] = list(self._ids[src])

    def length(self, seq: int) -> int:
        """How many ids a sequence holds."""
        if not 0 <= seq < self.n_seq:
            raise BackendError(f"{self.name} has sequences 0 to {self.n_seq - 1}, not {seq}")
        return len(self._ids[seq])

    def ids(self, seq: int) -> Sequence[int]:
        """The ids that a sequence holds. Read only."""
        self.length(seq)
        return self._ids[seq]

    def take(self) -> int:
        """Reserve a sequence that nobody has; it is empty."""
        self._check_open()
        if False not in self._taken:
            raise BackendError(
                f"all {self.n_seq} sequences of {self.name} are in use; load it with a larger n_seq"
            )
        seq = self._taken.index(False)
        self._taken[seq] = True
        return seq

    def give_back(self, seq: int) -> None:
        """Empty a reserved sequence and let others have it."""
        if self.closed:
            return
        self.cut(seq, 0)
        self._taken[seq] = False

    @property
    def in_use(self) -> int:
        """How many sequences are reserved."""
        return sum(self._taken)

    @property
    def closed(self) -> bool:
        """Whether the context has been freed."""
        return not self._free.alive

    def close(self) -> None:
        """Free the context and the weights. Calling it twice is harmless."""
        self._free()

    def _check_open(self) -> None:
        if self.closed:
            raise BackendError(f"{self.name} has been closed")


class LlamaLM(CausalLM):
    """One sequence of a :class:`LlamaModel`; ``fork`` takes another one of the same context."""

    def __init__(self, model: LlamaModel, *, owns_model: bool = False) -> None:
        """Take a free sequence; with ``owns_model`` the last view to close frees the model."""
        self.model = model
        self.name = model.name
        self.row_width = model.row_width
        self.n_ctx = model.n_ctx
        self._seq: int | None = model.take()
        self._owns_model = owns_model

    @classmethod
    def load(cls, path: str | Path, n_ctx: int = 0, n_seq: int = 1, **settings: Any) -> LlamaLM:
        """Load a GGUF file for one user; ``n_seq`` - 1 forks can exist beside it."""
        return cls(LlamaModel.load(path, n_ctx, n_seq, **settings), owns_model=True)

    @property
    def seq(self) -> int:
        """The sequence number in the model's context."""
        if self._seq is None or self.model.closed:
            raise BackendError(f"{self.name} has been closed")
        return self._seq

    @property
    def ids(self) -> Sequence[int]:
        return self.model.ids(self.seq)

    def feed(self, ids: Sequence[int], rows: int = 1) -> Rows:
        return self.model.forward([(self.seq, ids, rows)])[0]

    def cut(self, length: int) -> None:
        self.model.cut(self.seq, length)

    def fork(self) -> LlamaLM:
        seq = self.seq
        twin = LlamaLM(self.model, owns_model=self._owns_model)
        self.model.copy(seq, twin.seq)
        return twin

    def close(self) -> None:
        if self._seq is None:
            return
        self.model.give_back(self._seq)
        self._seq = None
        if self._owns_model and self.model.in_use == 0:
            self.model.close()


def _decode_failure(name: str, code: int, items: Sequence[Item]) -> str:
    what = {1: "no room in the cache", 2: "aborted", -1: "the batch was refused"}
    shape = ", ".join(f"{len(ids)} ids into sequence {seq}" for seq, ids, _ in items)
    return f"{name}: llama.cpp failed to decode {shape}: {what.get(code, 'fatal error')} ({code})"


def _free(weights: Weights, context: Any) -> None:
    library().llama_free(context)
    weights.free()
