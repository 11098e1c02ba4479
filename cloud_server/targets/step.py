"""One ragged pass, laid out: which token is whose, where its keys go, who attends to what.

All tokens of all rows stand in one line, so the layers that know no positions see one matrix
without padding. Attention runs over *blocks*: slots side by side with the same number of tokens
each, one slot as a rule. Plain numbers, no tensors: those are ``ragged``'s part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.cloud_server.targets.rows import Feed
from outrider.protocol.decoding.trees import depths

MOST_WIDE = 16
"""Rows of up to this many tokens may share a dense block; longer ones are prefill."""


@dataclass(frozen=True, slots=True)
class Block:
    """Slots ``slot``, ..., ``slot + count - 1``, each with ``width`` tokens from ``start`` on.

    ``length``: how many of a slot's positions are looked at, at least as many as any of them holds.
    ``tree``: parents of the block's last tokens, the nodes of a tree; of a block of one slot.
    """

    slot: int
    count: int
    start: int
    width: int
    length: int
    tree: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """The tokens in line. All lists but ``keep`` and ``blocks`` have one entry a token.

    ``positions`` go into the model's position embedding, ``places`` are where keys and values are
    written, ``slots`` whose they are. ``keep``: the tokens whose logits are wanted, row by row.
    """

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    keep: list[int] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)

    @property
    def steady(self) -> bool:
        """One dense block and nothing else: a shape that comes again. Trees seldom do."""
        return len(self.blocks) == 1 and self.blocks[0].slot == 0 and not self.blocks[0].tree

    def _add(self, feed: Feed, n_ctx: int) -> None:
        places = range(feed.past, feed.past + len(feed.tokens))
        self.tokens.extend(feed.tokens)
        # Padding may run past what the model was made for; nobody looks at what it computes there.
        self.positions.extend(min(place, n_ctx - 1) for place in _positions(feed, places))
        self.slots.extend([feed.slot] * len(feed.tokens))
        self.places.extend(places)

    def _idle(self, count: int, scratch: int) -> None:
        """Tokens of nobody: they write into the scratch slot, all to its first position."""
        self.tokens.extend([0] * count)
        self.positions.extend([0] * count)
        self.slots.extend([scratch] * count)
        self.places.extend([0] * count)


def _positions(feed: Feed, places: range) -> Sequence[int]:
    """Where the tokens stand in the text: siblings of a tree all at one position."""
    if not feed.parents:
        return places
    text = places[: len(places) - len(feed.parents)]
    end = feed.past + len(text)
    return [*text, *(end + depth for depth in depths(feed.parents))]


def lay_out(feeds: Sequence[Feed], n_ctx: int) -> Step:
    """A block for each row, exactly as long as it is: what a CPU wants."""
    step = Step()
    for feed in feeds:
        start = len(step.tokens)
        step._add(feed, n_ctx)
        length = feed.past + len(feed.tokens)
        step.blocks.append(Block(feed.slot, 1, start, len(feed.tokens), length, feed.parents))
        step.keep.extend(range(start + feed.first, start + feed.first + feed.want))
    return step


def lay_out_dense(feeds: Sequence[Feed], n_ctx: int, slots: int, span: int) -> Step:
    """Short rows in one padded block from slot 0 on, its sizes rounded up: what a GPU wants.

    Few shapes come up, so each can be recorded once. Longer rows (prefill) and trees follow as
    blocks of their own.

    Args:
        slots: how many there are; slot ``slots`` is the scratch one.
        span: how many positions a slot has room for.
    """
    step = Step()
    short = {f.slot: f for f in feeds if len(f.tokens) <= MOST_WIDE and not f.parents}
    begins: dict[int, int] = {}
    if short:
        count = min(_round(1 + max(short)), slots)
        width = _round(max(len(feed.tokens) for feed in short.values()))
        length = max(feed.past + len(feed.tokens) for feed in short.values())
        for slot in range(count):
            begins[slot] = len(step.tokens)
            feed_or_none = short.get(slot)
            if feed_or_none is not None:
                step._add(feed_or_none, n_ctx)
            step._idle(begins[slot] + width - len(step.tokens), slots)
        step.blocks.append(Block(0, count, 0, width, min(max(_round(length), 256), span)))
    for feed in feeds:
        if feed.slot not in short:
            begins[feed.slot] = len(step.tokens)
            step._add(feed, n_ctx)
            length = feed.past + len(feed.tokens)
            step.blocks.append(
                Block(feed.slot, 1, begins[feed.slot], len(feed.tokens), length, feed.parents)
            )
    for feed in feeds:
        start = begins[feed.slot] + feed.first
        step.keep.extend(range(start, start + feed.want))
    return step


def _round(number: int) -> int:
    """Up to a power of two."""
    return 1 << (number - 1).bit_length()
