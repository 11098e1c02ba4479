"""Chat templates: Jinja in a sandbox, with what model authors rely on."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from outrider.protocol.errors import BackendError, SettingError

TOOL_CALL, TOOL_CALL_END = "<tool_call>", "</tool_call>"
"""What a call stands between in the form that most templates ask for (Hermes, Qwen and others)."""


def takes_tools(source: str | None) -> bool:
    """Whether a template has a place for tools, and asks for calls in the form that we read."""
    return source is not None and "tools" in source and TOOL_CALL in source


class ChatTemplate:
    """A compiled template and the special tokens that it may write (``bos_token``, ...)."""

    def __init__(self, source: str, variables: Mapping[str, str] | None = None) -> None:
        """Compile ``source``.

        Raises:
            BackendError: it is not valid Jinja.
        """
        self.source = source
        self._variables = dict(variables or {})
        try:
            self._compiled = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise BackendError(f"the model's chat template is broken: {error}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The chat as text. ``tools``, in the OpenAI API's form, are the template's to write out.

        Raises:
            SettingError: no messages, one without a role, content that is not text, or the
            template itself refuses them (it says why).
            BackendError: the template fails.
        """
        plain = [_plain(message, index) for index, message in enumerate(messages)]
        if not plain:
            raise SettingError("messages is empty; at least one message is needed")
        try:
            return self._compiled.render(
                **self._variables,
                messages=plain,
                add_generation_prompt=add_generation_prompt,
                tools=list(tools) if tools else None,
                documents=None,
            )
        except _RefusedError as error:
            raise SettingError(f"messages do not fit the model's chat template: {error}") from None
        except Exception as error:  # templates are programs: whatever they raise is their fault
            raise BackendError(
                f"the model's chat template fails on these messages: {error}"
            ) from error


def _plain(message: Mapping[str, Any], index: int) -> dict[str, Any]:
    """A copy with the content as one string: lists of text parts are joined."""
    if not isinstance(message, Mapping):
        raise SettingError(f"messages[{index}] is not an object")
    if not isinstance(message.get("role"), str):
        raise SettingError(f"messages[{index}] has no role")
    plain = dict(message)
    content = message.get("content")
    if isinstance(content, list):
        parts = []
        for part in content:
            text = part.get("text") if isinstance(part, Mapping) else None
            if not isinstance(text, str):
                raise SettingError(f"messages[{index}] has a part that is not text")
            parts.append(text)
        plain["content"] = "".join(parts)
    elif content is None:
        plain["content"] = ""
    elif not isinstance(content, str):
        raise SettingError(f"messages[{index}] has content that is not text")
    return plain


class _RefusedError(Exception):
    """The template called ``raise_exception``."""


def _refuse(message: str) -> NoReturn:
    raise _RefusedError(message)


def _now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def _tojson(value: Any, indent: int | None = None, **options: Any) -> str:
    """Plain JSON: Jinja's own filter escapes for HTML, which models have not seen."""
    options.setdefault("ensure_ascii", False)
    return json.dumps(value, indent=indent, **options)


class _Generation(jinja2.ext.Extension):
    """``{% generation %}...{% endgeneration %}`` marks answers for training; here it is no mark."""

    tags = {"generation"}  # noqa: RUF012 (the base class declares it so)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


def _environment() -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[jinja2.ext.loopcontrols, _Generation],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _now
    return environment
