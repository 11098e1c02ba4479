"""The policy that measures: ride ahead as far as it pays, and not at all where it does not.

The unit is predicted tokens a second or, under the objective ``cost``, target passes a token. The
model behind it (``docs/architecture.md``, "How far to ride ahead"), with a the acceptance, t the
draft step, T the pass, R the round trip:

- *cloud alone* gives 1 / T;
- *lockstep* at length g gives E(g) / (g t + R + T), E(g) = (1 - a^(g+1)) / (1 - a);
- *streaming* cannot be slower than the cloud alone, which goes on by itself. It gains only if the
  edge ever gets ahead: after a contradiction it starts R late and gains T - t on every token, so
  the first guess of use is the (R / (T - t))-th, and all before it must have been right. An answer
  is begun by both ends at once, and a stream that stands ahead has nothing to catch up with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from outrider.edge_client.gate import Gate
from outrider.edge_client.policy import MAX_DRAFT, Observed, Plan, Policy
from outrider.protocol.pacing import FRAME_BYTES

PRIOR, PRIOR_WEIGHT = 0.7, 8.0
"""Acceptance assumed at first, and for how many judged guesses it counts."""

BEST = 0.98
"""Acceptance is taken to be at most this, and at least what is missing to 1."""

HOPELESS = 0.02
"""Chance that a guess is of use, under which drafting is stopped."""

UNLIKELY = 0.01
"""Chance that a whole run of guesses is right, under which it is not made longer."""

RETRY = 64
"""Tokens after which an edge that stopped tries again, for ``TRIAL`` tokens and two round trips:
conditions change."""

TRIAL = 12

GOOD_ENOUGH = 0.93
"""Share of the best speed that ``cost`` may give up for fewer target passes."""

SAVING = 1.2
"""Tokens a pass, under which ``cost`` does not make the user wait for guesses."""

FRAME_SHARE = 0.05
"""A streamed frame may take this share of a pass to fill: finer ones cost packets, not time."""

BRANCH, QUICK = 8, 6
"""Guesses that may stand beside the chain in one place, where a pass is so many draft steps or
more: with fewer the drafter is busy with the chain all the time (docs/benchmarks.md)."""

LONGEST = 16
HYSTERESIS = 1.1
"""A new draft length must be predicted to be so much better to replace the present one."""

SURE = 0.9
"""Chance of being right with which a guess is sent whatever the load: an edge that sends nothing
hears nothing of the load either."""

OFF = Plan(0, 0)


@dataclass(slots=True)
class _Costs:
    """What is known, with unknowns filled in so that drafting is tried first."""

    alpha: float
    step: float
    target: float
    rtt: float
    judged: float

    @classmethod
    def of(cls, seen: Observed) -> _Costs:
        right = (seen.acceptance or 0.0) * seen.judged + PRIOR * PRIOR_WEIGHT
        judged = seen.judged + PRIOR_WEIGHT
        alpha = min(BEST, max(1 - BEST, right / judged))
        link = seen.link
        unknown = link.passes.of(1) if link.passes.known else 0.03
        target = (unknown if link.target is None else link.target) + (link.queue or 0.0)
        return cls(alpha, seen.draft_step or 0.0, max(1e-4, target), link.srtt or 0.0, judged)

    @property
    def hopeful(self) -> float:
        """An acceptance that is one standard error better than measured.

        A guess too many costs little, while nobody learns by not trying, and right guesses come in
        runs.
        """
        error = math.sqrt(self.alpha * (1 - self.alpha) / self.judged)
        return min(BEST, self.alpha + error)

    def tokens(self, length: int) -> float:
        """Expected tokens of a pass with so many guesses."""
        return float((1 - self.alpha ** (length + 1)) / (1 - self.alpha))

    def lockstep(self, length: int) -> float:
        """Predicted tokens a second in lockstep."""
        return self.tokens(length) / (length * self.step + self.rtt + self.target)

    def useful(self, ahead: int, fresh: bool) -> float:
        """Chance that streamed guesses get ahead of the cloud: all those before were right.

        While news and a guess travel, the cloud alone makes rtt / target tokens; with ``ahead``
        guesses standing, so many fewer have to be caught up with. A ``fresh`` answer is begun by
        both ends at once: there is no trip to catch up with.
        """
        behind = 0.0 if fresh else max(0.0, self.rtt - ahead * self.target)
        gain = self.target - self.step
        if behind and gain <= 0:
            return 0.0  # the cloud alone is as quick as the drafter: it never gets ahead
        first = 1 + (behind / gain if behind else 0.0)
        return float(self.hopeful**first)

    def gather(self, seen: Observed) -> int:
        """Guesses that may share a message at no loss.

        While the news and the next guess travel, the cloud makes ``late`` tokens by itself: guesses
        in these places are of use only as the beginning of what follows. Others may wait for one
        more where that comes within the same pass and the cloud has some in store; not on short
        links, where it never has many.
        """
        late = int((self.rtt + self.step) / self.target)
        if seen.emitted and seen.ahead < late:
            return min(LONGEST, late + 1)
        return 2 if late and self.target >= 2 * self.step and seen.ahead > late + 1 else 1


@dataclass(slots=True)
class _Memory:
    """What was chosen for one session before: the draft length, and where drafting was stopped."""

    length: int = 4
    stopped_at: int | None = None


class Adaptive(Policy):
    """Chooses mode, frame and window anew before every frame, with memory of its last choice."""

    name = "adaptive"

    def __init__(self, longest: int = LONGEST, floor: float = 0.0, *, gated: bool = True) -> None:
        """``gated``: what riding gave is compared with the cloud alone (:class:`Gate`)."""
        self._longest = min(longest, MAX_DRAFT)
        self._floor = floor
        self._memories: dict[int, _Memory] = {}
        self._gate = Gate() if gated else None
        self.reason = "nothing measured yet"

    @property
    def about(self) -> str:
        return "as far ahead as it pays"

    def plan(self, observed: Observed) -> Plan:
        """The plan that the measurements predict to be best."""
        costs = _Costs.of(observed)
        memory = self._memories.setdefault(observed.session, _Memory())
        if observed.emitted == 0:
            memory.stopped_at = None
        gate = self._gate
        if (
            gate is None or observed.objective == "cost"
        ):  # fewer passes are wanted, even if they take longer
            return self._ride(observed, costs, memory)
        gate.observe(observed)
        if gate.decide(observed, costs.hopeful):
            plan = self._ride(observed, costs, memory)
        else:
            plan, self.reason = OFF, gate.reason
        gate.chose(observed, riding=plan.frame > 0)
        return plan

    def _ride(self, observed: Observed, costs: _Costs, memory: _Memory) -> Plan:
        if not self._joins_in_time(observed, costs):
            self.reason = "the answer will have ended before the prompt is read here"
            return OFF
        plan = (
            self._lockstep(costs, memory)
            if observed.objective == "cost"
            else self._stream(observed, costs)
        )
        plan = self._under_load(plan, observed, costs)
        plan = self._under_cap(plan, observed, costs)
        return self._stop_or_retry(plan, observed, costs, memory)

    def _under_load(self, plan: Plan, seen: Observed, costs: _Costs) -> Plan:
        """Guesses that the cloud would not take are not made: of a run, those still likely enough.

        While they travel and are judged, the next ones may be on their way, as without load.
        """
        load = seen.link.load
        if not plan.frame or load <= 0:
            return plan
        load = min(load, SURE)
        if costs.hopeful < load:
            self.reason = f"the cloud is busy: guesses must be right at {load:.0%} to be taken"
            return OFF
        plan = replace(plan, chance=load)
        pays = max(1, int(math.log(max(1e-6, load)) / math.log(costs.alpha)))
        trip = math.ceil((costs.rtt + costs.target) / max(1e-4, costs.step))
        most = pays if seen.objective == "cost" else pays + trip
        if most >= plan.window:
            return plan
        self.reason += f", at most {most} at a load of {load:.0%}"
        return replace(plan, frame=min(plan.frame, most), window=most)

    def _under_cap(self, plan: Plan, seen: Observed, costs: _Costs) -> Plan:
        """Frames as long, and a window as short, as what this edge may send asks for.

        Guesses as they are made fit if enough of them share a frame. Where even one long frame a
        trip would not carry them, no more are made than a frame a trip can hold.
        """
        if not plan.frame or math.isinf(seen.cap):
            return plan
        spare = seen.cap * costs.step - seen.guess_bytes  # left of a guess's time for the header
        sharing = math.ceil(FRAME_BYTES / spare) if spare > 0 else plan.window + 1
        if sharing <= plan.gather:
            return plan
        if sharing <= plan.window:
            self.reason += f", {sharing} at a time under a cap of {seen.cap:.0f} B/s"
            return replace(plan, gather=sharing)
        trip = costs.rtt + costs.target
        fit = int((seen.cap * trip - FRAME_BYTES) / seen.guess_bytes)
        if fit < 1:
            self.reason = f"{seen.cap:.0f} B/s for guesses do not carry one a trip"
            return OFF
        window = min(plan.window, fit)
        self.reason += f", at most {window} at a time under a cap of {seen.cap:.0f} B/s"
        return replace(plan, frame=min(plan.frame, window), window=window, gather=window)

    def _joins_in_time(self, seen: Observed, costs: _Costs) -> bool:
        """The drafter has read what it is behind before the answer ends; the cloud goes on."""
        rate = seen.prefill_rate
        if rate is None or seen.behind <= 1:
            return True
        catching_up = rate - 1 / costs.target
        if catching_up <= 0:
            return False
        return seen.behind / catching_up < 0.8 * seen.left * costs.target

    def _stream(self, seen: Observed, costs: _Costs) -> Plan:
        """Small frames, merged by the link when it is busy; a window that covers the trip."""
        useful = costs.useful(seen.ahead, fresh=seen.emitted == 0)
        if useful < HOPELESS:
            self.reason = (
                f"{useful:.0%} of the guesses would be of use at {costs.alpha:.0%} acceptance, "
                f"{costs.rtt * 1e3:.0f} ms round trip"
            )
            return OFF
        trip = costs.rtt + 2 * costs.target
        covers = math.ceil(trip / max(1e-4, costs.step)) + 2
        likely = math.ceil(math.log(UNLIKELY) / math.log(costs.alpha))
        window = max(2, min(covers, likely, 2 * self._longest))
        frame = max(1, min(8, int(FRAME_SHARE * costs.target / max(1e-6, costs.step))))
        self.reason = f"streaming, {frame} a frame, {window} ahead"
        quick = seen.draft_step is not None and QUICK * costs.step < costs.target
        branch, gather = BRANCH if quick else 0, costs.gather(seen)
        return Plan(frame, max(window, frame), self._floor, gather, branch)

    def _lockstep(self, costs: _Costs, memory: _Memory) -> Plan:
        """The longest draft whose speed is nearly the best: the fewest passes a token."""
        rates = {g: costs.lockstep(g) for g in range(1, self._longest + 1)}
        best = max(rates.values())
        chosen = max(g for g, rate in rates.items() if rate >= GOOD_ENOUGH * best)
        memory.length = min(memory.length, self._longest)
        if costs.tokens(chosen) < SAVING:
            self.reason = f"guesses save the cloud next to nothing at {costs.alpha:.0%} acceptance"
            return OFF
        if abs(chosen - memory.length) > 1 or rates[memory.length] * HYSTERESIS < rates[chosen]:
            memory.length += max(-2, min(2, chosen - memory.length))  # a step at a time
        self.reason = f"lockstep, {memory.length} a frame"
        return Plan(memory.length, memory.length, self._floor)

    def _stop_or_retry(self, plan: Plan, seen: Observed, costs: _Costs, memory: _Memory) -> Plan:
        """Once stopped, stay so for a while, then try for a few tokens whatever is predicted."""
        if plan.frame:
            memory.stopped_at = None
            return plan
        if memory.stopped_at is None:
            memory.stopped_at = seen.emitted
        trial = TRIAL + math.ceil(2 * costs.rtt / costs.target)
        if (seen.emitted - memory.stopped_at) % (RETRY + trial) >= RETRY:
            self.reason = f"trying again: {self.reason}"
            return Plan(1, 4, self._floor, chance=min(SURE, seen.link.load))
        return plan
