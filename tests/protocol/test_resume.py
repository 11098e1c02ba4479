"""Connections that are lost, replaced or overtaken, and clouds that forget."""

from __future__ import annotations

from outrider.protocol.edge_session import Phase
from outrider.protocol.events import (
    AnswerEnded,
    Committed,
    LinkReady,
)
from outrider.protocol.messages import (
    Attached,
    Draft,
    Finished,
    Hello,
    Opened,
    Refused,
    Verdict,
)
from outrider.protocol.packing import prefix_digest
from outrider.protocol.request import Request
from outrider.simulator.pair import ConnectionPair
from outrider.simulator.steps import after, committed, opened, refusals, right


class TestConnections:
    def test_an_answer_goes_on_at_the_exact_token(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1, 2)
        session.guess(right(session, 2))
        pair.settle()
        told = pair.verify(session, after)
        pair.settle()
        missed = pair.verify(session, after)
        pair.lose()
        assert not pair.cloud_session(session).active
        assert session.window.in_flight == 0
        pair.connect()
        events = pair.settle()
        assert committed(events) == missed
        assert session.ids == [1, 2, *told, *missed]
        session.guess(right(session, 1))
        pair.settle()
        pair.verify(session, after)
        assert len(committed(pair.settle())) == 2

    def test_the_end_is_told_again(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1)
        pair.verify(session, after)
        pair.cloud_session(session).finish("stop", 1, None)
        while pair.pull_down():
            pass
        pair.lose()
        pair.connect()
        events = pair.settle()
        assert [type(e) for e in events] == [LinkReady, Committed, AnswerEnded]

    def test_late_bytes_of_a_connection_that_was_replaced(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1)
        session.guess([5])
        pair.machine.cancel(session)
        while pair.pull_up():
            pass
        session_again = Request(ids=(2,), base=1, max_tokens=9)
        pair.machine.open(session, session_again)
        late = pair.connect()
        pair.settle()
        cloud = pair.cloud_session(session)
        assert (cloud.answer, cloud.ids) == (2, [1, 2])
        while late:
            pair.old.receive(late.popleft(), 0.0)
        pair.old.receive(pair.codec.encode(Draft(epoch=9, tokens=(1,))), 0.0)
        pair.old.connection_lost(0.0)
        assert (cloud.answer, cloud.ids, cloud.running) == (2, [1, 2], True)
        assert cloud.link is pair.connection
        pair.verify(session, after)
        assert len(committed(pair.settle())) == 1

    def test_attaches_race(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1)
        pair.connect()
        while pair.pull_up():
            pass
        late = pair.connect()  # the attach of the second is under way when the third attaches
        pair.settle()
        while late:
            pair.old.receive(late.popleft(), 0.0)
        said = [pair.codec.decode(d) for d in iter(lambda: pair.old.next_message(0.0), None)]
        assert [m.code for m in said if isinstance(m, Refused)] == ["superseded"]
        assert pair.cloud_session(session).link is pair.connection

    def test_an_open_races(self, pair: ConnectionPair) -> None:
        pair.open(1)
        while pair.pull_up():
            pass
        late = pair.connect()
        pair.settle()
        pair.old.receive(late.popleft(), 0.0)
        (said,) = [pair.codec.decode(d) for d in iter(lambda: pair.old.next_message(0.0), None)]
        assert isinstance(said, Refused)
        assert said.code == "superseded"

    def test_somebody_else_serves_the_session(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1)
        pair.cloud_session(session).n = 100
        pair.lose()
        pair.connect()
        assert refusals(pair.settle()) == ["superseded"]
        assert session.phase is Phase.IDLE

    def test_a_verifier_that_forgot_everything(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1, 2)
        told = pair.verify(session, after)
        pair.settle()
        pair.table.sessions.clear()
        pair.lose()
        pair.connect()
        events = pair.settle()
        assert committed(events) == []
        cloud = pair.cloud_session(session)
        assert cloud.ids == session.ids == [1, 2, *told]
        assert cloud.prompt_len == 2
        assert cloud.request is not None
        assert cloud.request.max_tokens == 100

    def test_a_verifier_that_keeps_forgetting(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1)
        for _ in range(4):
            pair.tell_edge(Refused(handle=0, answer=1, code="session_lost", message="again"))
        assert refusals(pair.machine.events()) == ["session_lost"]
        assert session.phase is Phase.IDLE

    def test_the_edges_copy_wins(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1, 2)
        pair.verify(session, after)
        pair.settle()
        pair.cloud_session(session).ids[-1] += 1
        pair.cloud_session(session).digests.cut(0)
        pair.lose()
        pair.connect()
        pair.settle()
        assert pair.cloud_session(session).ids == session.ids

    def test_guesses_that_hang_from_another_text(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1, 2)
        cloud = pair.cloud_session(session)
        cloud.ids[-1] = 7
        cloud.digests.cut(0)
        session.guess([5])
        pair.settle()
        assert cloud.ids == session.ids == [1, 2]
        assert session.phase is Phase.LIVE
        session.guess(right(session, 1))
        pair.settle()
        assert pair.verify(session, after)

    def test_an_end_on_another_text(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1)
        ended = Finished(
            handle=0,
            answer=1,
            reason="stop",
            tokens=0,
            text_bytes=-1,
            length=1,
            digest=prefix_digest([2]),
        )
        pair.tell_edge(ended)
        assert "another text" in str(pair.machine.failure)
        assert session.phase is Phase.LIVE  # the next connection tells

    def test_a_verdict_that_starts_elsewhere(self, pair: ConnectionPair) -> None:
        opened(pair, 1)
        pair.tell_edge(Verdict(answer=1, at=5, ids=(1,)))
        assert "verdict at 5, the text ends at 1" in str(pair.machine.failure)

    def test_messages_about_nothing_are_ignored(self, pair: ConnectionPair) -> None:
        opened(pair, 1)
        for message in (
            Verdict(handle=9, answer=1, at=1, ids=(1,)),
            Verdict(answer=2, at=1, ids=(1,)),
            Opened(handle=9, answer=1, n=1, prompt_len=1, start=1),
            Attached(handle=0, answer=1, n=9, start=9),
            Refused(handle=9, answer=1, code="x", message=""),
            Refused(handle=0, answer=9, code="x", message=""),
        ):
            pair.tell_edge(message)
        assert pair.machine.failure is None
        assert pair.machine.events() == []

    def test_an_open_while_down_waits(self) -> None:
        pair = ConnectionPair()
        session = pair.open(1)
        assert not pair.pull_up()
        pair.machine.cancel(session)
        pair.machine.open(session, Request(ids=(2,), max_tokens=3))
        pair.connect()
        pair.settle()
        assert session.ids == [2]
        assert session.phase is Phase.LIVE

    def test_a_session_without_an_answer_is_not_attached(self, pair: ConnectionPair) -> None:
        session = opened(pair, 1)
        pair.machine.cancel(session)
        pair.settle()
        pair.lose()
        pair.connect()
        kinds = set()
        while pair.pull_up():
            kinds.add(type(pair.codec.decode(pair.up[-1])))
        assert kinds == {Hello}
        pair.machine.cancel(session)
        pair.machine.close(session)  # not known on this connection: nothing is said
        assert [type(pair.codec.decode(data)) for data in pair.up] == [Hello]
