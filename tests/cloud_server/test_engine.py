"""The engine by hand: passes that outlive their answers, failures, ends, slots."""

from __future__ import annotations

import pytest

from outrider.cloud_server.engine import Forward, Wait
from outrider.cloud_server.planner import EngineSettings
from outrider.protocol.errors import BackendError

PROMPT = (1, 2, 3)


def test_an_answer_is_the_targets_own(desk) -> None:
    d = desk()
    session = d.open(b"a")
    d.run()
    assert session.ids[3:] == d.expected(PROMPT, 20)
    assert session.ended.reason == "length"
    assert session.ended.tokens == session.passes == 20


def test_guesses_save_passes_and_change_nothing(desk) -> None:
    d = desk()
    session = d.open(b"a")
    d.step()
    truth = d.expected(PROMPT, 20)
    d.guess(session, [*truth[1:5], truth[5] ^ 1])
    d.step()
    assert session.ids[3:] == truth[:6]
    d.run()
    assert session.ids[3:] == truth
    stats = d.engine.stats
    assert (stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens) == (1, 5, 4)
    assert stats.accepted_per_position == [1, 1, 1, 1]


def test_what_arrives_during_a_pass_is_judged_next(desk) -> None:
    d = desk()
    session = d.open(b"a")
    work = d.next()
    truth = d.expected(PROMPT, 20)
    d.guess(session, truth[:4])
    d.finish(work)
    assert session.ids[3:] == truth[:1]
    work = d.step()
    assert work.items[0].part.chain == tuple(truth[1:4])
    assert session.ids[3:] == truth[:5]


def test_a_pass_that_outlives_its_answer_is_dropped(desk) -> None:
    d = desk()
    session = d.open(b"a")
    d.step()
    work = d.next()
    session.cancel(1)
    before = list(session.ids)
    d.finish(work)
    assert session.ids == before
    assert session.ended.reason == "cancel"
    assert isinstance(d.next(), Wait)


def test_a_pass_that_outlives_its_answer_is_no_part_of_the_next(desk) -> None:
    d = desk()
    session = d.open(b"a")
    d.step()
    work = d.next()
    session.cancel(1)
    d.open(b"a", (7, 8), answer=2, max_tokens=5)
    d.finish(work)
    assert session.ids == [7, 8]
    d.run()
    assert session.ids[2:] == d.expected((7, 8), 5)
    assert session.ended.answer == 2


def test_a_failing_backend_ends_the_answers_and_spoils_the_slots(desk) -> None:
    d = desk()
    session = d.open(b"a")
    other = d.open(b"b", (4, 5))
    d.step()
    work = d.next()
    assert isinstance(work, Forward)
    d.engine.done(work, BackendError("out of memory"), d.now)
    for s in (session, other):
        assert s.ended.reason == "error: out of memory"
        assert s.ended.tokens == 1
    assert d.engine.stats.failures == 1
    d.open(b"a", answer=2)  # the same prompt: nothing of it counts as cached
    work = d.next()
    assert work.rows[0].cut == 0
    d.finish(work)
    d.run()
    assert session.ids[3:] == d.expected(PROMPT, 20)


def test_the_end_of_the_context_ends_the_answer(desk) -> None:
    d = desk(n_ctx=12)
    session = d.open(b"a", max_tokens=100)
    d.guess(session, d.expected(PROMPT, 9))
    d.run()
    assert session.ids[3:] == d.expected(PROMPT, 9)
    assert len(session.ids) == 12
    assert session.ended.reason == "length"


@pytest.mark.parametrize("guessed", [False, True])
def test_stop_strings_cut_where_they_end(desk, guessed: bool) -> None:
    d = desk()
    truth = d.expected(PROMPT, 20)
    text = "".join(chr(ord("a") + t) for t in truth)
    stop = text[6:9]
    end = text.index(stop) + 3
    session = d.open(b"a", stops=(stop,))
    if guessed:
        d.guess(session, truth[:15])
    d.run()
    assert session.ids[3:] == truth[:end]
    assert session.ended.reason == "stop"
    assert session.ended.text_bytes == end - 3


def test_an_end_token_ends_the_answer(desk) -> None:
    d = desk()
    truth = d.expected(PROMPT, 20)
    d = desk(eos=frozenset({truth[4]}))
    session = d.open(b"a")
    d.guess(session, truth[:10])
    d.run()
    assert session.ids[3:] == truth[: truth.index(truth[4]) + 1]
    assert session.ended.reason == "stop"


@pytest.mark.parametrize("why", ["length", "stop string", "end token"])
def test_how_an_answer_ended_that_was_given_back_with_a_full_context(desk, why: str) -> None:
    """No pass can follow it: the rules are applied to what is there, as the first time."""
    truth = desk().expected(PROMPT, 30)
    count = max(i for i, token in enumerate(truth) if token not in truth[:i]) + 1
    truth = truth[:count]
    d = desk(n_ctx=3 + count, eos=frozenset(truth[-1:] if why == "end token" else ()))
    stops = ("".join(chr(ord("a") + t) for t in truth[-3:]),) if why == "stop string" else ()
    first = d.open(b"a", max_tokens=100, stops=stops)
    d.run()
    assert first.ids[3:] == truth
    again = d.open(b"b", [*PROMPT, *truth], prompt_len=3, max_tokens=100, stops=stops)
    reason, text_bytes = d.engine.ended(again)
    assert reason == first.ended.reason == ("length" if why == "length" else "stop")
    assert (-1 if text_bytes is None else text_bytes) == first.ended.text_bytes


def test_more_answers_than_slots_wait_for_one_to_end(desk) -> None:
    d = desk(slots=2)
    sessions = [d.open(bytes([i]), (i, i + 1), max_tokens=6) for i in range(5)]
    work = d.step()
    assert [item.session for item in work.items] == sessions[:2]
    d.run()
    for i, session in enumerate(sessions):
        assert session.ids[2:] == d.expected((i, i + 1), 6)
    passes = [work for work in d.works if isinstance(work, Forward)]
    assert all(len(work.rows) <= 2 for work in passes)


def test_the_longest_unused_slot_goes_first(desk) -> None:
    d = desk(slots=2)
    first = d.open(b"a", max_tokens=2)
    d.run()
    d.open(b"b", (4, 5), max_tokens=2)
    d.run()
    d.open(b"c", (6, 7), max_tokens=2)
    d.run()  # takes the slot of a
    d.open(b"b", (4, 5, 9), answer=2, max_tokens=2)
    assert d.step().rows[0].cut == 2  # of b the prompt is still there
    d.run()
    d.open(b"a", answer=2, max_tokens=2)
    assert d.step().rows[0].cut == 0
    d.run()
    assert first.ids[3:] == d.expected(PROMPT, 2)


def test_a_long_prompt_is_read_in_pieces(desk) -> None:
    d = desk()
    prompt = [i % 26 for i in range(150)]
    d.engine.planner.settings = type(d.settings)(prefill_chunk=64, lookup=0)
    session = d.open(b"a", prompt, max_tokens=3)
    d.run()
    fed = [(len(w.rows[0].ids) - w.rows[0].cut, w.rows[0].want) for w in d.works]
    assert fed[:3] == [(64, 0), (64, 0), (22, 1)]
    assert session.ids[150:] == d.expected(prompt, 3)


def test_forgotten_sessions_leave_nothing_behind(desk) -> None:
    d = desk()
    session = d.open(b"a", max_tokens=2)
    d.run()
    session.detach(d.now)
    work = d.next()
    assert isinstance(work, Wait)
    assert work.until == pytest.approx(d.now + 30.001)
    d.now = work.until
    assert d.next() == Wait(None)
    assert not d.table.sessions


def test_a_text_that_is_all_in_the_cache_gets_no_more_decisions_than_it_has_guesses(desk) -> None:
    d = desk()
    session = d.open(b"a", max_tokens=6)
    d.run()
    d.open(b"a", answer=2, max_tokens=6)  # the same prompt: its last id lies in the slot, too
    d.guess(session, d.expected(PROMPT, 6)[:1])
    work = d.next()
    row = work.rows[0]
    assert (row.cut, row.want, len(row.ids)) == (2, 2, 4)
    d.finish(work)
    d.run()
    assert session.ids[3:] == d.expected(PROMPT, 6)


@pytest.mark.parametrize("scheduler", ["fifo", "cosine"])
def test_small_caps_change_when_not_what(desk, scheduler) -> None:
    settings = EngineSettings(scheduler=scheduler, step_tokens=5, prefill_chunk=64)
    d = desk(slots=8, settings=settings)
    prompts = [[(i + k) % 26 for k in range(3 + 4 * i)] for i in range(8)]
    sessions = [d.open(bytes([i]), prompt, max_tokens=9) for i, prompt in enumerate(prompts)]
    for session, prompt in zip(sessions, prompts, strict=True):
        d.guess(session, [*d.expected(prompt, 6), 1, 2])
    d.run()
    for session, prompt in zip(sessions, prompts, strict=True):
        assert session.ids[len(prompt) :] == d.expected(prompt, 9)
    fed = [sum(len(r.ids) - r.cut for r in w.rows) for w in d.works if isinstance(w, Forward)]
    assert max(fed) <= 5
