"""A draft model beside the target: when it is asked, what becomes of its guesses, how it ends."""

from __future__ import annotations

from itertools import pairwise

import pytest

from outrider.cloud_server.engine import Forward
from outrider.cloud_server.own_drafter import OwnDraft, check_vocabulary
from outrider.protocol.errors import BackendError, SettingError
from outrider.protocol.fingerprint import Vocabulary
from outrider.protocol.messages import Draft

PROMPT = (1, 2, 3)


def works(d, kind: type) -> list:
    return [work for work in d.works if isinstance(work, kind)]


@pytest.mark.parametrize("own", ["good", "bad", "random", "mixed"])
def test_the_text_is_the_targets_however_good_it_is(desk, own: str) -> None:
    d = desk(own=own)
    session = d.open(b"a", max_tokens=60)
    d.run()
    assert session.ids[3:] == d.expected(PROMPT, 60)
    assert session.ended.tokens == 60


def test_a_good_one_saves_passes(desk) -> None:
    d = desk(own="good")
    session = d.open(b"a", max_tokens=60)
    d.run()
    assert session.passes < 60 / 4
    stats = d.engine.stats
    assert stats.own_draft_tokens == stats.own_accepted_tokens > 40
    assert stats.num_drafts == stats.num_draft_tokens == 0  # those are the edge's
    assert stats.own_drafts == len(works(d, OwnDraft))
    assert stats.own_seconds > 0


def test_a_bad_one_is_left_alone_after_a_while(desk) -> None:
    d = desk(own="bad")
    d.open(b"a", max_tokens=60)
    d.run()
    asked = [work.length for work in works(d, OwnDraft)]
    assert 3 <= len(asked) < 30
    assert max(asked) < 40
    d.open(b"a", answer=2, max_tokens=150)
    d.run()
    assert max(work.length for work in works(d, OwnDraft)) > 80  # it gets another chance


def test_the_first_token_never_waits_for_it(desk) -> None:
    d = desk(own="good")
    d.open(b"a")
    assert isinstance(d.step(), Forward)
    assert isinstance(d.step(), OwnDraft)


def test_a_long_text_is_read_in_pieces_between_passes(desk) -> None:
    d = desk(own="good")
    d.open(b"a", [i % 26 for i in range(100)], max_tokens=30)
    for _ in range(8):
        d.step()
    kinds = [(type(work), getattr(work, "read", None)) for work in d.works]
    assert (OwnDraft, 32) in kinds
    for before, after in pairwise(kinds):
        assert {before[0], after[0]} != {OwnDraft}  # a pass in between


def test_its_guesses_stand_behind_the_edges_and_end_nothing_there(desk) -> None:
    d = desk(own="bad")
    truth = d.expected(PROMPT, 20)
    session = d.open(b"a")
    d.step()
    d.guess(session, truth[1:3])
    draft = d.next()
    assert draft.ids == (*PROMPT, truth[0], *truth[1:3])
    session.draft(_more(session, truth[3:8]), d.now, 64)  # the edge's next come meanwhile
    d.finish(draft)
    work = d.step()
    # Ours contradict what the edge sent for the same places: the edge's are judged.
    assert work.items[0].part.chain[:7] == tuple(truth[1:8])
    assert session.window.caught_up or session.ids[3:] == truth[: len(session.ids) - 3]
    assert d.engine.stats.num_accepted_tokens == 7


def test_late_guesses_that_say_the_same_stay_alive(desk) -> None:
    d = desk(own="good")
    truth = d.expected(PROMPT, 20)
    session = d.open(b"a")
    d.step()
    d.guess(session, truth[1:2])
    d.step()
    work = d.next()
    assert isinstance(work, Forward)
    assert work.items[0].part.drafted
    d.finish(work)
    grown = len(session.ids) - 3
    assert grown > 2
    session.draft(_more(session, truth[2 : grown + 2]), d.now, 64)
    assert session.window.chain(9) == truth[grown : grown + 2]


def _more(session, tokens):
    """The next frame of the epoch."""
    return Draft(epoch=session.window.last_epoch & 0xFF, tokens=tuple(tokens))


def test_it_keeps_no_row_waiting_that_is_ready(desk) -> None:
    d = desk(own="good")
    d.open(b"a", max_tokens=40)
    d.step()
    d.step()
    other = d.open(b"b", (4, 5))
    work = d.next()
    assert isinstance(work, Forward)
    assert other in [item.session for item in work.items]


def test_it_is_left_alone_under_load(desk) -> None:
    d = desk(own="good", slots=4)
    for name in (b"a", b"b", b"c"):
        d.open(name, max_tokens=10)
    d.run()
    assert len(works(d, Forward)) == 10
    assert not works(d, OwnDraft)


def test_the_edges_guesses_are_preferred_where_they_come_sooner(desk) -> None:
    d = desk(own="good")
    session = d.open(b"a", max_tokens=60)
    d.step()
    d.engine.own.step = 0.02
    truth = d.expected(PROMPT, 20)
    d.guess(session, truth[1:2])
    session.node_gap, session.reply_time = 0.001, 0.01
    assert not isinstance(d.next(), OwnDraft)


def test_one_that_fails_is_off_and_the_answer_goes_on(desk) -> None:
    d = desk(own="good")
    session = d.open(b"a", max_tokens=40)
    d.step()
    work = d.next()
    assert isinstance(work, OwnDraft)
    d.engine.drafted(work, BackendError("broken"), d.now)
    d.run()
    assert session.ids[3:] == d.expected(PROMPT, 40)
    assert str(d.engine.own.failed) == "broken"
    assert len(works(d, OwnDraft)) == 1


def test_one_whose_context_is_full_is_not_asked(desk) -> None:
    d = desk(own="good", own_ctx=20)
    session = d.open(b"a", max_tokens=60)
    d.run()
    assert session.ids[3:] == d.expected(PROMPT, 60)
    assert d.engine.own.failed is None
    assert d.engine.own.outgrown
    assert all(len(work.ids) + work.count <= 20 for work in works(d, OwnDraft))


def test_guesses_for_an_answer_that_is_over_are_dropped(desk) -> None:
    d = desk(own="good")
    session = d.open(b"a", max_tokens=40)
    d.step()
    work = d.next()
    assert isinstance(work, OwnDraft)
    assert d.engine.wanted(work)
    session.cancel(1)
    assert not d.engine.wanted(work)
    d.open(b"a", (7, 8), answer=2, max_tokens=10)
    d.finish(work)
    assert d.engine.stats.own_dropped == work.count
    d.run()
    assert session.ids[2:] == d.expected((7, 8), 10)


def test_a_text_that_stays_short_is_not_drafted_beyond(desk) -> None:
    d = desk(own="good")
    d.open(b"a", max_tokens=4)
    d.run()
    for work in works(d, OwnDraft):
        assert work.length - 3 + work.count <= 3  # the pass adds the last one itself


def vocabulary(*entries: bytes, specials: dict[int, bytes] | None = None) -> Vocabulary:
    return Vocabulary(entries, specials or {}, None)


def test_tokenizers_must_agree_on_ordinary_tokens() -> None:
    target = vocabulary(b"a", b"b", b"", specials={2: b"<end>"})
    assert check_vocabulary(target, target) == frozenset()
    other = vocabulary(b"a", b"b", b"", specials={2: b"<stop>"})
    assert check_vocabulary(target, other) == {2}
    with pytest.raises(SettingError, match="id 1: 'b' here, 'c' there"):
        check_vocabulary(target, vocabulary(b"a", b"c", b"", specials={2: b"<end>"}))
    with pytest.raises(SettingError, match="id 3: no such id here"):
        check_vocabulary(target, vocabulary(b"a", b"b", b"", b"d", specials={2: b"<end>"}))
