"""The verifier in virtual time: the real table, connections and engine over a scripted target."""

from __future__ import annotations

from functools import cache

from outrider.cloud_server.engine import CloudEngine, Forward, Wait
from outrider.cloud_server.own_drafter import OwnDraft, OwnDrafter
from outrider.cloud_server.targets.base import Decided
from outrider.protocol.cloud import CloudConnection
from outrider.protocol.errors import BackendError
from outrider.protocol.fingerprint import Fingerprint, Vocabulary
from outrider.protocol.messages import Open
from outrider.protocol.table import CloudConfig, SessionTable
from outrider.runtime.lm.drafter import Guess
from outrider.simulator.agenda import Agenda, Alarm
from outrider.simulator.models import Models
from outrider.simulator.settings import WorldSettings
from outrider.simulator.wire import Wire


class _Bytes(Vocabulary, frozen=True):
    """One printable byte a token; its fingerprint is made once for each size."""

    def fingerprint(self) -> Fingerprint:
        """As of any vocabulary with these entries."""
        return _fingerprint(self.size)


@cache
def vocabulary(size: int) -> Vocabulary:
    """One printable byte a token."""
    return _Bytes(tuple(map(token_bytes, range(size))), {}, None)


@cache
def _fingerprint(size: int) -> Fingerprint:
    return Vocabulary(vocabulary(size).entries, {}, None).fingerprint()


def token_bytes(token: int) -> bytes:
    """What a token stands for."""
    return bytes([ord("A") + token % 58])


def render(text: str, size: int) -> tuple[int, ...]:
    """The ids that the cloud makes of a text: any rule will do as long as it is a rule."""
    return tuple(byte % size for byte in text.encode())


class SimCloud:
    """Runs the engine's passes and moves its connections' bytes, as a driver does.

    ``sound`` is false once the target was asked for something it cannot do: an engine bug.
    """

    def __init__(
        self,
        agenda: Agenda,
        settings: WorldSettings,
        models: Models,
    ) -> None:
        self._models = models
        self._agenda = agenda
        self._settings = settings
        self._alarm = Alarm(agenda, self.step)
        self._life = 0
        self._boot()

    def _boot(self) -> None:
        settings = self._settings
        self._life += 1
        self.target = self._models.target(settings)
        own = settings.own
        self.drafter = self._models.drafter(settings, own) if own is not None else None
        config = CloudConfig(
            vocabulary=vocabulary(settings.vocabulary),
            model="scripted",
            n_ctx=settings.n_ctx,
            eos=tuple(sorted(settings.eos)),
            limits=settings.limits,
            agent="simulated",
            render=self._render,
            trees=self.target.info.leaves > 1,
        )
        self.table = SessionTable(config)
        self.engine = CloudEngine(
            self.table,
            self.target.info,
            settings.eos,
            token_bytes,
            settings.engine,
            own=OwnDrafter(self.drafter, settings.own_longest) if self.drafter else None,
        )
        sizes = settings.rehearsed
        self.engine.rehearsed([(n, settings.costs.forward(n, 1, n)) for n in sizes])
        self.wires: dict[CloudConnection, Wire] = {}
        self._pumping: set[CloudConnection] = set()
        self.busy = False

    def _render(self, request: Open) -> tuple[int, ...]:
        return render(request.text or "", self._settings.vocabulary)

    # --- connections ------------------------------------------------------------------------

    def accept(self, wire: Wire) -> None:
        """An edge has connected."""
        connection = CloudConnection(self.table, "", self._agenda.now)
        self.wires[connection] = wire
        life = self._life
        wire.up.deliver = lambda data: self._receive(connection, life, data)
        wire.cloud_lost = lambda: self._lost(connection, life)

    def _receive(self, connection: CloudConnection, life: int, data: bytes) -> None:
        if life == self._life and connection in self.wires:
            connection.receive(data, self._agenda.now)
            self._pump(connection)
            self.step()

    def _lost(self, connection: CloudConnection, life: int) -> None:
        if life == self._life and connection in self.wires:
            del self.wires[connection]
            connection.connection_lost(self._agenda.now)
            self.step()

    def _pump(self, connection: CloudConnection) -> None:
        """Pull what there is to say while the pipe takes it."""
        wire = self.wires.get(connection)
        if wire is None or connection in self._pumping:
            return
        while wire.down.free:
            message = connection.next_message(self._agenda.now)
            if message is None:
                if connection.wants_close:
                    self._agenda.at(wire.down.empty_at, wire.edge_lost)
                    self._lost(connection, self._life)
                return
            wire.down.send(message)
        self._pumping.add(connection)
        self._agenda.at(wire.down.free_at, lambda: self._pump_later(connection))

    def _pump_later(self, connection: CloudConnection) -> None:
        self._pumping.discard(connection)
        self._pump(connection)

    # --- the engine -------------------------------------------------------------------------

    def step(self) -> None:
        """Start the next pass or the guesses before it, unless something is under way."""
        if self.busy:
            return
        work = self.engine.next(self._agenda.now)
        if isinstance(work, Wait):
            self._alarm.set(work.until)
            return
        self.busy = True
        life = self._life
        if isinstance(work, OwnDraft):
            guess, seconds = self._draft(work)
            self._agenda.after(seconds, lambda: self._drafted(work, guess, life))
            return
        result = work.run(self.target)
        fed = sum(len(row.ids) - row.cut for row in work.rows)
        longest = max(len(row.ids) for row in work.rows)
        seconds = 0.0 if work.known else self._settings.costs.forward(fed, len(work.rows), longest)
        self._agenda.after(seconds, lambda: self._done(work, result, life))

    def _done(self, work: Forward, result: list[Decided], life: int) -> None:
        if life != self._life:
            return  # it died with the verifier that ran it
        self.busy = False
        self.engine.done(work, result, self._agenda.now)
        for connection in list(self.wires):
            self._pump(connection)
        self.step()

    def _draft(self, work: OwnDraft) -> tuple[Guess | BackendError, float]:
        """What the own draft model makes of it, and how long that takes."""
        assert self.drafter is not None
        costs = self._settings.costs
        try:
            if work.read:
                self.drafter.prefill(work.ids, work.read)
                return Guess((), ()), min(work.read, work.behind) * costs.own_prefill
            guess = self.drafter.draft(
                work.ids, work.prompt_len, work.sampling, work.count, never=work.never
            )
        except BackendError as error:
            return error, costs.own_step
        reading = max(0, work.behind - 1) * costs.own_prefill
        return guess, max(1, len(guess.tokens)) * costs.own_step + reading

    def _drafted(self, work: OwnDraft, result: Guess | BackendError, life: int) -> None:
        if life != self._life:
            return
        self.busy = False
        self.engine.drafted(work, result, self._agenda.now)
        self.step()

    def restart(self, notice: float) -> None:
        """Crash and come back empty. Edges notice within ``notice`` seconds."""
        wires = list(self.wires.values())
        self._boot()
        for wire in wires:
            wire.swallow()
            self._agenda.after(notice, wire.edge_lost)

    @property
    def idle(self) -> bool:
        """Nothing to work on and nothing to say."""
        news = any(session.has_news for session in self.table.sessions.values())
        active = any(session.active for session in self.table.sessions.values())
        return not (self.busy or news or active)
