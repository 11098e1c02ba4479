"""The verifier in virtual time: the real table, connections and engine over a scripted target."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from outrider.cloud_server.engine import CloudEngine, Forward
from outrider.cloud_server.targets.base import Decided, Target
from outrider.protocol.cloud import CloudConfig, CloudConnection, SessionTable
from outrider.protocol.fingerprint import Fingerprint, Vocabulary
from outrider.protocol.messages import Open
from outrider.simulator.agenda import Agenda, Alarm
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
        make_target: Callable[[WorldSettings], Target],
    ) -> None:
        self._make_target = make_target
        self._agenda = agenda
        self._settings = settings
        self._alarm = Alarm(agenda, self.step)
        self._life = 0
        self._boot()

    def _boot(self) -> None:
        settings = self._settings
        self._life += 1
        self.target = self._make_target(settings)
        config = CloudConfig(
            vocabulary=vocabulary(settings.vocabulary),
            model="scripted",
            n_ctx=settings.n_ctx,
            eos=tuple(sorted(settings.eos)),
            limits=settings.limits,
            agent="simulated",
            render=self._render,
        )
        self.table = SessionTable(config)
        self.engine = CloudEngine(
            self.table, self.target.info, settings.eos, token_bytes, settings.engine
        )
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
        """Start the next pass, unless one is under way."""
        if self.busy:
            return
        work = self.engine.next(self._agenda.now)
        if not isinstance(work, Forward):
            self._alarm.set(work.until)
            return
        result = self.target.forward(work.rows)
        costs = self._settings.costs
        fed = sum(len(row.ids) - row.cut for row in work.rows)
        self.busy = True
        life = self._life
        self._agenda.after(
            costs.target_pass + costs.target_token * fed, lambda: self._done(work, result, life)
        )

    def _done(self, work: Forward, result: list[Decided], life: int) -> None:
        if life != self._life:
            return  # it died with the verifier that ran it
        self.busy = False
        self.engine.done(work, result, self._agenda.now)
        for connection in list(self.wires):
            self._pump(connection)
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
