"""The target's row is made while the edge's travels, and combined with it once it comes."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from outrider.cloud_server.engine import Forward, Wait
from outrider.cloud_server.targets.base import Row
from outrider.cloud_server.targets.rows import decide_rows
from outrider.cloud_server.targets.scripted import ScriptedTarget
from outrider.protocol.decoding.combine import combined
from outrider.protocol.decoding.row import SparseRow
from outrider.protocol.decoding.sampling import Collaboration, Combination, Sampling
from outrider.protocol.messages import Draft, EpochStart

TOGETHER = Sampling(
    temperature=0.0, collaborate=Collaboration(kind=Combination.ENSEMBLE, weight=0.5)
)
EDGE = SparseRow((3, 7, 11), (128, 64, 64))


def begin(desk: Any, objective: str) -> Any:
    """An answer of two models whose prompt is evaluated."""
    session = desk.open(b"s", objective=objective)
    session.request = msgspec.structs.replace(session.request, sampling=TOGETHER)
    work = desk.step()
    assert isinstance(work, Forward)
    return session


def rows(desk: Any, session: Any, *tokens: int) -> None:
    """Guesses of a new epoch arrive with their rows."""
    epoch, base = session.window.last_epoch + 1, len(session.ids)
    start = EpochStart(answer=session.answer & 0xFF, base=base, digest=session.digests.at(base))
    frame = Draft(epoch=epoch & 0xFF, start=start, tokens=tokens, rows=(EDGE,) * len(tokens))
    session.draft(frame, desk.now, 64)


def choice(desk: Any, ids: list[int], prompt_len: int) -> int:
    """r's choice after ``ids``, by its definition."""
    tokens, scores = combined(
        desk.target.row(ids), TOGETHER, ids, prompt_len, desk.target.info.usable, other=EDGE
    )
    return int(tokens[scores.argmax()])


def test_a_guess_is_judged_without_a_pass(desk: Any) -> None:
    desk = desk()
    session = begin(desk, "latency")
    text = list(session.ids)
    assert isinstance(desk.next(), Wait)  # both the text and the row at its end are there
    for wrong in (False, True, False):
        right = choice(desk, text, 3)
        rows(desk, session, (right + 1) % 26 if wrong else right)
        passes, now = desk.engine.stats.passes, desk.now
        work = desk.step()
        assert work.known
        assert (desk.engine.stats.passes, desk.now) == (passes, now)
        text.append(right)
        assert session.ids == text
        work = desk.step()  # the next row, whether or not a guess is there
        assert not work.known
        assert work.rows[0].ids == text
        assert desk.engine.stats.passes == passes + 1


def test_where_passes_are_dear_none_is_made_ahead(desk: Any) -> None:
    desk = desk()
    session = begin(desk, "cost")
    assert isinstance(desk.next(), Wait)
    text = list(session.ids)
    rows(desk, session, choice(desk, text, 3))
    work = desk.step()
    assert not work.known
    text.append(choice(desk, text, 3))
    assert session.ids == text
    assert isinstance(desk.next(), Wait)  # that pass made the row behind the guess as well
    rows(desk, session, choice(desk, text, 3))
    assert desk.step().known


def test_a_row_is_of_no_use_elsewhere(desk: Any) -> None:
    desk = desk()
    session = begin(desk, "latency")
    known = desk.engine._leads
    assert known.of(session) is not None
    session.commit([1])
    assert known.of(session) is None  # the text went on
    session = desk.open(b"s", answer=2, ids=(1, 2, 3))
    assert len(session.ids) == 3
    assert known.of(session) is None  # another answer


@pytest.mark.parametrize("right", [False, True])
def test_the_row_behind_is_only_of_guesses_that_were_right(right: bool) -> None:
    target = ScriptedTarget(vocabulary=26, n_ctx=20, slots=1)
    ids = [1, 2, 3]
    tokens, scores = combined(target.row(ids), TOGETHER, ids, 3, 26, other=EDGE)
    guess = int(tokens[scores.argmax()]) if right else int(tokens[scores.argmin()])
    row = Row(0, 0, [*ids, guess], 2, TOGETHER, 3, rows=(EDGE,))
    logits = [target.row(ids), target.row([*ids, guess])]
    (made,) = decide_rows([row], [logits], 26)
    if right:
        assert made.behind is not None
        assert np.array_equal(made.behind, logits[1][:26])
    else:
        assert made.behind is None
