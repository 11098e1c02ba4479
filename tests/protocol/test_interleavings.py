"""Hypothesis chooses the interleaving: whatever it does, both ends hold the target's text."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from outrider.protocol.edge import State
from outrider.protocol.edge_session import MAX_RESTORES, EdgeSession, Phase
from outrider.protocol.events import AnswerEnded, AnswerRefused, Committed, LinkFailed
from outrider.protocol.request import Request
from outrider.simulator.pair import ConnectionPair


def after(ids: list[int]) -> int:
    """The target's choice: few values, so that wrong guesses come right now and then."""
    return (ids[-1] * 7 + len(ids) * 3) % 5


class Streams(RuleBasedStateMachine):
    """Two sessions of one edge; passes that last; connections that are lost or replaced."""

    @initialize()
    def begin(self) -> None:
        self.pair = ConnectionPair()
        self.forgotten = 0
        self.sessions = [self.pair.machine.session() for _ in range(2)]
        self.shown: dict[int, list[int]] = {}
        self.ended: dict[int, int] = {}
        self.late: list[bytes] = []
        self.passes: list[tuple[EdgeSession, int, list[int], list[int]]] = []
        self.pair.connect()
        for which in range(2):
            self.ask(which, 1.0, [which, 3])
        self.settle()

    # --- the user and the drafter -----------------------------------------------------------

    @rule(
        which=st.integers(0, 1), keep=st.floats(0, 1), ids=st.lists(st.integers(0, 4), min_size=1)
    )
    def ask(self, which: int, keep: float, ids: list[int]) -> None:
        session = self.sessions[which]
        if session.phase is not Phase.IDLE:
            self.pair.machine.cancel(session)
            self.watch()
        base = int(keep * len(session.ids))
        request = Request(ids=tuple(ids), base=base, max_tokens=1000)
        self.pair.machine.open(session, request)
        self.shown[which] = list(session.ids)
        self.ended[which] = 0

    @rule(which=st.integers(0, 1), good=st.booleans(), count=st.integers(1, 5))
    def guess(self, which: int, good: bool, count: int) -> None:
        session = self.sessions[which]
        if not session.may_guess:
            return
        text = [*session.ids, *session.window.ahead]
        for _ in range(count):
            text.append(after(text) if good else (after(text) + 1) % 5)
        session.guess(text[-count:])

    @rule(which=st.integers(0, 1), place=st.integers(0, 4), good=st.booleans())
    def branch(self, which: int, place: int, good: bool) -> None:
        """Beside the chain: what the target will choose there, or something else."""
        session = self.sessions[which]
        ahead, current = session.window.ahead, session.window.current
        if not session.may_guess or place >= len(ahead):
            return
        text = [*session.ids, *ahead[:place]]
        token = after(text) if good else (ahead[place] + 2) % 5
        node, _ = current.follow(session.window.tip, ahead[:place])
        if token not in current.children[node]:
            session.window.branch(place, [token, after([*text, token])])

    @rule(which=st.integers(0, 1), closes=st.booleans())
    def stop_or_withdraw(self, which: int, closes: bool) -> None:
        session = self.sessions[which]
        if closes:
            session.stop_riding()
        else:
            session.withdraw()

    @rule(
        which=st.integers(0, 1),
        first=st.integers(-3, 3),
        second=st.integers(-3, 3),
        told=st.booleans(),
    )
    def round(self, which: int, first: int, second: int, told: bool) -> None:
        """Guesses, a pass over them, others that arrive meanwhile; negative counts are wrong."""
        for i, count in enumerate((first, second)):
            if count:
                self.guess(which, count > 0, abs(count))
            self.up(4)
            if i == 0:
                self.pass_begins(which)
        while self.passes:
            self.pass_ends()
        if told:
            self.down(2)

    # --- the link ---------------------------------------------------------------------------

    @rule(count=st.integers(1, 4))
    def up(self, count: int) -> None:
        for _ in range(count):
            self.pair.pull_up()
            self.pair.deliver_up()

    @rule(count=st.integers(1, 4))
    def down(self, count: int) -> None:
        for _ in range(count):
            self.pair.pull_down()
            self.pair.deliver_down()
        self.watch()

    @rule()
    def send_only(self) -> None:
        self.pair.pull_up()
        self.pair.pull_down()

    @rule()
    def lose(self) -> None:
        self.pair.lose()
        self.pair.connect()
        self.late = []

    @rule()
    def replace(self) -> None:
        self.late = list(self.pair.connect())

    @rule(pulled=st.integers(0, 4), before=st.integers(0, 4))
    def race(self, pulled: int, before: int) -> None:
        """A connection is replaced, and what it had under way arrives after all, in between."""
        for _ in range(pulled):
            self.pair.pull_up()
        self.replace()
        for _ in range(before):
            self.up(1)
        while self.late:
            self.late_bytes()

    @precondition(lambda self: self.late)
    @rule()
    def late_bytes(self) -> None:
        self.pair.old.receive(self.late.pop(0), 0.0)

    @precondition(lambda self: self.forgotten < MAX_RESTORES)
    @rule()
    def forget(self) -> None:
        """The verifier dies, with all its connections; not more often than an edge puts up with."""
        self.forgotten += 1
        self.pair.table.sessions.clear()
        self.passes.clear()
        self.pair.lose()
        self.pair.connect()
        self.late = []

    # --- the target -------------------------------------------------------------------------

    @rule(which=st.integers(0, 1))
    def pass_begins(self, which: int) -> None:
        cloud = self.pair.table.sessions.get(self.sessions[which].key)
        if cloud is not None and cloud.active:
            chain = cloud.window.chain(8)
            self.passes.append((self.sessions[which], cloud.begun, list(cloud.ids), chain))

    @precondition(lambda self: self.passes)
    @rule()
    def pass_ends(self) -> None:
        session, begun, ids, chain = self.passes.pop(0)
        cloud = self.pair.table.sessions.get(session.key)
        if cloud is None or not cloud.running or cloud.begun != begun or cloud.ids != ids:
            return
        tokens = []
        for i in range(len(chain) + 1):
            tokens.append(after([*ids, *tokens]))
            if chain[i : i + 1] != tokens[-1:]:
                break
        cloud.commit(tokens)

    @rule(which=st.integers(0, 1))
    def answer_ends(self, which: int) -> None:
        cloud = self.pair.table.sessions.get(self.sessions[which].key)
        if cloud is not None and cloud.active:
            cloud.finish("length", len(cloud.ids) - cloud.prompt_len, None)

    # --- what must hold ---------------------------------------------------------------------

    def watch(self) -> None:
        events = [*self.pair.seen, *self.pair.machine.events()]
        self.pair.seen = []
        for event in events:
            assert not isinstance(event, LinkFailed | AnswerRefused), event
            if isinstance(event, Committed):
                which = self.sessions.index(event.session)
                assert event.answer == event.session.answer
                assert event.start == len(self.shown[which])
                self.shown[which] += event.tokens
            elif isinstance(event, AnswerEnded):
                which = self.sessions.index(event.session)
                self.ended[which] += 1
                assert self.ended[which] == 1

    @invariant()
    def texts_are_the_targets(self) -> None:
        for which, session in enumerate(self.sessions):
            if which not in self.shown:
                continue
            ids = session.ids
            for i in range(session.prompt_len, len(ids)):
                assert ids[i] == after(ids[:i])
            cloud = self.pair.table.sessions.get(session.key)
            same = cloud is not None and cloud.answer == session.answer
            if same and session.phase is Phase.LIVE:
                assert cloud is not None
                assert cloud.ids[: len(ids)] == ids

    def settle(self) -> None:
        self.pair.seen = self.pair.settle()
        self.watch()

    def teardown(self) -> None:
        """Left alone, everything comes to rest and both ends agree."""
        if not hasattr(self, "pair"):
            return
        self.settle()
        assert self.pair.machine.state is State.READY
        for which, session in enumerate(self.sessions):
            if session.phase is Phase.IDLE:
                continue
            assert session.phase is Phase.LIVE
            self.pair.verify(session, after)
            self.settle()
            cloud = self.pair.cloud_session(session)
            assert cloud.ids == session.ids == self.shown[which]


TestStreams = Streams.TestCase
TestStreams.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
