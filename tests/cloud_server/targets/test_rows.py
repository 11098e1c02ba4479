"""What is fed in which pass, with and without a fixed width."""

from __future__ import annotations

import pytest

from outrider.cloud_server.targets.base import Row
from outrider.cloud_server.targets.rows import Feed, feeds
from outrider.cloud_server.targets.step import Block, lay_out, lay_out_dense
from outrider.protocol.decoding.sampling import Sampling


def row(slot, cut, count, want):
    return Row(slot, cut, list(range(100, 100 + cut + count)), want, Sampling(), 1)


def test_one_pass_with_rows_as_they_are():
    assert feeds([row(0, 2, 3, 2), row(4, 0, 1, 0)]) == [
        [Feed(0, 2, [102, 103, 104], 1, 2), Feed(4, 0, [100], 1, 0)]
    ]
    assert feeds([]) == feeds([], 4) == []


def test_a_fixed_width_pads_and_cuts():
    prefill, drafts, both = row(0, 0, 6, 0), row(1, 3, 5, 5), row(2, 1, 4, 2)
    assert feeds([prefill, drafts, both], 4) == [
        [Feed(0, 0, [100, 101, 102, 103, 104, 105], 6, 0), Feed(2, 1, [101, 102], 2, 0)],
        [Feed(1, 3, [103, 104, 105, 106], 0, 4), Feed(2, 3, [103, 104, 104, 104], 0, 2, pad=2)],
        [Feed(1, 7, [107, 107, 107, 107], 0, 1, pad=3)],
    ]
    assert [feed.length for part in feeds([both], 4) for feed in part] == [3, 5]


@pytest.mark.parametrize("width", [1, 2, 3, 8])
@pytest.mark.parametrize("count", range(1, 8))
def test_every_position_is_fed_once_and_every_wish_met(width, count):
    for want in range(count + 1):
        asked = row(0, 5, count, want)
        fed, wanted = {}, []
        for (feed,) in feeds([asked], width):
            real = len(feed.tokens) - feed.pad
            fed |= {feed.past + i: token for i, token in enumerate(feed.tokens[:real])}
            wanted += range(feed.past + feed.first, feed.past + feed.first + feed.want)
            assert feed.past + real == feed.length
            assert not feed.want or len(feed.tokens) == width
        assert fed == {i: 100 + i for i in range(5, 5 + count)}
        assert wanted == list(range(5 + count - want, 5 + count))


def test_the_line_of_a_ragged_pass():
    step = lay_out([Feed(3, 2, [7, 8], 1, 1), Feed(0, 0, [9], 0, 1)], n_ctx=3)
    assert step.tokens == [7, 8, 9]
    assert step.places == [2, 3, 0]
    assert step.positions == [2, 2, 0], "padding stays within what the model was made for"
    assert step.slots == [3, 3, 0]
    assert step.keep == [1, 2]
    assert step.blocks == [Block(3, 1, 0, 2, 4), Block(0, 1, 2, 1, 1)]


def test_a_dense_block_has_a_shape_that_comes_again():
    feeds_ = [Feed(1, 300, [7, 8, 9], 0, 3), Feed(3, 5, list(range(20)), 20, 0)]
    step = lay_out_dense(feeds_, n_ctx=1000, slots=8, span=1000)
    assert step.blocks == [Block(0, 2, 0, 4, 512), Block(3, 1, 8, 20, 25)]
    assert step.tokens[:8] == [0, 0, 0, 0, 7, 8, 9, 0]
    assert step.slots[:8] == [8, 8, 8, 8, 1, 1, 1, 8], "what is nobody's goes to the scratch slot"
    assert step.keep == [4, 5, 6]
    assert not step.steady
    assert lay_out_dense(feeds_[:1], n_ctx=1000, slots=8, span=1000).steady
