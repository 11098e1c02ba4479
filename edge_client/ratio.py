"""The ratio rule's decisions at the edge: which rule, how much of a row is sent, how far ahead.

All of it looks at rows, rates and past verdicts, never at a token that is not judged yet.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import msgspec

from outrider.edge_client.combining import Combining
from outrider.edge_client.forecast import Figures, best_lockstep, cloud_alone, streaming
from outrider.edge_client.policy import Observed, Plan, Policy, Steady
from outrider.protocol.decoding.combine import budget_of
from outrider.protocol.decoding.sampling import Collaboration, Rule
from outrider.protocol.decoding.sparse import Budget, Threshold
from outrider.protocol.edge_session import EdgeSession
from outrider.protocol.link import LinkEstimator
from outrider.protocol.origins import Origins
from outrider.protocol.request import Request
from outrider.protocol.row_code import row_bits
from outrider.runtime.lm.drafter import Guess

LEVELS_OF_BUDGETS = ((4, 32, 0.10), (8, 64, 0.04), (24, 256, 0.01))
"""Rows to choose from, cheapest first: ids at most, levels, mass to leave out on average."""

USUAL = 1
"""The one for a link of which nothing is known."""

SHARE = 0.1
"""Of the time of a pass that sending one row may take."""

VOCABULARY = 150_000
"""For sizes of rows; a factor of two is one bit an id."""

LONGEST = 16
GAIN = 0.08
"""Share of the guesses refused under the coupled rule that the ratio rule would have accepted:
measured on the real pair, SPIKE section 10 (.900 to .910, .630 to .655, .614 to .645)."""

RETRY, TRIAL = 64, 4
"""Tokens after which an edge that stopped tries again at the earliest, and for how many."""

TRIAL_SHARE = 0.02
"""Of the time in between that a trial may be expected to lose."""

PRIOR, PRIOR_WEIGHT = 0.7, 8.0


@dataclass(slots=True)
class _Session:
    """``row`` is the usual size of a row in bytes, as sent."""

    level: int
    threshold: Threshold
    row: float
    stopped_at: int | None = None


class Rows:
    """Owns what is known of the rows of each session."""

    def __init__(self) -> None:
        self.reason = "nothing measured yet"
        self._sessions: dict[int, _Session] = {}

    def budget(self, session: EdgeSession, link: LinkEstimator) -> Budget:
        """How much of a row to send now: the richest whose sending takes a small share of a pass.

        Where what the link carries is unknown and there is no cap, the usual one. The floor follows
        the drafter's uncertainty. In collaborative decoding rows are part of what the text is, so
        nothing is adapted.
        """
        request = session.request
        if request is not None and request.sampling.collaborate is not None:
            return budget_of(request.sampling.collaborate)
        level = USUAL
        carries = _carries(link, session.pacer.cap)
        if math.isfinite(carries):
            seconds = SHARE * (link.target or 0.03)
            fits = [
                i for i, (keep, levels, _) in enumerate(LEVELS_OF_BUDGETS)
                if _bytes(keep, levels) / carries <= seconds
            ]  # fmt: skip
            level = max(fits, default=0)
        known = self._of(session.handle)
        keep, levels, target = LEVELS_OF_BUDGETS[level]
        if known.level != level:
            known.level, known.threshold.target = level, target
        return Budget(keep, levels, known.threshold.floor)

    def observe(self, session: int, guess: Guess) -> None:
        """Rows were made."""
        known = self._of(session)
        known.threshold.observe(guess.dropped)
        sizes = [_bytes(len(row.ids), row.levels) for row in guess.rows]
        known.row += 0.125 * (sum(sizes) / len(sizes) - known.row)

    def plan(
        self, seen: Observed, policy: Policy, made: tuple[Collaboration, Origins] | None = None
    ) -> Plan | None:
        """How far to ride under the ratio rule; None: as the policy says, which never changes.

        ``made``: the text is partly the edge's own, so it always rides; of what it is made, and
        what became of the cloud's proposals in it.

        The cloud cannot go on by itself while the edge rides, so riding has to pay: lockstep, or a
        pipeline in which a refusal costs a whole trip, or not at all.
        """
        must = made is not None
        if isinstance(policy, Steady):
            self.reason = policy.reason
            return Plan(1, 1) if must and not policy.plan(seen).frame else None
        known = self._of(seen.session)
        if seen.emitted == 0:
            known.stopped_at = None
        costs = _Costs.of(seen, known.row)
        if made is not None and seen.objective != "cost":
            weight = seen.judged + PRIOR_WEIGHT
            plan = Combining.of(seen, costs.alpha, weight, costs.row).plan(*made)
            how = "in turns with the cloud" if plan.offers else f"{plan.window} ahead"
            self.reason = f"models combined, {how}"
            return plan
        plan, rate = costs.best(seen.objective)
        if must or rate > costs.alone():
            known.stopped_at = None
            self.reason = f"ratio rule, {plan.frame} a frame, {plan.window} ahead"
            return plan
        self.reason = (
            f"under the ratio rule guesses would not pay: {rate:.0f} tokens a second, "
            f"{costs.alone():.0f} without"
        )
        if known.stopped_at is None:
            known.stopped_at = seen.emitted
        retry = costs.retry()
        if (seen.emitted - known.stopped_at) % (retry + TRIAL) >= retry:
            return Plan(TRIAL, TRIAL)
        return Plan(0, 0)

    def _of(self, session: int) -> _Session:
        keep, levels, target = LEVELS_OF_BUDGETS[USUAL]
        return self._sessions.setdefault(
            session, _Session(USUAL, Threshold(target), _bytes(keep, levels))
        )


@dataclass(frozen=True, slots=True)
class _Costs:
    """Seconds a draft step, a pass, a round trip, and a row on the uplink; acceptance."""

    alpha: float
    step: float
    target: float
    rtt: float
    row: float

    @classmethod
    def of(cls, seen: Observed, row_bytes: float) -> _Costs:
        link = seen.link
        right = (seen.acceptance or 0.0) * seen.judged + PRIOR * PRIOR_WEIGHT
        alpha = min(0.98, max(0.02, right / (seen.judged + PRIOR_WEIGHT)))
        target = (link.target if link.target is not None else 0.03) + (link.queue or 0.0)
        row = row_bytes / _carries(link, seen.cap)
        return cls(alpha, seen.draft_step or 0.0, max(1e-4, target), link.srtt or 0.0, row)

    def alone(self) -> float:
        """Tokens a second of the cloud by itself."""
        return 1 / self.target

    def lockstep(self, length: int) -> float:
        """Tokens a second with frames of ``length``; the last guess's row is what delays a frame,
        the others leave while the next is drafted."""
        tokens = (1 - self.alpha ** (length + 1)) / (1 - self.alpha)
        each = max(self.step, self.row)
        return float(tokens / (length * each + self.row + self.rtt + self.target))

    def pipeline(self) -> float:
        """Tokens a second where guesses never stop.

        After a refusal half a step is left to end, and a trip, a step and a pass go by until the
        next guess is judged. A pass has all that came during the one before: others follow for as
        long as all of those stand.
        """
        a, each = self.alpha, max(1e-6, self.step, self.row)
        begin = self.rtt + self.row + 1.5 * each + self.target
        together = max(1.0, self.target / each)
        further = a / (1 - a**together) * max(each, self.target)
        return float(1 / ((1 - a) * (begin + further)))

    def retry(self) -> int:
        """Tokens from one trial of an edge that stopped to the next."""
        lost = TRIAL / self.lockstep(TRIAL) - TRIAL / self.alone()
        return max(RETRY, int(lost * self.alone() / TRIAL_SHARE))

    def best(self, objective: str) -> tuple[Plan, float]:
        """The best plan and its tokens a second."""
        rates = {g: self.lockstep(g) for g in range(1, LONGEST + 1)}
        top = max(rates, key=lambda g: rates[g])
        if objective != "cost" and self.pipeline() > rates[top]:
            return Plan(2, self._window()), self.pipeline()
        return Plan(top, top), rates[top]

    def _window(self) -> int:
        """Guesses that cover a trip and two passes."""
        trip = self.rtt + 2 * self.target
        return max(4, min(2 * LONGEST, 2 + int(trip / max(1e-4, self.step))))


def judge_of(session: EdgeSession) -> str:
    """What judges its guesses: acceptance under one rule says little of that under another."""
    if session.collaborates:
        return "combined"
    return "ratio" if session.ratio else "coupled"


def ruled(request: Request, asked: str, known: Known) -> Request:
    """The request with the rule that is asked for: coupled, ratio or auto."""
    sampling = request.sampling
    if not sampling.temperature or choose_rule(asked, known) is not Rule.RATIO:
        return request
    return replace(request, sampling=msgspec.structs.replace(sampling, ratio=True))


@dataclass(frozen=True, slots=True)
class Known:
    """What earlier answers told: seconds of a draft step, and the acceptance under either rule.
    None: nothing."""

    link: LinkEstimator
    step: float | None
    coupled: float | None
    ratio: float | None = None


def choose_rule(asked: str, known: Known) -> Rule:
    """The rule of a sampled answer: ``asked`` is auto, coupled or ratio.

    ``auto`` takes the ratio rule where more tokens a second are predicted for it than for the
    coupled one, under which the cloud goes on by itself, and than for the cloud alone. An
    acceptance under the ratio rule that was never measured is taken for as much better as on the
    real pair. Where no send ever had to wait for the link, rows take no time.
    """
    if asked != "auto":
        return Rule(asked)
    link, step, coupled = known.link, known.step, known.coupled
    if coupled is None or step is None or link.target is None:
        return Rule.COUPLED
    rtt = link.srtt or 0.0
    figures = Figures(
        acceptance=coupled, step=step, target=link.target, rtt=rtt, passes=link.passes
    )
    free = max(cloud_alone(figures), streaming(figures), best_lockstep(figures, LONGEST)[1])
    keep, levels, _ = LEVELS_OF_BUDGETS[USUAL]
    row = _bytes(keep, levels) / _carries(link)
    better = coupled + GAIN * (1 - coupled) if known.ratio is None else known.ratio
    ratio = _Costs(min(0.98, better), step, link.target, rtt, row).best("latency")[1]
    return Rule.RATIO if ratio > free else Rule.COUPLED


def _carries(link: LinkEstimator, cap: float = math.inf) -> float:
    """Bytes of guesses a second that may leave: what the link was found to take, or the cap."""
    return min(cap, link.goodput_up or math.inf)


def _bytes(keep: int, levels: int) -> float:
    """Bytes of a row on the wire, a share of its frame's header included."""
    return row_bits(keep, levels, VOCABULARY) / 8 + 1.5
