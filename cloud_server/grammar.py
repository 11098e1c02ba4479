"""Text that must be of some form: which tokens may come next, by llguidance.

Constrained text is the target's own: at each position the tokens that the form forbids are taken
off its distribution, before anything else is done to it. What is allowed is a function of the
answer's tokens alone, so drafts, restarts and reconnections change nothing; a guess that the form
forbids is a guess that is refused.

The form is that of ``Open.grammar``: a JSON object with ``json``, a JSON Schema (``true``: any
value); ``before`` and ``after``, texts around it; ``many``, whether such pieces may be repeated,
a line each.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from outrider.protocol.errors import SessionError
from outrider.protocol.session import CloudSession

Mask = NDArray[np.bool_]

_PLAIN = '%llguidance {"no_forcing": true}'
"""Where only one text may follow, all ways of cutting it into tokens are allowed, as everywhere:
the library would leave one, by a tokenizer's rules, and the text would depend on those as well."""

MAX_FORM = 64 << 10
"""Characters of a form."""


def available() -> bool:
    """Whether llguidance is installed."""
    return importlib.util.find_spec("llguidance") is not None


class Form(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an answer's text must be; see the module."""

    json: dict[str, Any] | bool
    before: str = ""
    after: str = ""
    many: bool = False


class Grammars:
    """The forms of one target's answers.

    ``entries[i]`` are the bytes of id i; ``eos`` the ids that end an answer, at least one.
    """

    def __init__(self, entries: Sequence[bytes], eos: Collection[int]) -> None:
        self._entries, self._eos = entries, sorted(eos)
        self._constraints: dict[bytes, tuple[int, Constraint]] = {}

    def check(self, form: str) -> None:
        """Look at a form before an answer begins.

        Raises:
            SessionError: it is none, or a schema has what cannot be enforced.
        """
        import llguidance

        said = llguidance.LLMatcher.validate_grammar(_compiled(form))
        if said:
            raise SessionError(f"this form cannot be enforced: {_reason(said)}", code="grammar")

    def of(self, session: CloudSession) -> Constraint | None:
        """The constraint of the answer under way."""
        request = session.request
        if request is None or request.grammar is None:
            return None
        begun, known = self._constraints.get(session.key, (None, None))
        if begun != session.begun or known is None:
            known = self.constraint(request.grammar)
            self._constraints[session.key] = (session.begun, known)
        return known

    def constraint(self, form: str) -> Constraint:
        """A new one, at the beginning of an answer."""
        return Constraint(self, form)

    def forget(self, alive: Collection[bytes]) -> None:
        """Only these sessions are still there."""
        self._constraints = {k: v for k, v in self._constraints.items() if k in alive}

    def prepare(self) -> None:
        """Make what all constraints share, so that the first of them need not wait."""
        _ = self.tokenizer

    @cached_property
    def tokenizer(self) -> Any:
        """llguidance's table of the vocabulary; making it takes about a second for 150,000 ids."""
        import llguidance

        size = len(self._entries)
        return llguidance.LLTokenizer(
            _Words(self._entries, self._eos), n_vocab=size, eos_token=self._eos
        )


class Constraint:
    """What one answer may go on with. Not thread-safe: the target's thread owns it.

    ``error``: the form turned out to be too complex, and nothing it says counts.
    """

    def __init__(self, grammars: Grammars, form: str) -> None:
        self._grammars, self._form = grammars, form
        self._matcher: Any = None
        self._taken: list[int] = []
        self.error: str | None = None

    def allowed(self, output: Sequence[int]) -> Mask | None:
        """Which ids may follow the answer's first tokens: bool ``[usable]``.

        None if these are not allowed themselves, so that nothing can follow.
        """
        if self._matcher is None:
            import llguidance

            tokenizer = self._grammars.tokenizer
            self._matcher = llguidance.LLMatcher(tokenizer, _compiled(self._form), log_level=0)
        if self.error is None and not self._follow(output):
            return None
        mask = self._matcher.compute_bitmask() if self.error is None else b""
        if self._matcher.is_error():
            self.error = self._matcher.get_error().splitlines()[0]
        if self.error is not None:
            return None
        size = self._grammars.tokenizer.vocab_size
        bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
        return bits[:size].astype(np.bool_)

    def _follow(self, output: Sequence[int]) -> bool:
        """Be where these tokens lead; False if they break the form, and then stand before that."""
        shared = 0
        while shared < min(len(output), len(self._taken)) and output[shared] == self._taken[shared]:
            shared += 1
        if shared < len(self._taken):
            self._matcher.rollback(len(self._taken) - shared)
            del self._taken[shared:]
        rest = list(output[shared:])
        count = self._matcher.try_consume_tokens(rest)
        self._taken += rest[:count]
        return bool(count == len(rest))


class _Words:
    """The vocabulary as llguidance reads it: ends of an answer are special, all else is bytes."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, entries: Sequence[bytes], eos: Sequence[int]) -> None:
        self.tokens = list(entries)
        for token in eos:
            self.tokens[token] = f"<|end {token}|>".encode()
        self.eos_token_id, self.special_token_ids = eos[0], eos

    def __call__(self, text: bytes | str) -> list[int]:  # noqa: ARG002 - the library calls it
        """For what a form forces; see ``_PLAIN``."""
        return []


def _compiled(form: str) -> str:
    """The form in llguidance's words."""
    import llguidance

    if len(form) > MAX_FORM:
        raise SessionError(
            f"a form of {len(form)} characters; at most {MAX_FORM} are taken", code="grammar"
        )
    try:
        read = msgspec.json.decode(form, type=Form)
    except (msgspec.DecodeError, RecursionError) as error:
        raise SessionError(f"grammar is not a form: {error}", code="grammar") from None
    around = [_quoted(text) if text else "" for text in (read.before, read.after)]
    rules = {
        "start": 'piece ("\\n" piece)*' if read.many else "piece",
        "piece": " ".join(part for part in (around[0], "value", around[1]) if part),
        "value": f"%json {json.dumps(read.json)}",
    }
    lines = [_PLAIN, *(f"{name}: {rule}" for name, rule in rules.items())]
    return str(llguidance.LLMatcher.grammar_from_lark("\n".join(lines)))


def _reason(said: str) -> str:
    """Of an error of llguidance's the reason: without the grammar's lines, which are ours."""
    said = re.split(r"\n +\d+ \| start: piece", said, maxsplit=1)[0]
    said = re.sub(r"^at \d+\(\d+\): (failed to compile JSON schema: )?", "", said)
    return " ".join(said.split())


def _quoted(text: str) -> str:
    """A literal of the grammar language, which reads escapes as JSON does."""
    return json.dumps(text, ensure_ascii=False)
