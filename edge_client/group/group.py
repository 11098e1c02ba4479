"""Several drafters that make one tree of guesses, after CoSine (arXiv 2503.10325).

A draft goes in steps. In each, all chosen members propose at once, each where it is of most use to
the tree (:mod:`outrider.edge_client.group.growth`); what they name for one place is weighed into
one ranking (:mod:`outrider.edge_client.group.pool`), and all go on from what that came to. Chances
only decide *which* guesses are made and in what order: the verifier takes the child that equals the
target's own coupled choice, whatever was guessed, so the text depends on the target and the seed
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import Protocol, TypeVar

from outrider.edge_client.group.crew import Crew, Hearing, Odds
from outrider.edge_client.group.draft import Ask, Draft, Step, Tree
from outrider.edge_client.group.growth import Growth, Named, Path
from outrider.edge_client.group.members import Member
from outrider.edge_client.group.pool import Candidate, Noise, log_probabilities, pooled
from outrider.edge_client.group.routing import Route, Router, Similarity, same, signal
from outrider.protocol.decoding.rules import Proposal, shared_noise
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.decoding.sparse import Budget
from outrider.protocol.decoding.trees import ROOT, follow
from outrider.protocol.errors import AwayError
from outrider.runtime.lm.drafter import Guess, Standing

T = TypeVar("T")
Request = tuple[int, int]


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
    width: int = 4
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
        self.odds = (Odds(), Odds())
        self.hearing = (Hearing(), Hearing())
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

            def draw(member: Member) -> Guess:
                if member.drafter is None:  # its distributions are not sent about
                    return Guess((), ())
                return member.drafter.draft(
                    ids, prompt_len, sampling, count,
                    never=never, floor=floor, budget=budget, stop=stop,
                )  # fmt: skip

            def here(ready: list[int]) -> list[int]:
                found = [i for i in ready if self.steps.members[i].drafter is not None]
                return route.choose(found or ready, 1, lambda _: 0.0)

            guesses = self._ask(here, draw, lambda m: m.behind(ids) + count)
            return next(iter(guesses.values()))
        size = self.crew.most if self.settings.fixed else self.crew.size(now.round, now.load)
        self._at_work = self._chosen(route, size) or self._at_work
        pays = now.price < 1.0 or len(self._at_work) > 1
        width = self.settings.width if pays else 1

        def propose(member: Member, after: list[int]) -> list[Proposal]:
            return member.propose(after, prompt_len, sampling, width, never)

        ask = Ask(tuple(ids), count, propose, now, floor, stop, sampling)
        guess, steps = self._fused(ask, route) if self.settings.fuse else self._union(ask)
        if guess.tokens:
            draft = Draft(len(ids), guess, steps, len(self._at_work), sampling)
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

    def _fused(self, ask: Ask, route: Route) -> tuple[Guess, dict[int, Step]]:
        """Members propose where they are of most use, and hear of what all came to."""
        members = range(len(self.steps.members))
        hearing = self.hearing[ask.sampling.temperature > 0]
        weights = route.weights(members)
        heard = None if hearing.equals else weights

        def rank(path: Path, named: Named) -> list[Candidate]:
            noise = partial(shared_noise, ask.sampling, len(ask.ids) + len(path))
            return pooled(named, heard, noise)

        def able(ready: list[int]) -> list[int]:
            return sorted(self._able(ready), key=lambda i: (-weights[i], i))

        odds = self._odds(ask.sampling)
        growth = Growth(rank, odds.of, ask.standing.price, ask.floor, self._eos, hearing.again)
        count, stopped = 0, False
        while count < ask.count:
            ready = self.steps.ready()
            if count and ((ready and not growth.places(able(ready))) or (stopped := ask.stop())):
                break
            self._step(ask, growth, able)
            count += 1
        guess, steps = growth.best(ask.standing.nodes)
        return replace(guess, stopped=stopped, steps=count), steps

    def _step(self, ask: Ask, growth: Growth, able: Callable[[list[int]], list[int]]) -> None:
        """Members propose side by side; who is away or late is passed by."""
        places: dict[Member, Path] = {}

        def choose(ready: list[int]) -> list[int]:
            found = growth.places(able(ready))
            places.update({self.steps.members[i]: path for i, path in found.items()})
            return list(found)

        def text(member: Member) -> list[int]:
            return [*ask.ids, *places[member]]

        began = self._clock()
        found = self._ask(choose, lambda m: ask.propose(m, text(m)), lambda m: m.behind(text(m)))
        self.crew.took(len(self._at_work), self._clock() - began)
        for i, proposals in found.items():
            growth.take(places[self.steps.members[i]], i, proposals)
        growth.weigh(sorted({places[self.steps.members[i]] for i in found}))

    def _odds(self, sampling: Sampling) -> Odds:
        """What is known of candidates, greedy ones or sampled ones."""
        return self.odds[sampling.temperature > 0]

    def _union(self, ask: Ask) -> tuple[Guess, dict[int, Step]]:
        """Each member goes on with its own chain: the tree is what they come to."""
        tree, steps, stopped = Tree(), dict[int, Step](), False
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
                steps.setdefault(node, Step({}, [])).proposals[i] = named
                if len(tree.tokens) < ask.standing.nodes:
                    node = tree.add(named[0].id, node, named[0].confidence)
                    ends[member] = node, [*own, named[0].id]
            best = max((named[0] for named in found.values()), key=lambda p: p.confidence)
            if best.confidence < ask.floor or best.id in self._eos:
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
            passed = follow(draft.guess.tokens, draft.parents, text)
            self._judge(draft, passed, text, now)
            end = passed[-1] if passed else ROOT
            if len(passed) == len(text) and end in draft.parents:
                return  # right so far: the rest is still to be judged
            route = self.router.route(now.request, now.key)
            route.accepts(len(passed), draft.guess.depth)
            drafts.pop(0)
            if end != draft.end:
                drafts.clear()  # they hung from what was refused

    def _judge(
        self, draft: Draft, passed: Sequence[int], text: Sequence[int], now: Standing
    ) -> None:
        """Learn from the steps after the nodes that the text passed, each once."""
        route = self.router.route(now.request, now.key)
        for at, (node, truth) in enumerate(zip((ROOT, *passed), text, strict=False)):
            step = draft.steps.get(node)
            if at < draft.judged or step is None:
                continue
            draft.judged = at + 1
            if node in draft.parents:
                self.crew.judged(draft.size, at < len(passed))
            for candidate in step.candidates:
                self._odds(draft.sampling).observe(candidate, candidate.id == truth)
            named = {member: found for member, found in step.proposals.items() if found}
            route.observe(
                {
                    member: signal(found[0].confidence, self._likeness(found[0].id, truth))
                    for member, found in named.items()
                }
            )
            noise = partial(shared_noise, draft.sampling, draft.start + at)
            if len(named) > 1:
                self._heard(draft.sampling, route.weights(list(named)), named, noise, truth)
            logs = {m: log_probabilities([truth], found, noise) for m, found in named.items()}
            route.foresaw({member: float(log[0]) for member, log in logs.items()})

    def _heard(
        self,
        sampling: Sampling,
        weights: dict[int, float],
        named: Named,
        noise: Noise,
        truth: int,
    ) -> None:
        """Several were asked about one place: who was right."""
        most = max(weights, key=lambda member: (weights[member], -member))
        self.hearing[sampling.temperature > 0].observe(
            alike=pooled(named, None, noise)[0].id == truth,
            weighed=pooled(named, weights, noise)[0].id == truth,
            alone=named[most][0].id == truth,
        )

    def _likeness(self, token: int, truth: int) -> float:
        return 1.0 if token == truth else self._similarity(token, truth)

    def _forget(self, request: Request) -> None:
        self._drafts.pop(request, None)
        self.router.end(request)
