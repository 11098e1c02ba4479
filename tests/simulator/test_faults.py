"""Rules of the stream, each left out on purpose: the schedules must notice.

A rule whose absence no schedule notices is a rule that is not tested. The same schedules pass
without the fault (``test_schedules.py``).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from outrider.protocol.edge_session import EdgeSession, Phase
from outrider.protocol.epochs import CloudWindow, EdgeWindow
from outrider.protocol.guesses import ROOT, Guesses
from outrider.protocol.messages import Attached, Draft, EpochStart, Opened, Verdict
from outrider.protocol.session import CloudSession
from outrider.simulator.schedule import nasty, patient
from outrider.simulator.settings import WorldSettings
from outrider.simulator.verdict import judge_world

Patch = pytest.MonkeyPatch

TRIES = 1000
"""Schedules tried before a fault counts as unnoticed; most are noticed within a few."""


def count_epochs_on_both_ends(patch: Patch) -> None:
    """The edge's frames name no epoch: each end counts one up whenever the text leaves its tree."""
    restart = EdgeWindow.restart

    def edge_restart(window: EdgeWindow) -> None:
        window.announced = True  # numbers grow at every restart, as if each had been announced
        restart(window)

    def grew(window: CloudWindow) -> None:
        window._advance()
        if window.guesses is not None and not window.caught_up:
            window.last_epoch += 1
            window.guesses = Guesses(window.last_epoch, len(window.committed))
            window.tip = ROOT

    def void(window: CloudWindow, last_epoch: int) -> None:
        window.last_epoch = last_epoch + 1
        window.guesses, window.tip = Guesses(last_epoch + 1, len(window.committed)), ROOT

    def append(window: CloudWindow, low: int, tokens: tuple[int, ...], *_rest: object) -> None:
        if window.guesses is not None and window.guesses.number & 0xFF == low:
            for token in tokens:
                window.guesses.append(token)
            window._advance()

    draft = CloudSession.draft

    def unnamed(session: CloudSession, frame: Draft, now: float, limit: int) -> None:
        nameless = Draft(
            handle=frame.handle, epoch=frame.epoch, tokens=frame.tokens, more=frame.more
        )
        draft(session, nameless, now, limit)

    patch.setattr(EdgeWindow, "restart", edge_restart)
    patch.setattr(CloudWindow, "committed_grew", grew)
    patch.setattr(CloudWindow, "void", void)
    patch.setattr(CloudWindow, "append", append)
    patch.setattr(CloudSession, "draft", unnamed)


def compare_on_arrival_only(patch: Patch) -> None:
    """A guess that was right when it came stays so: later commits only move the position."""

    def grew(window: CloudWindow) -> None:
        guesses = window.guesses
        while guesses is not None and guesses.position(window.tip) < len(window.committed) - 1:
            below = guesses.children.get(window.tip)
            if not below:
                return
            window.tip = next(iter(below.values()))

    patch.setattr(CloudWindow, "committed_grew", grew)


def leave_out_the_attach_number(patch: Patch) -> None:
    """Whoever attaches last serves the session, however old its connection is."""
    patch.setattr(CloudSession, "takes", lambda *_args: True)


def leave_out_the_answer_id(patch: Patch) -> None:
    """Neither end asks which answer a message is about."""
    verdict, draft = EdgeSession.verdict, CloudSession.draft

    def any_verdict(session: EdgeSession, message: Verdict, *rest: object) -> object:
        message = msgspec.structs.replace(message, answer=session.answer & 0xFF)
        return verdict(session, message, *rest)  # type: ignore[arg-type]

    def any_draft(session: CloudSession, frame: Draft, now: float, limit: int) -> None:
        if frame.start is not None:
            start = EpochStart(
                answer=session.answer & 0xFF, base=frame.start.base, digest=frame.start.digest
            )
            frame = msgspec.structs.replace(frame, start=start)
        draft(session, frame, now, limit)

    def serves(session: EdgeSession, message: Opened | Attached) -> bool:
        return session.phase is not Phase.IDLE and message.n == session.n

    patch.setattr(EdgeSession, "verdict", any_verdict)
    patch.setattr(EdgeSession, "live", lambda session, _answer: session.phase is Phase.LIVE)
    patch.setattr(EdgeSession, "serves", serves)
    patch.setattr(CloudSession, "draft", any_draft)


def leave_out_the_closing_frame(patch: Patch) -> None:
    """An edge that stops riding does not say so."""
    patch.setattr(EdgeSession, "stop_riding", lambda _session: None)


FAULTS: list[tuple[Callable[[Patch], None], Callable[[int], WorldSettings]]] = [
    (count_epochs_on_both_ends, nasty),
    (compare_on_arrival_only, nasty),
    (leave_out_the_attach_number, nasty),
    (leave_out_the_answer_id, nasty),
    # Elsewhere patience runs out in the end: a closing frame that is missing only costs time.
    (leave_out_the_closing_frame, patient),
]


@pytest.mark.parametrize(("fault", "settings"), FAULTS, ids=[f.__name__ for f, _ in FAULTS])
def test_fault_is_noticed(
    monkeypatch: Patch,
    fault: Callable[[Patch], None],
    settings: Callable[[int], WorldSettings],
) -> None:
    with monkeypatch.context() as patch:
        fault(patch)
        noticed = next((seed for seed in range(TRIES) if judge_world(settings(seed))), None)
    assert noticed is not None, f"no schedule fails in {TRIES} without this rule"
    assert judge_world(settings(noticed)) == []  # with the rule, the same schedule passes
