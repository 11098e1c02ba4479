"""What an answer is asked for with, at the edge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outrider.protocol.decoding.sampling import Sampling

NEUTRAL = Sampling()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What an answer depends on. Ids are in the target's vocabulary.

    The session keeps its first ``base`` committed ids; the prompt goes on with ``ids``, or with
    what the cloud makes of ``messages`` or ``text``. Where ``ids`` were rendered here by the
    template (``templated``), ``messages`` is kept as well for a cloud whose template differs.
    ``objective`` is what to optimise; the cloud may grant a cheaper one. ``logprobs``: how many
    alternatives are wanted with the target's log-probability of each token; None: not even that.
    ``grammar`` is the form that the text must have; ``tools`` are for the cloud's template, where
    it renders the messages.
    ``prompt_len``: the answer was under way elsewhere, and of all ids only so many are its prompt.
    """

    max_tokens: int
    sampling: Sampling = NEUTRAL
    base: int = 0
    ids: tuple[int, ...] = ()
    messages: tuple[dict[str, Any], ...] | None = None
    text: str | None = None
    templated: bool = False
    stops: tuple[str, ...] = ()
    ignore_eos: bool = False
    objective: str | None = None
    logprobs: int | None = None
    grammar: str | None = None
    tools: tuple[dict[str, Any], ...] | None = None
    prompt_len: int | None = None

    def asked(self, ids: tuple[int, ...]) -> dict[str, Any]:
        """The fields of an open that say what is asked for, with ``ids`` where they are known."""
        return {
            "ids": ids,
            "messages": None if ids else self.messages,
            "text": None if ids else self.text,
            "templated": self.templated and bool(ids),
            "sampling": self.sampling,
            "max_tokens": self.max_tokens,
            "stops": self.stops,
            "ignore_eos": self.ignore_eos,
            "objective": self.objective,
            "logprobs": self.logprobs,
            "grammar": self.grammar,
            "tools": None if ids else self.tools,
            "collaborators": self.collaborators,
        }

    @property
    def collaborators(self) -> tuple[str, ...]:
        """The cloud's models that take part beside its target."""
        together = self.sampling.collaborate
        return tuple(name for name, _ in together.cloud) if together else ()
