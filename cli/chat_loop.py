"""The loop of a chat: read what the user says, do it or ask the target, until the user leaves."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from msgspec.structs import replace

from outrider.cli import logs, report
from outrider.cli.chat_commands import Quit, obey
from outrider.cli.chat_input import Reader, Said
from outrider.cli.chat_link import ChatLink
from outrider.cli.chat_screen import Screen, note
from outrider.cli.chat_talk import Conversation, known
from outrider.cli.chat_turn import Outcome, Turn
from outrider.cli.edge import Edge
from outrider.cli.exits import WorkFailedError
from outrider.cli.prompt import fresh_seed
from outrider.edge_client.offline import UNVERIFIED
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.errors import OutriderError, SessionError, SettingError
from outrider.protocol.request import Request

FULL = "prompt_too_long"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSettings:
    """What is the same for every answer. ``seed`` None: a fresh one each time."""

    sampling: Sampling
    seed: int | None
    max_tokens: int
    stops: tuple[str, ...] = ()
    ignore_eos: bool = False
    as_json: bool = False


class Chat:
    """One conversation over one link."""

    def __init__(
        self,
        edge: Edge,
        link: ChatLink,
        talk: Conversation,
        screen: Screen,
        settings: ChatSettings,
        *,
        interactive: bool,
    ) -> None:
        self.edge, self.link, self.talk, self.screen = edge, link, talk, screen
        self.settings = settings
        self.interactive = interactive
        self.session = link.client.session()
        self.target = link.client.welcome.model
        self.objective: str | None = None
        self.outcomes: list[Outcome] = []
        self.unanswered: str | None = None
        self.retries = 0
        # The cloud writes the messages out itself where its template is another one.
        self.renders = talk.plain or link.client.welcome.same_template

    def greet(self) -> None:
        """Who answers, how, and how to find out more."""
        note(f"target {self.target} at {self.link.client.url}")
        note(self.mode())
        note("/help lists the commands; Ctrl-C cancels an answer, Ctrl-D leaves")

    def run(self, reader: Reader) -> None:
        """Until the input ends. A script ends at its first error, a person may go on.

        Raises:
            OutriderError: in a script, what went wrong. KeyboardInterrupt: it was interrupted.
        """
        while (said := reader.read()) is not None:
            try:
                self._take(said)
            except Quit:
                return
            except OutriderError as error:
                if not self.interactive:
                    raise
                note(f"error: {error}")
            except KeyboardInterrupt:
                if not self.interactive:
                    raise
                print(file=sys.stderr)

    def _take(self, said: Said) -> None:
        text = said.text
        if not said.quoted and text.startswith("//"):
            text = text[1:]
        elif not said.quoted and text.startswith("/"):
            obey(self, text)
            return
        if text.strip():
            self.retries = 0
            self.turn(text)

    # --- an answer --------------------------------------------------------------------------

    def turn(self, text: str) -> None:
        """Ask, show the answer, keep what there is of it.

        Raises:
            OutriderError: why it broke off or was never begun; the chat can go on.
        """
        self.talk.say(text)
        self.unanswered = text
        try:
            request = self._request()
        except OutriderError:
            self.talk.answered("")
            raise
        for notice in self.link.pending():
            note(notice)
        turn = Turn(self.link, self.session, self.screen, self.edge.options.reconnect)
        answer = ""
        try:
            outcome = turn.take(request)
            answer = outcome.answer.text
        finally:
            self.talk.answered(answer)
        self.outcomes.append(outcome)
        self.unanswered = None if answer else text
        self._report(outcome)

    def _request(self) -> Request:
        ids: list[int] = []
        base = 0
        if self.renders:
            ids = self.talk.ids(self.edge.tokenizer)
            self._check_room(len(ids))
            base = known(self.session, ids)
        settings = self.settings
        seed = fresh_seed() if settings.seed is None else settings.seed + self.retries
        return Request(
            max_tokens=settings.max_tokens,
            sampling=replace(settings.sampling, seed=seed),
            base=base,
            ids=tuple(ids[base:]),
            messages=None if self.talk.plain else tuple(self.talk.messages),
            templated=self.renders and not self.talk.plain,
            stops=settings.stops,
            ignore_eos=settings.ignore_eos,
            objective=self.objective,
        )

    def _check_room(self, length: int) -> None:
        """Before anything is sent: the cloud would say the same in other words."""
        n_ctx = self.link.client.welcome.n_ctx
        if length >= n_ctx:
            raise SettingError(
                f"the conversation has {length} tokens, and {n_ctx - 1} fit in the target's "
                "context. /clear begins a new one; /save FILE keeps this one"
            )

    # --- afterwards -------------------------------------------------------------------------

    def _report(self, outcome: Outcome) -> None:
        if self.settings.as_json:
            report.print_json(self._figures(outcome))
        elif logs.verbose():
            note(report.summary(outcome.answer, self.mode()))
            cached, prompt = outcome.answer.cached, len(outcome.answer.prompt_ids)
            note(f"{cached} of the prompt's {prompt} tokens were cached")
        for text in self.link.pending():
            note(text)
        if outcome.cancelled:
            self._cancelled(outcome)
        elif outcome.error is not None:
            self._failed(outcome)
        elif outcome.answer.reason == UNVERIFIED:
            raise WorkFailedError(
                f"the link did not come back: {outcome.answer.unverified_tokens} tokens are not "
                "verified, and no part of the conversation. /retry asks again"
            )
        elif outcome.answer.reason == "length":
            self._cut()
        elif not outcome.answer.text:
            note("note: the answer is empty")

    def _cancelled(self, outcome: Outcome) -> None:
        if not self.interactive:
            raise KeyboardInterrupt
        kept = "what there was is kept" if outcome.answer.text else "the message was taken back"
        note(f"cancelled; {kept}; /retry asks again")

    def _failed(self, outcome: Outcome) -> None:
        error = outcome.error
        assert error is not None
        if isinstance(error, SessionError) and error.code == FULL:
            raise SettingError(f"{error} /clear begins a new one; /save FILE keeps this one")
        raise error

    def _cut(self) -> None:
        """The answer is not at its end, for one of two reasons."""
        n_ctx = self.link.client.welcome.n_ctx
        if len(self.session.ids) >= n_ctx:
            note(
                f"note: the target's context is full ({n_ctx} tokens): the answer was cut here. "
                "/clear begins a new one; /save FILE keeps this one"
            )
        elif self.interactive or logs.verbose():
            note(f"note: cut after {self.settings.max_tokens} tokens (--max-tokens)")

    def mode(self) -> str:
        """Whether and how it drafts."""
        switch = self.link.switch
        if switch is None:
            return self.edge.mode
        if not switch.on:
            return "plain cloud streaming: drafting is off (/draft on)"
        degraded = self.outcomes[-1].answer.degraded if self.outcomes else None
        if degraded:
            return f"plain cloud streaming: the drafter failed: {degraded}"
        why, last = self.reason(), self.outcomes[-1].answer if self.outcomes else None
        if why and last is not None and not last.drafted:
            return f"plain cloud streaming with {self.edge.drafter_name} at hand: {why}"
        return self.edge.mode

    def reason(self) -> str | None:
        """Why the policy does what it does now, where that says more than the mode."""
        switch = self.link.switch
        return switch.reason if switch and switch.reason not in ("", "off", "fixed") else None

    def _figures(self, outcome: Outcome) -> dict[str, object]:
        error = outcome.error
        return report.figures(outcome.answer) | {
            "turn": len(self.outcomes),
            "drafter": self.edge.drafter_name,
            "target": self.target,
            "mode": self.mode(),
            "reason": self.reason(),
            "reconnects": self.link.client.courier.reconnects,
            "error": None if error is None else str(error),
            **(report.unverified(outcome.answer) if self.edge.options.offline else {}),
        }
