"""The bodies of requests, read strictly: every known field is honoured or refused by name.

Field names are those of the OpenAI API; ``top_k``, ``min_p``, ``repetition_penalty`` and
``ignore_eos`` are the usual additions, ``outrider`` is ours. Fields unknown here are ignored.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from outrider.edge_client.endpoint.errors import bad, unsupported

MAX_CHOICES = 16
"""Most choices of one request, those of all its prompts together."""

MOST_DIGITS = 10
"""Digits of a token id: the wire's largest id has ten."""

OBJECTIVES = ("latency", "balanced", "cost")

HARMLESS: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "store": (False,),
    "suffix": ("",),
    "verbosity": ("medium",),
    "web_search_options": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
    "grammar": ("",),
    "json_schema": (),
    "typical_p": (1,),
    "mirostat": (0,),
    "dry_multiplier": (0,),
    "xtc_probability": (0,),
    "min_tokens": (0,),
    "stop_token_ids": ([],),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "bad_words": ([],),
}
"""Fields that mean something to somebody and nothing here, with the values that ask for nothing."""


class StreamOptions(msgspec.Struct):
    """What a stream says besides the text."""

    include_usage: bool = False


class Extras(msgspec.Struct, forbid_unknown_fields=True):
    """Our own wishes: ``draft`` false is plain cloud streaming; ``trace`` streams the guesses."""

    draft: bool = True
    objective: str | None = None
    trace: bool = False


class Common(msgspec.Struct):
    """What both kinds of completion take. None: as usual."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    repeat_penalty: float | None = None
    ignore_eos: bool | None = None
    outrider: Extras | None = None


class ChatBody(Common):
    """``/v1/chat/completions``."""

    messages: list[dict[str, Any]] = msgspec.field(default_factory=list)
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None


class CompletionBody(Common):
    """``/v1/completions``."""

    prompt: str | list[Any] | None = None
    logprobs: int | None = None


Body = TypeVar("Body", ChatBody, CompletionBody)

_WHERE = re.compile(r" - at `\$\.?(.*)`$")


def read(data: bytes, kind: type[Body]) -> Body:
    """The request in a body.

    Raises:
        ApiError: it is no JSON object, a field has the wrong type, or cannot be honoured.
    """
    raw = read_object(data)
    for name, neutral in HARMLESS.items():
        value = raw.get(name)
        if value is not None and value not in neutral and name not in kind.__struct_fields__:
            raise unsupported(name, "leave it out")
    try:
        body = _typed(raw, kind)
    except msgspec.ValidationError as error:
        where = _WHERE.search(str(error))
        said = _WHERE.sub("", str(error))
        param = where[1] if where else None
        raise bad(f"{param or 'the body'}: {said}", param, "invalid_type") from None
    _check(body)
    return body


def read_object(data: bytes) -> dict[str, Any]:
    """The JSON object in a body.

    Raises:
        ApiError: it is none.
    """
    try:
        raw = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad(f"the body is not JSON: {error}", None, "invalid_json") from None
    if not isinstance(raw, dict):
        raise bad("the body must be a JSON object", None, "invalid_json")
    return raw


def _typed(raw: dict[str, Any], kind: type[Body]) -> Body:
    """Unions of lists are beyond the library: those of a prompt are looked at where it is used."""
    prompt = raw.get("prompt")
    if not isinstance(prompt, list):
        return msgspec.convert(raw, kind)
    body = msgspec.convert(raw | {"prompt": None}, kind)
    if isinstance(body, CompletionBody):
        body.prompt = prompt
    return body


def _check(body: Common) -> None:
    if body.n is not None and not 1 <= body.n <= MAX_CHOICES:
        raise bad(f"n is {body.n}; it must be 1 to {MAX_CHOICES}", "n")
    if body.stream_options is not None and not body.stream:
        raise bad("stream_options is for streams: set stream as well", "stream_options")
    if body.outrider is not None and body.outrider.objective not in (None, *OBJECTIVES):
        raise bad(
            f"objective is {body.outrider.objective!r}; it must be one of {', '.join(OBJECTIVES)}",
            "outrider.objective",
        )
    for name in ("max_tokens", "max_completion_tokens"):
        value = getattr(body, name, None)
        if value is not None and value < 1:
            raise bad(f"{name} is {value}; it must be at least 1", name)
    if "" in ([body.stop] if isinstance(body.stop, str) else body.stop or []):
        raise bad("stop holds an empty text; leave it out", "stop")


def bias(body: Common) -> tuple[tuple[int, float], ...]:
    """``logit_bias`` by token id.

    Raises:
        ApiError: a key is no id, or a value is out of OpenAI's range.
    """
    found = []
    for key, value in (body.logit_bias or {}).items():
        if not key.isascii() or not key.isdigit() or len(key) > MOST_DIGITS:
            raise bad(f"logit_bias: {key[:40]!r} is not a token id", "logit_bias")
        if not -100 <= value <= 100:
            raise bad(f"logit_bias of token {key} is {value}; it must be -100 to 100", "logit_bias")
        found.append((int(key), value))
    return tuple(found)
