"""What the benchmark of the wire counts, on parts of it."""

from __future__ import annotations

import pytest

from outrider.benchmarks import wire, wire_record
from outrider.benchmarks.strategies import lockstep
from outrider.protocol.codec import Codec
from outrider.protocol.decoding.sparse import Budget


def test_sessions_are_counted_after_the_handshake() -> None:
    row = wire._session(lockstep(4), 1, weathers=2)
    assert row["exact"]
    assert row["tokens"] == 2 * 150  # the warm-up too
    assert row["up"]["control"] == 0
    assert row["down"]["control"] > 0  # the ends of the answers
    assert row["bytes_up_per_token"] == sum(row["up"].values()) / 300
    assert row["link_bytes_up_per_token"] > row["bytes_up_per_token"]


def test_more_ids_cost_more_and_accept_more() -> None:
    record = wire_record.load()
    small, large = (wire._point(record, Budget(k, 256), 4) for k in (1, 32))
    assert small["bytes_up_per_token"] < large["bytes_up_per_token"]
    assert small["worst_acceptance_over_full"] < large["worst_acceptance_over_full"]
    assert large["worst_acceptance_over_full"] > 0.9


def test_bytes_of_drafts_that_are_never_or_always_right() -> None:
    record = wire_record.load()
    spots = [wire._spot(p, Budget(1, 1)) for p in record["texts"]["code"]]
    codec = Codec(record["vocabulary"])
    never = [wire.Spot(0.0, s.row) for s in spots]
    always = [wire.Spot(1.0, s.row) for s in spots]
    assert wire._bytes_per_token(never, codec, 4) == pytest.approx(
        5 * wire._bytes_per_token(always, codec, 4), rel=0.02
    )
