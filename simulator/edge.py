"""An edge in virtual time: the real machine, engine and drafter, and the users' turns."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from outrider.edge_client.engine import EdgeEngine
from outrider.edge_client.work import DraftWork, Idle, Prefill
from outrider.protocol.edge import EdgeMachine, State
from outrider.protocol.edge_session import EdgeSession
from outrider.protocol.errors import BackendError, HandshakeError
from outrider.protocol.events import (
    AnswerEnded,
    AnswerOpened,
    AnswerRefused,
    Committed,
    Event,
    LinkFailed,
)
from outrider.protocol.logprobs import TokenLogprob
from outrider.protocol.request import Request
from outrider.runtime.lm.drafter import Guess
from outrider.simulator.agenda import Agenda, Alarm
from outrider.simulator.cloud import render, vocabulary
from outrider.simulator.models import Models
from outrider.simulator.settings import (
    Costs,
    EdgeSettings,
    Turn,
    WorldSettings,
)
from outrider.simulator.wire import Wire

Connect = Callable[["SimEdge"], Wire]


@dataclass(slots=True)
class Answer:
    """What one user saw of one answer. ``prompt`` is the whole sequence before it.

    ``times[i]`` is when the i-th token came (seconds of the world); ``passes`` of the target and
    bytes are those that the answer took, WebSocket framing included.

    ``ends`` are the reasons with which it ended: exactly one at the end of the world. ``faults``
    are things that a user must never see.
    """

    turn: Turn
    prompt: tuple[int, ...]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    text_bytes: int | None = None
    accepted: int = 0
    passes: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    started: float = 0.0
    ended: float = 0.0
    faults: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Conversation:
    """One user: turns to come, and the answers so far, by the session's number of the answer."""

    turns: list[Turn]
    session: EdgeSession
    answers: list[Answer] = field(default_factory=list)
    number: int = 0

    @property
    def over(self) -> bool:
        """All turns were asked and have ended."""
        return not self.turns and all(answer.ends for answer in self.answers)


@dataclass(frozen=True, slots=True)
class _Task:
    """Work of the drafter that is under way until ``due``."""

    work: Prefill | DraftWork
    result: Guess | BackendError | None
    due: float


class SimEdge:
    """Runs the drafter's work, moves the link's bytes, connects again when that is lost."""

    def __init__(
        self,
        agenda: Agenda,
        world: WorldSettings,
        settings: EdgeSettings,
        *,
        rng: random.Random,
        connect: Connect,
        models: Models,
    ) -> None:
        self._agenda = agenda
        self._world = world
        self._settings = settings
        self._costs: Costs = world.costs
        self._connect = connect
        self.machine = EdgeMachine(vocabulary(world.vocabulary), "simulated", rng.randbytes)
        self.wire: Wire | None = None
        self.failures: list[HandshakeError] = []
        self.busy = False
        self._pumping = False
        self._connecting = False
        self._alarm = Alarm(agenda, self._timeout)
        self._engine: EdgeEngine | None = None
        self._task: _Task | None = None
        if settings.drafter is not None:
            self._drafter = models.drafter(world, settings.drafter)
            policy = models.policy(settings.drafter)
            self._engine = EdgeEngine(self.machine, self._drafter, policy)
        self.conversations = [
            Conversation(list(turns), self.machine.session()) for turns in settings.sessions
        ]
        for conversation, start in zip(self.conversations, settings.starts, strict=True):
            agenda.at(start, partial(self._ask, conversation))
        self._reconnect(0.0)

    # --- users ------------------------------------------------------------------------------

    def _ask(self, conversation: Conversation) -> None:
        """The next turn of a conversation, if there is one."""
        if not conversation.turns:
            return
        turn = conversation.turns.pop(0)
        if turn.afresh:
            self.machine.close(conversation.session)
            conversation.session = self.machine.session()
        session = conversation.session
        base = 0 if turn.text is not None else int(turn.keep * len(session.ids))
        ids = turn.ids if turn.text is None else render(turn.text, self._world.vocabulary)
        answer = Answer(turn, (*session.ids[:base], *ids), started=self._agenda.now)
        conversation.answers.append(answer)
        request = Request(
            max_tokens=turn.max_tokens,
            sampling=turn.sampling,
            base=base,
            ids=turn.ids,
            text=turn.text,
            stops=turn.stops,
            ignore_eos=turn.ignore_eos,
            objective=turn.objective,
            logprobs=turn.logprobs,
        )
        self.machine.open(session, request)
        conversation.number = session.answer
        if turn.cancel_in is not None:
            self._agenda.after(turn.cancel_in, lambda: self._cancel(conversation, answer))
        self.poke()

    def _cancel(self, conversation: Conversation, answer: Answer) -> None:
        if not answer.ends and conversation.answers[-1] is answer:
            self.machine.cancel(conversation.session)
            self._dispatch()
            self.poke()

    def _dispatch(self) -> None:
        while events := self.machine.events():
            for event in events:
                if isinstance(event, LinkFailed):
                    self.failures.append(event.error)
                elif isinstance(event, AnswerOpened | Committed | AnswerEnded | AnswerRefused):
                    self._tell(event)

    def _tell(self, event: Event) -> None:
        """Show the user what happened, and check that it may happen."""
        assert isinstance(event, AnswerOpened | Committed | AnswerEnded | AnswerRefused)
        conversation = next((c for c in self.conversations if c.session is event.session), None)
        if conversation is None:
            return  # the user closed it
        answer = conversation.answers[-1]
        if event.answer != conversation.number or answer.ends:
            answer.faults.append(f"{type(event).__name__} of answer {event.answer} after its end")
        elif isinstance(event, Committed):
            if event.start != len(answer.prompt) + len(answer.tokens):
                answer.faults.append(f"committed from {event.start}, out of turn")
            answer.tokens.extend(event.tokens)
            answer.logprobs.extend(event.logprobs)
            answer.times.extend([self._agenda.now] * len(event.tokens))
            answer.accepted += event.accepted
            after = answer.turn.cancel_after
            if after is not None and len(answer.tokens) >= after:
                self._agenda.at(self._agenda.now, lambda: self._cancel(conversation, answer))
        elif isinstance(event, AnswerEnded | AnswerRefused):
            if isinstance(event, AnswerEnded):
                answer.ends.append(event.reason)
                answer.text_bytes = event.text_bytes
                answer.passes = event.passes or 0
            else:
                answer.ends.append(f"refused: {event.code}")
            answer.ended = self._agenda.now
            answer.bytes_up, answer.bytes_down = event.session.bytes_up, event.session.bytes_down
            self._ask(conversation)

    # --- the link ---------------------------------------------------------------------------

    def _reconnect(self, seconds: float) -> None:
        if not self._connecting:
            self._connecting = True
            self._agenda.after(seconds, self._dial)

    def _dial(self) -> None:
        self._connecting = False
        wire = self.wire = self._connect(self)
        wire.down.deliver = lambda data: self._receive(wire, data)
        wire.edge_lost = lambda: self.lost(wire)
        self.machine.connect(self._agenda.now)
        self.poke()

    def lost(self, wire: Wire) -> None:
        """The driver noticed that this connection is gone: it dials again after a while."""
        if wire is self.wire:
            self.wire = None
            self.machine.connection_lost(self._agenda.now)
            self._dispatch()
            self._reconnect(self._settings.back_off)

    def replace(self) -> Wire | None:
        """Give the connection up, sound or not, and dial at once. Returns the old one."""
        old, self.wire = self.wire, None
        if old is not None:
            self.machine.connection_lost(self._agenda.now)
            self._reconnect(0.0)
        return old

    def _receive(self, wire: Wire, data: bytes) -> None:
        if wire is self.wire:
            self.machine.receive(data, self._agenda.now)
            self._dispatch()
            self._interrupt()
            self.poke()

    def _pump(self) -> None:
        """Pull what there is to say while the pipe takes it."""
        wire = self.wire
        if wire is None or self._pumping:
            return
        while wire.up.free:
            message = self.machine.next_message(self._agenda.now, self._settings.part_bytes)
            if message is None:
                if self.machine.state is State.FAILED:
                    self._agenda.at(wire.up.empty_at, wire.cloud_lost)
                    self.wire = None
                    self._reconnect(self._settings.back_off)
                return
            wire.up.send(message)
        self._pumping = True
        self._agenda.at(wire.up.free_at, self._pump_later)

    def _pump_later(self) -> None:
        self._pumping = False
        self._pump()
        self._alarm.set(self.machine.next_timeout())

    def _timeout(self) -> None:
        self.machine.handle_timeout(self._agenda.now)
        self._dispatch()
        self.poke()

    # --- the drafter ------------------------------------------------------------------------

    def poke(self) -> None:
        """Something changed: draft if there is anything to draft, send if there is any to send."""
        self._work()
        self._pump()
        self._alarm.set(self.machine.next_timeout())

    def _work(self) -> None:
        if self._engine is None or self.busy:
            return
        work = self._engine.next(self._agenda.now)
        if isinstance(work, Idle):
            return
        result, seconds = self._run(work)
        self.busy = True
        self._task = task = _Task(work, result, self._agenda.now + seconds)
        self._agenda.after(seconds, lambda: self._worked(task))

    def _interrupt(self) -> None:
        """As a driver does: guesses that are not wanted any more stop after the one under way."""
        task = self._task
        if task is None or self._engine is None or not isinstance(task.work, DraftWork):
            return
        if not isinstance(task.result, Guess) or self._engine.wanted(task.work):
            return
        if task.result.seconds or task.result.parents:
            return  # a group's rounds are not cut short
        step, made = self._costs.draft_step, len(task.result.tokens)
        # The last guess comes at the end, each before it a step earlier.
        spare = made - 1 - task.result.scored
        late = min(spare, int((task.due - self._agenda.now) / step + 1e-9)) if step else 0
        if late > 0:
            kept = replace(task.result.first(made - late), stopped=True)
            self._task = sooner = _Task(task.work, kept, task.due - late * step)
            self._agenda.at(sooner.due, lambda: self._worked(sooner))

    def _run(self, work: Prefill | DraftWork) -> tuple[Guess | BackendError | None, float]:
        """The drafter's result and how long it takes."""
        fed = self._drafter.behind(work.ids)
        try:
            if isinstance(work, Prefill):
                self._drafter.prefill(work.ids, work.count)
                return None, work.count * self._costs.draft_prefill
            guess = work.run(self._drafter)
        except BackendError as error:
            return error, self._costs.draft_step
        # The first step evaluates the last id, whatever came before that costs extra. It has to be
        # done to find out that the drafter is too unsure to guess, too.
        if guess.seconds:
            return guess, guess.seconds
        steps = max(1, guess.spent - guess.scored) * self._costs.draft_step
        reading = max(0, fed - 1) + guess.scored
        return guess, steps + reading * self._costs.draft_prefill

    def _worked(self, task: _Task) -> None:
        assert self._engine is not None
        if task is not self._task:
            return  # it was cut short
        self.busy, self._task = False, None
        self._engine.done(task.work, task.result, self._agenda.now)
        self.poke()

    @property
    def failed(self) -> bool:
        """The drafter died."""
        return self._engine is not None and self._engine.health.failed is not None

    @property
    def idle(self) -> bool:
        """No work under way and nothing in flight."""
        flying = any(session.window.in_flight for session in self.machine.sessions)
        return not (self.busy or flying)
