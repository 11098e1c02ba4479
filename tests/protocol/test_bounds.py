"""What neither end can be made to do by the other: work, wait or grow without bound."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from outrider.protocol.admission import CHARS_A_TOKEN
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.edge import State
from outrider.protocol.edge_session import MAX_RESTORES
from outrider.protocol.errors import SettingError
from outrider.protocol.events import AnswerRefused
from outrider.protocol.messages import Finished, Hello, Open, SegmentAsk, Verdict
from outrider.protocol.request import Request
from outrider.simulator.pair import ConnectionPair
from outrider.simulator.steps import opened


def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenized(pair: ConnectionPair) -> None:
    config = pair.table.config
    rendered: list[Open] = []
    config.render = lambda request: rendered.append(request) or (1,)  # type: ignore[func-returns-value]
    limit = config.n_ctx * CHARS_A_TOKEN
    for request in (
        Request(text="a" * (limit + 1), max_tokens=5),
        Request(messages=({"role": "user", "content": [[]] * (limit + 1)},), max_tokens=5),
    ):
        session = pair.machine.session()
        pair.machine.open(session, request)
        events = pair.settle()
        assert [e.code for e in events if isinstance(e, AnswerRefused)] == ["prompt_too_long"]
    assert rendered == []
    session = pair.machine.session()
    pair.machine.open(session, Request(text="a" * 100, max_tokens=5))
    pair.settle()
    assert len(rendered) == 1


def test_one_segment_may_be_asked_for() -> None:
    pair = ConnectionPair()
    mine = pair.table.config.vocabulary.fingerprint()
    alien = msgspec.structs.replace(mine, ordinary=bytes(16))
    pair.tell_cloud(Hello(version=1, agent="x", fingerprint=alien, max_message=1 << 20))
    pair.tell_cloud(SegmentAsk(index=0))
    assert not pair.connection.wants_close
    pair.tell_cloud(SegmentAsk(index=0))
    assert pair.connection.wants_close


def test_more_tokens_than_were_asked_for_break_the_connection(pair: ConnectionPair) -> None:
    session = opened(pair, 1, 2)
    session.request = replace(session.request, max_tokens=3)
    pair.tell_edge(Verdict(answer=session.answer, at=2, ids=(1, 2, 3, 4)))
    assert pair.machine.state is State.FAILED
    assert session.emitted == 0


def test_a_finish_must_count_what_was_sent(pair: ConnectionPair) -> None:
    session = opened(pair, 1, 2)
    pair.tell_edge(
        Finished(
            handle=session.handle,
            answer=session.answer,
            reason="stop",
            tokens=10**15,
            text_bytes=-1,
            length=2,
            digest=session.digests.at(2),
        )
    )
    assert pair.machine.state is State.FAILED


def test_a_cloud_that_keeps_losing_the_text_is_given_up_after_some_progress_or_none(
    pair: ConnectionPair,
) -> None:
    session = opened(pair, 1, 2)
    for _ in range(MAX_RESTORES):
        assert session.restores_left
        session.lost()
    assert not session.restores_left


@pytest.mark.parametrize("penalty", [0.0, 5e-324, 0.009, 101.0])
def test_a_penalty_that_overflows_is_refused(penalty: float) -> None:
    with pytest.raises(SettingError, match="repetition_penalty"):
        Sampling(repetition_penalty=penalty)
