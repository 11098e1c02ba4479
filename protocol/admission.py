"""Whether the cloud takes an answer: everything about an open that can be refused by its fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from outrider.protocol.errors import SessionError
from outrider.protocol.logprobs import MAX_TOP
from outrider.protocol.messages import Open

if TYPE_CHECKING:
    from outrider.protocol.table import CloudConfig

MAX_STOPS, MAX_STOP_CHARS = 64, 4096
"""Stop strings of an answer, and characters of all of them together."""


CHARS_A_TOKEN = 32
"""Characters for each id of the context beyond which text is refused before it is tokenized: real
text has 2 to 6 a token, runs of spaces more."""


def check_text(request: Open, config: CloudConfig) -> None:
    """Refuse messages or text that could not fit, before any work is spent on them.

    Raises:
        SessionError: too long.
    """
    limit = config.n_ctx * CHARS_A_TOKEN
    size = len(request.text or "") + sum(map(_size, request.messages or ()))
    if size > limit:
        raise SessionError(
            f"the prompt has more than {limit} characters; the context of {config.n_ctx} tokens "
            "cannot hold it. Shorten it, or start the cloud with a larger context.",
            code="prompt_too_long",
        )


def _size(value: object) -> int:
    """Characters in a message, and one for every other thing in it."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(_size(k) + _size(v) for k, v in value.items())
    if isinstance(value, list | tuple):
        return len(value) + sum(map(_size, value))
    return 1


def check_bounds(max_tokens: int, stops: Sequence[str], most: int) -> None:
    """What either end refuses of how far an answer goes; ``most`` tokens are allowed.

    Raises:
        SessionError: ``max_tokens`` or the stops are out of bounds.
    """
    if not 0 < max_tokens <= most:
        raise SessionError(f"max_tokens is {max_tokens}; it must be 1 to {most}", code="max_tokens")
    if "" in stops or len(stops) > MAX_STOPS or sum(map(len, stops)) > MAX_STOP_CHARS:
        raise SessionError(
            f"stop strings must not be empty; at most {MAX_STOPS} of {MAX_STOP_CHARS} "
            "characters in all are allowed",
            code="stops",
        )


def check_open(request: Open, length: int, config: CloudConfig) -> None:
    """Refuse what cannot be honoured, with the numbers. ``length``: ids of the whole sequence.

    Raises:
        SessionError: with a code that names what is wrong.
    """
    _check_prompt(request, length, config)
    check_bounds(request.max_tokens, request.stops, config.limits.max_tokens)
    if request.tools and not config.tools:
        raise SessionError("this target's chat template has no place for tools", code="unsupported")
    _check_logprobs(request)
    _check_grammar(request, config)
    _check_collaborators(request, config)
    for token, _ in request.sampling.logit_bias:
        if token >= config.vocabulary.size:
            raise SessionError(
                f"logit_bias names token {token}; the vocabulary has {config.vocabulary.size}",
                code="logit_bias",
            )


def _check_logprobs(request: Open) -> None:
    if request.logprobs is None:
        return
    if not 0 <= request.logprobs <= MAX_TOP:
        raise SessionError(
            f"logprobs asks for {request.logprobs} alternatives; at most {MAX_TOP} are told",
            code="logprobs",
        )
    if request.sampling.collaborate is not None:
        raise SessionError(
            "log-probabilities are the target's, and this text is that of two models together",
            code="logprobs",
        )


def _check_grammar(request: Open, config: CloudConfig) -> None:
    if request.grammar is None:
        return
    if config.constrain is None:
        raise SessionError(
            "this cloud cannot hold text to a form: llguidance is not installed there, or the "
            "target has no end token",
            code="unsupported",
        )
    if request.sampling.collaborate is not None or request.ignore_eos:
        raise SessionError(
            "a form goes with neither a combination of models nor ignore_eos", code="grammar"
        )
    config.constrain(request.grammar)


def _check_collaborators(request: Open, config: CloudConfig) -> None:
    """The models that take part are here, and each has its weight."""
    together = request.sampling.collaborate
    weighed = tuple(name for name, _ in together.cloud) if together else ()
    if request.collaborators != weighed:
        raise SessionError(
            f"collaborators {list(request.collaborators)} and weights of {list(weighed)}: the "
            "models that take part must be those that have a weight",
            code="collaborators",
        )
    if wrong := unknown(weighed, config.collaborators):
        raise SessionError(wrong, code="collaborators")


def unknown(asked: Sequence[str], hosted: Sequence[str]) -> str | None:
    """What is said of the first model that a cloud is asked for and does not host."""
    lacking = next((name for name in asked if name not in hosted), None)
    if lacking is None:
        return None
    known = ", ".join(map(repr, hosted)) or "none"
    return (
        f"this cloud hosts no model {lacking!r} beside its target; it hosts: {known}. "
        f"Start it with --collaborator {lacking}=PATH, or leave {lacking!r} out."
    )


def _check_prompt(request: Open, length: int, config: CloudConfig) -> None:
    """The prompt must leave room for an answer; an answer given back may fill the context."""
    if length == 0:
        raise SessionError("the prompt is empty", code="prompt_empty")
    prompt = request.prompt_len if request.ids else length
    if not 0 < prompt <= length:
        raise SessionError(f"prompt length {prompt} of {length}", code="prompt")
    limit = min(config.n_ctx - 1, config.limits.max_prompt)
    if prompt > limit or length > config.n_ctx:
        raise SessionError(
            f"the prompt has {prompt} tokens; at most {limit} fit in the context of "
            f"{config.n_ctx}. Shorten it, or start the cloud with a larger context.",
            code="prompt_too_long",
        )
