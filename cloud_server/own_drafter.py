"""The verifier's own draft model: when to ask it, for how many guesses, and what became of them.

With it the whole is not slower than co-located speculation, whatever the link. It runs on the
target's thread, in turns with the passes, so a guess has to be worth the time it takes. Its guesses
stand behind the edge's in one chain, and one that is refused ends nothing at the edge.

Sans-thread, sans-clock and without a model: the engine asks, a driver runs :class:`OwnDraft`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from outrider.cloud_server.estimate import Acceptance
from outrider.cloud_server.scheduler import own_count, own_rate
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.errors import BackendError, SettingError
from outrider.protocol.fingerprint import (
    Vocabulary,
    describe_difference,
    differing_specials,
    first_segment,
)
from outrider.protocol.session import CloudSession
from outrider.runtime.lm.base import common_prefix
from outrider.runtime.lm.drafter import Guess

FIRST_READ, LEAST_READ = 32, 8
"""Ids read at once before it is known how long that takes, and at least. Fewer than a piece are
read along with the first guess."""

READ_SHARE = 0.5
"""A piece of reading lasts at most this share of a pass, since it comes before one."""

FAR = 128
"""Tokens for which reading a text is expected to pay, at most: an answer may end any time."""

TRIAL, TRIAL_GUESSES = 64, 2
"""After so many passes without guesses, because they did not pay, it is given another chance."""

COLD = 3
"""Times that it is asked for a few guesses, whether they pay or not, to measure its step."""

WORST_START = 0.3
"""Acceptance with which an answer begins at least: the last one may have been another matter."""

WORTH_TURNS = 1.05
"""By how much faster the whole must become for two answers to share the cache in turns."""

STEP_GAIN = 1 / 8


class Source(Protocol):
    """What is asked of the draft model between works; see :class:`outrider.runtime.lm.drafter`."""

    @property
    def n_ctx(self) -> int:
        """Ids that its context holds."""

    def behind(self, ids: Sequence[int]) -> int:
        """How many of ``ids`` it has not evaluated."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What to ask for: ``read`` ids of the text, or ``count`` guesses at what follows it.

    ``tokens`` are expected to be right of those, ``seconds`` is how long they take; co-located
    speculation makes ``rate`` tokens a second.
    """

    read: int
    count: int
    tokens: float
    seconds: float
    rate: float


@dataclass(frozen=True, slots=True)
class OwnDraft:
    """Read up to ``read`` more of ``ids`` or, if that is 0, guess ``count`` tokens after them.

    ``ids`` are the session's first ``length`` ids and the edge's live guesses; ``behind`` of them
    were not evaluated.
    """

    session: CloudSession
    begun: int
    length: int
    ids: tuple[int, ...]
    prompt_len: int
    sampling: Sampling
    read: int
    count: int
    behind: int
    never: frozenset[int]
    started: float


@dataclass(slots=True)
class _Answer:
    """Of one answer: how good the guesses were, and the last ones: a path from ``base`` on.

    Its last ``guessed`` ids are ours, those before them the edge's guesses that they follow.
    ``asked`` is the length of the text at which the drafter was last asked: once a length.
    """

    begun: int
    acceptance: Acceptance
    base: int = 0
    path: tuple[int, ...] = ()
    guessed: int = 0
    asked: int = -1
    seen: int = -1
    idle: int = 0


class OwnDrafter:
    """Owns what is known of the draft model and its guesses. ``longest``: guesses at a time.

    ``never`` are ids that it must not guess. ``failed`` is the error that ended it, if one did. A
    text that outgrows its context goes on without it; ``outgrown``: that has happened.
    """

    def __init__(
        self, source: Source, longest: int = 16, never: frozenset[int] = frozenset()
    ) -> None:
        self.source = source
        self.longest = longest
        self.never = never
        self.failed: BackendError | None = None
        self.outgrown = False
        self._cold = COLD
        self.acceptance = Acceptance()
        self.step: float | None = None
        self.read_each: float | None = None
        self._holder: CloudSession | None = None
        self._answers: dict[bytes, _Answer] = {}

    def forget(self, alive: set[bytes]) -> None:
        """Only these sessions are still there."""
        self._answers = {key: value for key, value in self._answers.items() if key in alive}

    def guesses(self, session: CloudSession, chain: Sequence[int]) -> tuple[int, ...]:
        """What it guessed behind the session's ids and the edge's live guesses ``chain``."""
        answer = self._of(session)
        ahead = (*session.ids[answer.base :], *chain)
        if not answer.path or len(session.ids) < answer.base:
            return ()
        return answer.path[len(ahead) :] if answer.path[: len(ahead)] == ahead else ()

    def wish(
        self,
        session: CloudSession,
        chain: Sequence[int],
        *,
        reached: float,
        pass_time: float,
        each: float,
        sharers: int,
        room: int,
        lately: float = 0.0,
    ) -> Wish | None:
        """What to ask for before the next pass over this session; None: nothing.

        ``reached`` is the probability that all of ``chain`` is right; ``pass_time`` is what a pass
        costs, in seconds of the user, without our guesses, of which each adds ``each``; ``sharers``
        sessions wait for that pass, ``room`` guesses can matter. ``lately`` is how many tokens a
        second the answer made with the edge's help, which may be more than we would make alone.
        """
        answer, length = self._of(session), len(session.ids)
        text = length + len(chain)
        self.outgrown = self.outgrown or text >= self.source.n_ctx
        room = min(room, self.longest, self.source.n_ctx - text)
        if self.failed is not None or answer.asked == length or room <= 0:
            return None
        if answer.seen != length:
            answer.seen, answer.idle = length, answer.idle + 1
        behind = self.source.behind((*session.ids, *chain))
        step = (self.step or 0.0) * sharers + each
        # Another answer's text is in its cache: both would be read again in every turn.
        turns = self._holder is not session and self._holder is not None and self._holder.active
        fixed = pass_time + (behind * (self.read_each or 0.0) * sharers if turns else 0.0)
        alpha = answer.acceptance.alpha
        rate = own_rate(alpha, step, fixed, self.longest)
        count = own_count(reached, alpha, step, max(rate, lately), room)
        if self._on_trial(answer):
            count = min(TRIAL_GUESSES, room)
        if not count or (turns and rate < WORTH_TURNS / pass_time):
            return None
        if behind <= self._piece(pass_time):
            tokens = reached * alpha * (1 - alpha**count) / (1 - alpha)
            return Wish(0, count, tokens, count * (self.step or 0.0), rate)
        if turns:
            return None  # read piece by piece, each would undo the other's reading for ever
        saved = FAR * (1 / rate - pass_time) + behind * (self.read_each or 0.0)
        return None if saved > 0 else Wish(self._piece(pass_time), 0, 0.0, 0.0, rate)

    def _on_trial(self, answer: _Answer) -> bool:
        """Whether to ask for a few guesses even if they do not pay, to see what they would do."""
        if answer.idle > TRIAL:
            answer.acceptance = self._start()
            return True
        return self._cold > 0

    def _piece(self, pass_time: float) -> int:
        """Ids to read at once."""
        if not self.read_each:
            return FIRST_READ
        return max(LEAST_READ, int(READ_SHARE * pass_time / self.read_each))

    def work(self, session: CloudSession, chain: Sequence[int], wish: Wish, now: float) -> OwnDraft:
        """The wish as work. It is asked for once at this length of the text."""
        answer = self._of(session)
        answer.asked, answer.idle = len(session.ids), 0
        self._holder = session
        ids = (*session.ids, *chain)
        return OwnDraft(
            session=session,
            begun=session.begun,
            length=len(session.ids),
            ids=ids,
            prompt_len=session.prompt_len,
            sampling=session.request.sampling if session.request else Sampling(),
            read=wish.read,
            count=wish.count,
            behind=self.source.behind(ids),
            never=self.never,
            started=now,
        )

    def done(self, work: OwnDraft, result: Guess | BackendError, now: float) -> bool:
        """Take a result back; False if the text went another way meanwhile, or it failed."""
        if isinstance(result, BackendError):
            self.failed = result
            return False
        seconds = now - work.started
        if work.read:
            self.read_each = seconds / min(work.read, work.behind)
            return True
        if result.tokens:
            reading = max(0, work.behind - 1) * (self.read_each or 0.0)
            step = max(0.0, seconds - reading) / len(result.tokens)
            known = step if self.step is None else self.step
            # The first are slower than those to come: caches are cold.
            usual = known + STEP_GAIN * (step - known)
            self.step = min(known, step) if self._cold else usual
            self._cold = max(0, self._cold - 1)
        session = work.session
        if session.begun != work.begun or len(session.ids) < work.length:
            return False
        answer = self._of(session)
        answer.base, answer.path = work.length, (*work.ids[work.length :], *result.tokens)
        answer.guessed = len(result.tokens)
        return True

    def alpha(self, session: CloudSession) -> float:
        """How likely each of its guesses for this answer is right."""
        return self._of(session).acceptance.alpha

    def committed(self, session: CloudSession) -> None:
        """The text grew: what it says of the last guesses, whether a pass looked at ours or not."""
        answer = self._of(session)
        if not answer.guessed:
            return
        text = session.ids[answer.base : answer.base + len(answer.path)]
        right = common_prefix(text, list(answer.path))
        if right == len(text) < len(answer.path):
            return  # right so far, and there is more
        first = len(answer.path) - answer.guessed
        refused = right >= first and right < len(answer.path)
        for acceptance in (self.acceptance, answer.acceptance):
            acceptance.observe(max(0, right - first), refused)
        answer.path, answer.guessed = (), 0

    def _of(self, session: CloudSession) -> _Answer:
        answer = self._answers.get(session.key)
        if answer is None or answer.begun != session.begun:
            answer = self._answers[session.key] = _Answer(session.begun, self._start())
        return answer

    def _start(self) -> Acceptance:
        """What an answer expects of the drafter before it has seen it."""
        return Acceptance(max(WORST_START, self.acceptance.alpha))


def check_vocabulary(
    target: Vocabulary, other: Vocabulary, what: str = "the draft model"
) -> frozenset[int]:
    """Special ids that the other model, ``what``, must never guess, since they differ.

    Raises:
        SettingError: ordinary tokens differ; the first of them are named.
    """
    index = first_segment(target.segments(), other.segments())
    if index is not None:
        named = describe_difference(index, target.segment(index), other.segment(index))
        raise SettingError(
            f"{what} has another tokenizer than the target (here: the target, there: {what}): "
            f"{named}"
        )
    return differing_specials(target.specials, other.specials)
