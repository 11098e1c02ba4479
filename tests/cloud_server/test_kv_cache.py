"""Slots: turns and requests of one key find what was evaluated before; other keys do not."""

from __future__ import annotations

import pytest

from outrider.cloud_server.engine import Forward
from outrider.cloud_server.kv_cache import WORTH, SlotTable
from outrider.protocol.session import CloudSession

SYSTEM = [(7 * i) % 26 for i in range(50)]


def session(name: str, ids, owner: str = "ann", *, running: bool = True) -> CloudSession:
    made = CloudSession(name.encode(), b"secret", owner)
    made.ids.extend(ids)
    made.running, made.link, made.admitted = running, "link", True
    return made


def fill(table: SlotTable, who: CloudSession, now: float) -> None:
    slot = table.obtain(who, now)
    assert slot is not None
    table.fed(slot, list(who.ids))


def test_the_next_turn_keeps_its_slot():
    table = SlotTable(2)
    ann = session("a", SYSTEM)
    fill(table, ann, 0.0)
    ann.ids.extend([1, 2, 3])
    slot = table.obtain(ann, 1.0)
    assert (slot.index, table.cached(slot, ann)) == (0, 50)


def test_another_request_copies_the_common_beginning():
    table = SlotTable(3)
    first = session("a", [*SYSTEM, *[1] * 60])
    fill(table, first, 0.0)
    for name in "bc":  # the first one still runs: it keeps its slot
        other = session(name, [*SYSTEM, ord(name)])
        assert table.found(other) == 50
        slot = table.obtain(other, 1.0)
        assert slot.index > 0
        assert table.cached(slot, other) == 50
        assert table.source(slot, other.ids) == 0
        table.fed(slot, list(other.ids))
        assert (table.source(slot, other.ids), slot.source) == (None, None)
    assert table.held == 110 + 2 * 51


def test_a_conversation_that_goes_on_in_another_session_takes_the_slot():
    table = SlotTable(2)
    first = session("a", [*SYSTEM, 1, 1])
    fill(table, first, 0.0)
    first.running = False
    again = session("b", [*SYSTEM, 1, 1, 2, 2])
    slot = table.obtain(again, 1.0)
    assert (slot.index, table.source(slot, again.ids)) == (0, None)
    assert table.cached(slot, again) == 52


def test_the_longest_unused_goes_first_and_empty_ones_before():
    table = SlotTable(3)
    old, young = session("a", SYSTEM), session("b", [3] * 40)
    fill(table, old, 0.0)
    fill(table, young, 1.0)
    old.running = young.running = False
    third, fourth = session("c", [5] * 40), session("d", [6] * 40)
    assert table.obtain(third, 2.0).index == 2
    assert table.obtain(fourth, 3.0).index == 0
    assert table.found(old) == 0
    assert table.found(young) == 40


def test_other_keys_share_nothing():
    table = SlotTable(1)
    ann = session("a", SYSTEM, "ann")
    fill(table, ann, 0.0)
    ann.running = False
    bob = session("b", SYSTEM, "bob")
    assert table.found(bob) == 0
    slot = table.obtain(bob, 1.0)
    assert table.cached(slot, bob) == 0


def test_a_short_beginning_is_not_looked_after():
    table = SlotTable(2)
    fill(table, session("a", SYSTEM[: WORTH - 1]), 0.0)
    other = session("b", SYSTEM)
    assert table.found(other) == 0
    assert table.source(table.obtain(other, 1.0), other.ids) is None


def test_all_working():
    table = SlotTable(1)
    fill(table, session("a", SYSTEM), 0.0)
    assert table.obtain(session("b", SYSTEM), 1.0) is None


def test_a_source_that_is_taken_meanwhile_is_no_source():
    table = SlotTable(2)
    first = session("a", [*SYSTEM, *[1] * 60])
    fill(table, first, 0.0)
    first.running = False
    slot = table.obtain(session("b", SYSTEM), 1.0)
    table.obtain(session("c", [9] * 40, "cy"), 2.0)  # takes the first one's
    assert table.shared(slot, SYSTEM) == 0
    assert table.source(slot, SYSTEM) is None


@pytest.mark.parametrize("turns", [2, 4])
def test_the_engine_evaluates_only_what_is_new(desk, turns) -> None:
    """And a scripted target, which compares its slots with every row, agrees."""
    d = desk(slots=turns)
    for turn in range(turns):
        ids = [*SYSTEM, turn]
        opened = d.open(b"%d" % turn, ids, max_tokens=2)
        assert d.engine.cached(opened) == (50 if turn else 0)
        work = d.next()
        assert isinstance(work, Forward)
        row = next(r for r, i in zip(work.rows, work.items, strict=True) if i.session is opened)
        assert row.cut == (50 if turn else 0)
        d.finish(work)
    d.run()
    for turn in range(turns):
        said = d.table.sessions[b"%d" % turn].ids[51:]
        assert said == d.expected([*SYSTEM, turn], 2)
    stats = d.engine.stats
    assert stats.prompt_tokens == turns * 51
    assert stats.cached_prompt_tokens == (turns - 1) * 50
    assert 0 < d.engine.cache_usage <= 52 / 200
