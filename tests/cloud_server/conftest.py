"""An engine over a scripted target, driven by hand with a clock that is a number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from outrider.cloud_server.engine import CloudEngine, Forward, Wait
from outrider.cloud_server.own_drafter import OwnDraft, OwnDrafter
from outrider.cloud_server.planner import EngineSettings
from outrider.cloud_server.replay import plain
from outrider.cloud_server.targets.base import Decided
from outrider.cloud_server.targets.scripted import ScriptedTarget
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.errors import BackendError
from outrider.protocol.messages import Draft, EpochStart, Open
from outrider.protocol.objective import Objective
from outrider.protocol.session import CloudSession
from outrider.protocol.table import SessionTable
from outrider.runtime.lm.drafter import Drafter, Guess
from outrider.simulator.lm import DrafterLM
from outrider.simulator.pair import config, letters
from outrider.simulator.settings import DrafterKind, DrafterSettings

SIZE = 26
PASS = 0.03
STEP = 0.003


def letter(token: int) -> bytes:
    return bytes([ord("a") + token])


@dataclass
class Desk:
    """Everything in one place. ``works`` are the engine's works so far, waits left out."""

    slots: int = 4
    n_ctx: int = 200
    eos: frozenset[int] = frozenset()
    settings: EngineSettings = field(default_factory=lambda: EngineSettings(lookup=0))
    own: DrafterKind | None = None
    own_ctx: int = 200
    now: float = 0.0
    works: list[Forward | OwnDraft] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.target = ScriptedTarget(vocabulary=SIZE, n_ctx=self.n_ctx, slots=self.slots)
        self.drafter: Drafter | None = None
        if self.own is not None:
            settings = DrafterSettings(kind=self.own, n_ctx=self.own_ctx)
            self.drafter = Drafter(DrafterLM(self.target, settings), SIZE)
        self.table = SessionTable(config(letters(SIZE)))
        self.engine = CloudEngine(
            self.table,
            self.target.info,
            self.eos,
            letter,
            self.settings,
            own=OwnDrafter(self.drafter) if self.drafter else None,
        )

    def open(
        self,
        name: bytes,
        ids: Sequence[int] = (1, 2, 3),
        *,
        answer: int = 1,
        prompt_len: int | None = None,
        max_tokens: int = 20,
        stops: tuple[str, ...] = (),
        objective: Objective = "latency",
        link: object = "link",
    ) -> CloudSession:
        """An answer begins, at position 0."""
        session = self.table.obtain(name, b"secret", "", 0.0)
        session.bind(link, session.n + 1, 0)
        request = Open(
            handle=0,
            session=name,
            secret=b"secret",
            n=session.n,
            answer=answer,
            base=0,
            digest=session.digests.at(0),
            prompt_len=len(ids) if prompt_len is None else prompt_len,
            ids=tuple(ids),
            max_tokens=max_tokens,
            stops=stops,
        )
        session.open(request, ids, len(ids), objective)
        return session

    def guess(self, session: CloudSession, tokens: Sequence[int], *, full: bool = False) -> None:
        """The edge's first guesses of a new epoch arrive, or only the word that it rides."""
        epoch, base = session.window.last_epoch + 1, len(session.ids)
        start = EpochStart(answer=session.answer & 0xFF, base=base, digest=session.digests.at(base))
        frame = Draft(epoch=epoch & 0xFF, start=start, tokens=tuple(tokens), full=full)
        session.draft(frame, self.now, 64)

    def next(self) -> Forward | OwnDraft | Wait:
        work = self.engine.next(self.now)
        if not isinstance(work, Wait):
            self.works.append(work)
        return work

    def finish(self, work: Forward | OwnDraft) -> None:
        """Run a work and give its result back, when it would be done."""
        if isinstance(work, Forward):
            result: list[Decided] | BackendError = work.run(self.target)
            self.now += 0.0 if work.known else PASS
            self.engine.done(work, result, self.now)
            return
        assert self.drafter is not None
        guess: Guess | BackendError = Guess((), ())
        try:
            if work.read:
                self.drafter.prefill(work.ids, work.read)
            else:
                guess = self.drafter.draft(work.ids, work.prompt_len, work.sampling, work.count)
        except BackendError as error:
            guess = error
        self.now += STEP * max(1, work.count)
        self.engine.drafted(work, guess, self.now)

    def step(self) -> Forward | OwnDraft:
        """One work from beginning to end; there has to be one."""
        work = self.next()
        assert not isinstance(work, Wait), work
        self.finish(work)
        return work

    def run(self, limit: int = 1000) -> None:
        """Until nothing is to do for a long time."""
        for _ in range(limit):
            work = self.next()
            if isinstance(work, Wait):
                if work.until is None or work.until > self.now + 10:
                    return
                self.now = work.until
            else:
                self.finish(work)
        raise AssertionError("no end")

    def expected(self, ids: Sequence[int], tokens: int) -> list[int]:
        """What the target alone answers."""
        alone = ScriptedTarget(vocabulary=SIZE, n_ctx=self.n_ctx, slots=1)
        return plain(alone, list(ids), Sampling(), tokens)


@pytest.fixture
def desk() -> Callable[..., Desk]:
    """Makes one."""
    return Desk
