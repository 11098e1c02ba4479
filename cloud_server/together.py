"""Collaborative decoding at the cloud: its models' rows at the text's end, ahead of the edge's.

Nothing can be chosen there without the edge's row, but the cloud's models need not wait for it: as
soon as it comes, both are combined and no pass stands between. So a token never takes longer than a
round trip or a pass, as in plain collaborative decoding with all models at work at once.

From each of its rows the cloud takes what it would say itself, and where the edge scores such
proposals instead of guessing, makes the next row behind it while the edge's are on their way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.cloud_server.planner import Part
from outrider.cloud_server.targets.base import Decided, Row
from outrider.cloud_server.targets.rows import together
from outrider.protocol.decoding import combine
from outrider.protocol.decoding.processors import F32
from outrider.protocol.session import CloudSession

LONGEST = {"latency": 16, "balanced": 2, "cost": 0}
"""Rows that the cloud makes ahead of the edge's at most, by objective. One that stands in for the
row at the text's end, if it is right, costs nothing; others may be wasted."""


@dataclass(slots=True)
class Lead:
    """``rows[i]`` are the logits after the first ``start`` ids of answer ``begun`` and the first i
    of ``chain``, which is what the cloud itself would say there."""

    begun: int
    start: int
    rows: list[F32]
    chain: list[int]

    def judges(self, guesses: Sequence[int]) -> int:
        """How many of the edge's guesses can be judged with these rows."""
        same = 0
        while same < len(guesses) and same < len(self.chain) and guesses[same] == self.chain[same]:
            same += 1
        return min(len(guesses), len(self.rows), same + 1)


@dataclass(slots=True)
class Leads:
    """One lead a session, for as long as the text has not left it."""

    usable: int
    _leads: dict[bytes, Lead] = field(default_factory=dict)

    def of(self, session: CloudSession) -> Lead | None:
        """The lead from where the text ends now; None: no row is known there."""
        lead = self._leads.get(session.key)
        if lead is None or lead.begun != session.begun:
            return None
        end = len(session.ids)
        while lead.rows and lead.start < end and lead.chain[0] == session.ids[lead.start]:
            lead.start += 1
            del lead.rows[0], lead.chain[0]
        if not lead.rows or lead.start != end:
            del self._leads[session.key]
            return None
        return lead

    def learn(self, session: CloudSession, logits: F32, chain: Sequence[int] = ()) -> None:
        """What follows the end of the text and then ``chain``, which stood at its lead's end."""
        request, lead = session.request, self.of(session)
        if request is None or not session.running:
            return
        if not chain:
            lead = self._leads[session.key] = Lead(session.begun, len(session.ids), [], [])
        if lead is None or lead.chain != list(chain):
            return
        text = [*session.ids, *lead.chain]
        lead.rows.append(logits)
        lead.chain.append(
            combine.own_proposal(logits, request.sampling, text, session.prompt_len, self.usable)
        )
        if session.scores:
            session.offers.propose(lead.start, lead.chain)

    def forget(self, alive: set[bytes]) -> None:
        """Only these sessions are still there."""
        self._leads = {key: lead for key, lead in self._leads.items() if key in alive}


def part_of(
    session: CloudSession, lead: Lead, now: float, pass_time: float, n_ctx: int
) -> Part | None:
    """What there is to do for a session whose next row is known here.

    The guesses for which all rows are there; or one more row of the cloud's own, if the edge scores
    proposals and the row is made before the edge is heard of again.
    """
    guesses, end = session.window.chain(len(lead.rows)), len(session.ids)
    if count := lead.judges(guesses):
        rows, scored = session.window.chain_rows(count), session.window.chain_scored(count)
        return Part(end, count, tuple(guesses[:count]), rows=rows, scored=scored)
    reply, told = session.reply_time, session.verdict_at
    if not session.scores or session.has_news:
        return None
    if reply is None or told is None or now + pass_time > told + reply:
        return None
    if len(lead.rows) >= LONGEST[session.objective] or end + len(lead.chain) + 1 >= n_ctx:
        return None
    return Part(end, 1, tuple(lead.chain), ahead=True)


def combined(rows: Sequence[Row], known: Sequence[Sequence[F32]], usable: int) -> list[Decided]:
    """Decide the guesses of each row with the logits that are known already."""
    return [together(row, logits, usable) for row, logits in zip(rows, known, strict=True)]
