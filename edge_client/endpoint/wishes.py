"""From a request's body to the answers that it asks for."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from outrider.edge_client.endpoint import forms, messages, schema, tools
from outrider.edge_client.endpoint.errors import bad
from outrider.edge_client.endpoint.logprobs import asked_for
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.errors import BackendError, SettingError
from outrider.protocol.messages import TOOLS, Welcome
from outrider.protocol.request import Request
from outrider.runtime.text.template import takes_tools
from outrider.runtime.text.tokenizer import Tokenizer

DEFAULT_TEMPERATURE = 1.0
"""As in the OpenAI API."""

DEFAULT_COMPLETION = 16
"""``max_tokens`` of ``/v1/completions`` where the request names none, as in the OpenAI API."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Ids, or messages for the cloud to render; both where it may have to render them again."""

    ids: tuple[int, ...]
    messages: tuple[dict[str, Any], ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """One answer that is wanted: a choice of a response.

    ``ids`` is the whole prompt; empty where the cloud is to render ``messages``.
    """

    index: int
    ids: tuple[int, ...]
    messages: tuple[dict[str, Any], ...] | None
    sampling: Sampling
    max_tokens: int
    stops: tuple[str, ...]
    ignore_eos: bool
    objective: str | None
    draft: bool
    trace: bool
    logprobs: int | None = None
    grammar: str | None = None
    tools: tuple[dict[str, Any], ...] | None = None

    def request(self, base: int) -> Request:
        """For a session that has the first ``base`` ids already."""
        return Request(
            max_tokens=self.max_tokens,
            sampling=self.sampling,
            base=base,
            ids=self.ids[base:],
            messages=self.messages,
            templated=self.messages is not None and bool(self.ids),
            stops=self.stops,
            ignore_eos=self.ignore_eos,
            objective=self.objective,
            logprobs=self.logprobs,
            grammar=self.grammar,
            tools=self.tools,
        )


def of_chat(
    body: schema.ChatBody, tokenizer: Tokenizer, welcome: Welcome
) -> tuple[list[Wish], bool]:
    """The answers that a chat asks for, and whether tools may be called in them.

    Raises:
        ApiError: something in it cannot be honoured.
    """
    told = _told(body, welcome)
    template = tokenizer.template if welcome.same_template else None
    place = takes_tools(template) or (not welcome.same_template and TOOLS in welcome.features)
    offered = tools.offered(body, place=place)
    form = forms.of_calls(body, offered, welcome) or forms.of_response(body, welcome)
    chat = messages.plain(body.messages, template, tools=place)
    ids: tuple[int, ...] = ()
    if welcome.same_template:
        if tokenizer.chat is None:
            raise bad("the target has no chat template: use /v1/completions", "messages")
        try:
            ids = tuple(tokenizer.encode_chat(chat, tools=offered))
        except (SettingError, BackendError) as error:
            raise bad(str(error), "messages") from None
    limit = body.max_completion_tokens or body.max_tokens or _room(welcome, len(ids))
    made = _wishes(body, [Prompt(ids, tuple(chat))], limit, told)
    listed = tuple(offered) if offered is not None else None
    return [replace(wish, grammar=form, tools=listed) for wish in made], offered is not None


def _told(body: schema.ChatBody, welcome: Welcome) -> int | None:
    """How many alternatives are wanted with each token's log-probability; None: neither."""
    if not body.logprobs:
        if body.top_logprobs is not None:
            raise bad("top_logprobs needs logprobs: set it to true", "top_logprobs")
        return None
    field = "logprobs" if body.top_logprobs is None else "top_logprobs"
    return asked_for(field, body.top_logprobs or 0, welcome)


def of_completion(
    body: schema.CompletionBody, tokenizer: Tokenizer, welcome: Welcome
) -> list[Wish]:
    """The answers to plain prompts, the choices of each in a row.

    Raises:
        ApiError: something in it cannot be honoured.
    """
    told = None if body.logprobs is None else asked_for("logprobs", body.logprobs, welcome)
    prompts = [Prompt(ids) for ids in _prompts(body.prompt, tokenizer)]
    return _wishes(body, prompts, body.max_tokens or DEFAULT_COMPLETION, told)


def _room(welcome: Welcome, prompt: int) -> int:
    """As much as fits, where the request names no limit."""
    return max(1, min(welcome.limits.max_tokens, welcome.n_ctx - prompt))


def _prompts(prompt: object, tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    if prompt is None or prompt in ("", []):
        raise bad("prompt is empty", "prompt")
    if isinstance(prompt, str) or all(_is_id(item) for item in _listed(prompt)):
        prompt = [prompt]
    return [_ids(item, f"prompt[{i}]", tokenizer) for i, item in enumerate(_listed(prompt))]


def _listed(prompt: object) -> list[Any]:
    return prompt if isinstance(prompt, list) else []


def _is_id(item: object) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)


def _ids(item: object, where: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    if isinstance(item, str):
        try:
            ids = tokenizer.encode_prompt(item)
        except SettingError as error:
            raise bad(f"{where}: {error}", "prompt") from None
    elif isinstance(item, list) and all(map(_is_id, item)):
        ids = item
        if any(not 0 <= token < tokenizer.size for token in ids):
            raise bad(f"{where} has ids outside 0 to {tokenizer.size - 1}", "prompt")
    else:
        raise bad(f"{where} is neither a text nor a list of token ids", "prompt")
    if not ids:
        raise bad(f"{where} is empty", "prompt")
    return tuple(ids)


def _wishes(
    body: schema.Common,
    prompts: list[Prompt],
    max_tokens: int,
    logprobs: int | None,
) -> list[Wish]:
    choices = body.n or 1
    if choices * len(prompts) > schema.MAX_CHOICES:
        raise bad(f"more than {schema.MAX_CHOICES} choices of all prompts together", "n")
    extras = body.outrider or schema.Extras()
    sampling = _sampling(body)
    stops = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    return [
        Wish(
            index=at * choices + choice,
            ids=prompt.ids,
            messages=prompt.messages,
            sampling=_choice(sampling, choice),
            max_tokens=max_tokens,
            stops=stops,
            ignore_eos=bool(body.ignore_eos),
            objective=extras.objective,
            draft=extras.draft,
            trace=extras.trace,
            logprobs=logprobs,
        )
        for at, prompt in enumerate(prompts)
        for choice in range(choices)
    ]


def _choice(sampling: Sampling, choice: int) -> Sampling:
    """The same seed and another index: other noise, and still repeatable."""
    return msgspec.structs.replace(sampling, choice=choice)


def _sampling(body: schema.Common) -> Sampling:
    """The settings that decide about the text; a request without a seed gets a fresh one."""
    penalty, other = body.repetition_penalty, body.repeat_penalty
    if None not in (penalty, other) and penalty != other:
        raise bad("repetition_penalty and repeat_penalty differ", "repeat_penalty")
    seed = secrets.randbits(64) if body.seed is None else body.seed % 2**64
    given: dict[str, Any] = {
        "temperature": DEFAULT_TEMPERATURE if body.temperature is None else body.temperature,
        "top_k": body.top_k,
        "top_p": body.top_p,
        "min_p": body.min_p,
        "repetition_penalty": other if penalty is None else penalty,
        "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty,
        "logit_bias": schema.bias(body),
        "seed": seed,
    }
    try:
        return Sampling(**{name: value for name, value in given.items() if value is not None})
    except SettingError as error:
        raise bad(str(error), str(error).split()[0]) from None
