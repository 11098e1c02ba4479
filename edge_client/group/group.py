"""Several drafters that make one tree of guesses, after CoSine (arXiv 2503.10325).

A draft goes in steps. In each, all chosen members propose at once what follows the text and the
chain so far; the token with the most confidence behind it goes to all of them and is the chain's
next, the others hang beside it, equal ones joined. Under the coupled rule all members add the same
noise to their scores, so that they agree more often, and a runner-up by noisy score is what the
target chooses if its row differs a little. Confidence only decides *which* guesses are made and in
what order: the verifier takes the child that equals the target's own coupled choice, whatever was
guessed, so the text depends on the target and the seed alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Protocol, TypeVar

from outrider.edge_client.group.crew import Crew, Odds
from outrider.edge_client.group.draft import Ask, Draft, Step, Tree, comb
from outrider.edge_client.group.members import Member
from outrider.edge_client.group.routing import Route, Router, Similarity, same, signal
from outrider.protocol.decoding.rules import Proposal
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.decoding.sparse import Budget
from outrider.protocol.decoding.trees import ROOT, follow
from outrider.protocol.errors import AwayError
from outrider.runtime.lm.drafter import Guess, Standing

T = TypeVar("T")
Request = tuple[int, int]

RUNNER_UP = 0.25
"""What a member's vote for a token that it does not name first counts for."""


class Steps(Protocol):
    """Members at one table: see :class:`outrider.edge_client.group.members.Table`."""

    members: list[Member]

    def ready(self) -> list[int]:
        """Members that can be asked now."""

    def pace(self, member: int) -> float | None:
        """Seconds that a member's steps take."""

    def together(
        self, wanted: Sequence[int], job: Callable[[Member], T], tokens: Callable[[Member], int]
    ) -> dict[int, T]:
        """Results of those members that were in time; none where all failed."""

    def away(self) -> AwayError:
        """Why no member can be asked."""

    def close(self) -> None:
        """Free the models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """``most`` drafters work together (0: all); each names ``width`` tokens a step.

    For comparisons: ``route`` false chooses members by number, ``fuse`` false lets each member go
    on with its own chain, ``fixed`` true always takes ``most`` of them.
    """

    most: int = 0
    width: int = 2
    route: bool = True
    fuse: bool = True
    fixed: bool = False


class Group:
    """Has the interface of :class:`outrider.runtime.lm.drafter.Drafter`; one thread uses it."""

    def __init__(
        self,
        steps: Steps,
        eos: frozenset[int] = frozenset(),
        settings: GroupSettings | None = None,
        *,
        similarity: Similarity = same,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.settings = settings or GroupSettings()
        self.steps = steps
        self.name = " + ".join(member.name for member in steps.members)
        self.n_ctx = min(member.n_ctx for member in steps.members)
        self.router = Router(len(steps.members))
        self.crew = Crew(min(self.settings.most or len(steps.members), len(steps.members)))
        self.odds = Odds()
        self._eos = eos
        self._similarity = similarity
        self._clock = clock
        self._drafts: dict[Request, list[Draft]] = {}
        self._at_work = list(range(len(steps.members)))

    # --- a drafter --------------------------------------------------------------------------

    def behind(self, ids: Sequence[int]) -> int:
        """How many of ``ids`` have to be read before guesses come quickly.

        Of the members at work the best read counts: one that lags catches up by itself.
        """
        ready = [i for i in self.steps.ready() if i in self._at_work] or self._at_work
        return min(self.steps.members[i].behind(ids) for i in ready)

    def prefill(self, ids: Sequence[int], count: int) -> None:
        """All members evaluate up to ``count`` more of ``ids``.

        Raises:
            AwayError: no member can be asked now.
        """
        self._ask(
            lambda ready: ready, lambda m: m.read(ids, count), lambda m: min(count, m.behind(ids))
        )

    def draft(
        self,
        ids: Sequence[int],
        prompt_len: int,
        sampling: Sampling,
        count: int,
        *,
        never: frozenset[int] = frozenset(),
        floor: float = 0.0,
        budget: Budget | None = None,
        stop: Callable[[], bool] = lambda: False,
        standing: Standing | None = None,
    ) -> Guess:
        """Guesses at what follows ``ids``, ``count`` in a row: a tree where that pays.

        With a ``budget`` (the ratio rule) the best member draws alone: a token that was chosen by
        comparing confidences is no sample of anybody's distribution.

        Raises:
            AwayError: no member can be asked now.
        """
        now = standing or Standing()
        self.learn(ids[: now.verified], now)
        route = self.router.route(now.request, now.key)
        if budget is not None:

            def alone(member: Member) -> Guess:
                if member.drafter is None:  # its distributions are not sent about
                    return Guess((), ())
                return member.drafter.draft(
                    ids, prompt_len, sampling, count,
                    never=never, floor=floor, budget=budget, stop=stop,
                )  # fmt: skip

            def here(ready: list[int]) -> list[int]:
                found = [i for i in ready if self.steps.members[i].drafter is not None]
                return route.choose(found or ready, 1, lambda _: 0.0)

            guesses = self._ask(here, alone, lambda m: m.behind(ids) + count)
            return next(iter(guesses.values()))
        size = self.crew.most if self.settings.fixed else self.crew.size(now.round, now.load)
        self._at_work = self._chosen(route, size) or self._at_work
        width = self.settings.width if now.price < 1.0 else 1

        def propose(member: Member, after: list[int]) -> list[Proposal]:
            return member.propose(after, prompt_len, sampling, width, never)

        ask = Ask(tuple(ids), count, propose, now, floor, stop)
        guess, steps = self._fused(ask) if self.settings.fuse else self._union(ask)
        if guess.tokens:
            draft = Draft(len(ids), guess, steps, len(self._at_work))
            self._drafts.setdefault(now.request, []).append(draft)
        return guess

    def forget(self, ids: Sequence[int]) -> None:
        """The answer with this text was broken off: members elsewhere need not keep it."""
        for member in self.steps.members:
            member.forget(ids)

    def close(self) -> None:
        """Free the models."""
        self.steps.close()

    # --- drafting ---------------------------------------------------------------------------

    def _chosen(self, route: Route, size: int) -> list[int]:
        ready = self.steps.ready()
        if not self.settings.route:
            return ready[:size]
        return route.choose(ready, size, self._load)

    def _load(self, member: int) -> float:
        """How much slower than the fastest it is, from 0 (as fast) towards 1, or how busy."""
        paces = [p for i in range(len(self.steps.members)) if (p := self.steps.pace(i))]
        own = self.steps.pace(member)
        slow = 1 - min(paces) / own if own and paces else 0.0
        return max(slow, self.steps.members[member].load)

    def _ask(
        self,
        choose: Callable[[list[int]], list[int]],
        job: Callable[[Member], T],
        tokens: Callable[[Member], int],
    ) -> dict[int, T]:
        """What some did of those that can be asked, whom ``choose`` takes; others where all failed.

        Raises:
            AwayError: there is nobody.
        """
        asked: set[int] = set()
        while ready := [i for i in self.steps.ready() if i not in asked]:
            chosen = choose(ready)
            asked.update(chosen)
            found = self.steps.together(chosen, job, tokens)
            if found:
                return found
        raise self.steps.away()

    def _able(self, ready: list[int]) -> list[int]:
        """Those at work, or whoever is there."""
        return [i for i in self._at_work if i in ready] or ready

    def _step(
        self, text: list[int], propose: Callable[[Member, list[int]], list[Proposal]]
    ) -> dict[int, list[Proposal]]:
        """What the members at work propose after ``text``; who is away or late is passed by."""
        began = self._clock()
        after = list(text)
        found = self._ask(
            self._able,
            lambda m: propose(m, after),
            lambda m: m.behind(after),
        )
        self.crew.took(len(self._at_work), self._clock() - began)
        return found

    def _ranked(self, proposals: dict[int, list[Proposal]]) -> list[tuple[int, float]]:
        """Candidates, the one with the most confidence behind it first; with the largest of each.

        Members that name the same token count together. Routes say who drafts, not whose word
        counts: weighing votes by them lost a tenth of the accepted length in ``bench cosine``.
        """
        weights: dict[int, float] = {}
        largest: dict[int, float] = {}
        for named in proposals.values():
            for rank, (token, confidence, _, _) in enumerate(named):
                # A runner-up is there in case the first is wrong: it must not outvote another.
                vote = confidence * (RUNNER_UP if rank else 1.0)
                weights[token] = weights.get(token, 0.0) + vote
                largest[token] = max(largest.get(token, 0.0), confidence)
        first = {named[0].id for named in proposals.values() if named}
        order = sorted(weights, key=lambda t: (t not in first, -weights[t], t))
        return [(token, largest[token]) for token in order]

    def _fused(self, ask: Ask) -> tuple[Guess, list[Step]]:
        """One token a step goes to all, the other candidates hang beside it."""
        text, now, steps = list(ask.ids), ask.standing, []
        reach, beside, stopped = 1.0, [], False
        for depth in range(ask.count):
            proposals = self._step(text, ask.propose)
            (token, confidence), *others = self._ranked(proposals)
            if confidence < ask.floor:
                break
            steps.append(Step(proposals, token, others, confidence))
            beside += [(reach * self.odds.of(p, side=True), depth, t, p) for t, p in others]
            reach *= self.odds.of(confidence, side=False)
            text.append(token)
            if token in self._eos:
                break
            if depth + 1 < ask.count and (stopped := ask.stop()):
                break
        room = max(0, now.nodes - len(steps))
        worth = sorted((b for b in beside if b[0] >= now.price), reverse=True)[:room]
        guess = comb(steps, [(depth, t, p) for _, depth, t, p in worth])
        return replace(guess, stopped=stopped), steps

    def _union(self, ask: Ask) -> tuple[Guess, list[Step]]:
        """Each member goes on with its own chain: the tree is what they come to."""
        tree, steps, stopped = Tree(), [], False
        ends = {member: (ROOT, list(ask.ids)) for member in self.steps.members}
        for depth in range(ask.count):
            texts = {member: own for member, (_, own) in ends.items()}
            found = self._ask(
                self._able,
                lambda m: ask.propose(m, texts[m]),  # noqa: B023 - called before it changes
                lambda m: m.behind(texts[m]),  # noqa: B023
            )
            for i, named in found.items():
                member = self.steps.members[i]
                node, own = ends[member]
                if len(tree.tokens) < ask.standing.nodes:
                    node = tree.add(named[0].id, node, named[0].confidence)
                    ends[member] = node, [*own, named[0].id]
            best = max((named[0] for named in found.values()), key=lambda p: p.confidence)
            if best.confidence < ask.floor:
                break
            steps.append(Step(found, best.id, [], best.confidence))
            if best.id in self._eos:
                break
            if depth + 1 < ask.count and (stopped := ask.stop()):
                break
        return replace(tree.guess(), stopped=stopped), steps

    # --- learning ---------------------------------------------------------------------------

    def learn(self, verified: Sequence[int], now: Standing) -> None:
        """What was committed since says who was right."""
        for request in [r for r in self.router.routes if r[0] == now.request[0]]:
            if request != now.request:  # an earlier answer of the same session
                self._forget(request)
        drafts = self._drafts.get(now.request, [])
        while drafts and drafts[0].start < len(verified):
            draft = drafts[0]
            text = verified[draft.start :]
            depth = len(draft.steps)
            passed = self._judge(draft, text, now)
            if passed == len(text) and len(text) < depth:
                return  # right so far: the rest is still to be judged
            self.router.route(now.request, now.key).accepts(
                len(follow(draft.guess.tokens, self._parents(draft), text)), depth
            )
            drafts.pop(0)
            if passed < depth:
                drafts.clear()  # they hung from what was refused

    def _parents(self, draft: Draft) -> Sequence[int]:
        return draft.guess.parents or range(ROOT, len(draft.guess.tokens) - 1)

    def _judge(self, draft: Draft, text: Sequence[int], now: Standing) -> int:
        """Learn from the steps that the text reached; how many of them the chain had right."""
        route = self.router.route(now.request, now.key)
        for at, step in enumerate(draft.steps):
            if at >= len(text):
                return at
            truth = text[at]
            right = step.chain == truth
            if at >= draft.judged:
                draft.judged = at + 1
                self.crew.judged(draft.size, right)
                self.odds.observe(step.confidence, right, side=False)
                for token, confidence in step.sides:
                    self.odds.observe(confidence, token == truth, side=True)
                firsts = {member: named[0] for member, named in step.proposals.items()}
                route.observe(
                    {
                        member: signal(first.confidence, self._likeness(first.id, truth))
                        for member, first in firsts.items()
                    }
                )
            if not right:
                return at
        return len(draft.steps)

    def _likeness(self, token: int, truth: int) -> float:
        return 1.0 if token == truth else self._similarity(token, truth)

    def _forget(self, request: Request) -> None:
        self._drafts.pop(request, None)
        self.router.end(request)
